"""Norms and activations that an exporter took apart: finding them, and putting them together."""
