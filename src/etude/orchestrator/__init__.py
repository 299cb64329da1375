"""Plans carried out on workers: executed, corrected, logged."""
