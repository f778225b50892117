"""Reports: everything that people see of a run. They read events and results, nothing else."""
