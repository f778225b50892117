"""Graphs: from an untrusted file to a graph that others rely on, and plans written into it."""
