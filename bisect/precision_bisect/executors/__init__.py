"""Who evaluates the trials of a run: this machine, or what a plug-in reaches."""
