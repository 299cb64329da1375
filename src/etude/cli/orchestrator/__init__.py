"""Commands that plan workflows and carry them out."""
