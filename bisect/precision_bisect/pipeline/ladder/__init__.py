"""Ladders of precisions: a chain of pair searches, and one answer for the whole."""
