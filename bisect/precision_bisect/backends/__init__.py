"""Backends: what builds and runs a plan."""
