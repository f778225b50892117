"""The engine of an answer, built once and looked into."""
