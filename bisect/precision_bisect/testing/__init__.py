"""Contract tests that third parties can run on their own strategies, without any backend."""
