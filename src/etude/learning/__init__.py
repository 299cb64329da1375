"""Learning algorithms and runs: they improve a policy from a world, expert examples or logs."""
