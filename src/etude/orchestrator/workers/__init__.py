"""Workers, one kind per file, behind the port `Worker`."""
