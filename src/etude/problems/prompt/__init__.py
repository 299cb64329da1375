"""Prompt mutation as a problem: which of five mutations makes a prompt better."""
