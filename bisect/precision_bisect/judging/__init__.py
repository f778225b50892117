"""Judging: which samples, what the FP32 reference is, and whether outputs pass."""
