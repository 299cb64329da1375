"""Trajectories in, datasets out."""
