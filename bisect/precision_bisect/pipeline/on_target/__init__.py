"""A folder for a machine that has only trtexec and a shell, and what comes back from there."""
