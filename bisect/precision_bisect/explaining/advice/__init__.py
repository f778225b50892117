"""What to change so that fewer layers need the precision, each with what speaks for it."""
