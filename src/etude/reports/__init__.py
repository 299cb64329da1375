"""Report pages of runs, made of shared parts."""
