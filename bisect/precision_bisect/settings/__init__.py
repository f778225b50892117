"""Values of flags, parsed and checked; nothing is loaded."""
