"""Implementations of the ports, one technology per file; each has an in-memory twin."""
