"""Model intake: from an untrusted file to a graph that the rest of the package can rely on."""
