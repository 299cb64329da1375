"""A simulated office: instructions with known best plans, workers with hidden skills."""
