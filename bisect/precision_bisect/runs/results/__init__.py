"""A result: how it is written, what it says, and reading it back."""
