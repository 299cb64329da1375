"""Files of installed packages, found without importing them: their code may need packages that are not installed."""

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
    """The version of a distribution, for the names of encoders."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # copied rather than installed
        return "unknown"
