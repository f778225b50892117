"""Two runs side by side, and a run against what was found before."""
