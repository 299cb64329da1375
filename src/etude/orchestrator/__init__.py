"""Carries out plans on workers: execution, correction, logging."""
