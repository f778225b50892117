"""What a run tells beside the terminal: a log, a live status, and a call at the end.

`attend.py` is the observer that a run is given; the files are for people and their tools to read.
The ledger, not these, is what a run is resumed from, so none of them may ever end one.
"""
