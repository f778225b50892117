"""Exports: a plan in the forms that deployments need."""
