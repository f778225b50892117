"""Norms and activations that an exporter wrote as several nodes: found, and fused again."""
