"""Frozen, hashed selections of trajectories under one reward version: made from a store, read by learners."""

from etude.experience.datasets.create import create, register, registered
from etude.experience.datasets.manifest import MANIFEST, Manifest, read_manifest
from etude.experience.datasets.read import Dataset, Example, erase, verify
from etude.experience.datasets.sampling import SPLITS, DatasetConfig

__all__ = [
    "MANIFEST",
    "SPLITS",
    "Dataset",
    "DatasetConfig",
    "Example",
    "Manifest",
    "create",
    "erase",
    "read_manifest",
    "register",
    "registered",
    "verify",
]
