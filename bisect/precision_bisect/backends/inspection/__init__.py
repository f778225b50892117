"""Inspection: in which type a built engine computes each layer, and whether that is the plan."""
