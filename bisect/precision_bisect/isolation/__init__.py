"""Trials in child processes: a crash, a hang or a lack of memory is an outcome, not the end."""
