"""From the command line to an exit code."""
