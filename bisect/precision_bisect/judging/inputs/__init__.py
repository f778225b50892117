"""Inputs: samples from files or scripts, or synthetic ones, checked against the model."""
