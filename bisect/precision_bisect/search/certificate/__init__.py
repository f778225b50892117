"""What the trials of a run prove of the layers that its answer keeps."""
