"""Speed: how fast plans are, what is asked of them, and how a plan is made faster."""
