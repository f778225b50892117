"""Explaining: why layers need the high type, and what to change so that fewer do."""
