"""What the trials of a run prove."""
