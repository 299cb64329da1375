"""Releases policies: registry, gates, canary, audit. A policy serves only on proof, and leaves at once on harm."""
