"""Worlds (and later datasets) in, a better policy out."""
