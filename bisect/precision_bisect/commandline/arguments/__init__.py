"""The argument trees of the commands. They import nothing heavy, so that `--help` is instant."""
