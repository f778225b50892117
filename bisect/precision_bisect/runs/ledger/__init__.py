"""The ledger: one SQLite file a run, from which any run can be continued."""
