"""Trials: proposed by searches, evaluated, recorded; and what all strategies share."""
