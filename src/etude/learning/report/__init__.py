"""Runs for people: one page for each kind of run, made of the same parts."""
