"""Inspection: what a built engine computes in, layer by layer, and whether that is the plan."""
