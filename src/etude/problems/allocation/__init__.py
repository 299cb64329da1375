"""Who takes which task, how much of their capacity it gets, and who works together."""
