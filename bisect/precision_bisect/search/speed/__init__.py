"""Speed: how fast plans are, which limits they must meet, and how a plan is made faster."""
