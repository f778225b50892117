"""One run from options to result."""
