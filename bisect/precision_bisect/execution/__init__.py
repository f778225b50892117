"""Where trials run: threads of this process, child processes, or what a plug-in reaches."""
