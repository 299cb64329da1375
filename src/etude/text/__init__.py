"""Texts to vectors: hashed n-grams, static word vectors, a small transformer, or any embeddings service."""
