"""Decisions over HTTP: the app, its routes, who may call them, and the runtime that decides."""
