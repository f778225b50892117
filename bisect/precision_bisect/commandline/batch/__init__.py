"""Many models, one after the other: a TOML file of jobs, each a process of the main command."""
