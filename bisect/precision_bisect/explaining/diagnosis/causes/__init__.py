"""What shows a cause: a module for each, with the name of its member of `Cause`."""
