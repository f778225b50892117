"""Trials in child processes: whatever one does to its process is an outcome, not an end."""
