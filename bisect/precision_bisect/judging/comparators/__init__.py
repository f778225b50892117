"""Comparators: what judges outputs."""
