"""Weights that lie inside installed packages, found without importing them: their code may need what is not there."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from etude.contracts.errors import EtudeError


def package_file(package: str, path: str, *, missing: EtudeError) -> Path:
    """A file of an installed package, or the error `missing`."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        file = Path(folder, path)
        if file.is_file():
            return file
    raise missing


def version(distribution: str) -> str:
    """Its version, for the name of the vectors made with it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # copied there rather than installed
        return "unknown"
