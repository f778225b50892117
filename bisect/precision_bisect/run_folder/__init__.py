"""Where a run writes, who may write there, and how untrusted JSON is read back."""
