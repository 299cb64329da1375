"""Answers with a trained policy."""
