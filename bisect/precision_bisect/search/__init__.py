"""Trials proposed, evaluated and recorded; what searches are made of."""
