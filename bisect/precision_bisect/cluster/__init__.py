"""Trials on other machines, which a Dask cluster lends."""
