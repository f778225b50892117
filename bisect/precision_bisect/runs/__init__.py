"""What lies in a run folder: one writer and one reader of each file, and who may write there."""
