"""A policy artefact's manifest: everything about a trained policy except its tensors. Its hash is the policy's version.

An artefact is a folder: `manifest.json` and the files it lists. It is self-contained and does not know its own name, so
it can be copied, renamed and uploaded, and stays the same version.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from etude.contracts.decision import Name

FORMAT = 2
VERSION_DIGITS = 16
"""Hexadecimal digits of a version."""


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a policy is, where it comes from, and the SHA-256 of every file that belongs to it."""

    format: int = FORMAT
    problem: Name
    """Name of the problem."""
    method: Name
    """Learning method: a key of its problem's learners."""
    step: int
    """Training step of the run."""
    score: float | None = None
    """Evaluation score by which its run chose it."""
    settings: dict[str, Any] = {}
    """Sections of the settings that reproduce the policy."""
    details: dict[str, Any] = {}
    """What its problem needs to load it besides settings and files."""
    encoder: str | None = None
    """Name of its text encoder."""
    catalogue: str | None = None
    """Fingerprint of the task types and workers that it was trained with."""
    data: tuple[str, ...] = ()
    """Hashes of the datasets and files used for training."""
    parent: str | None = None
    """Policy version that training continued from."""
    code: str
    """The Etude version that trained it."""
    files: dict[str, str]
    """Name → SHA-256."""

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)


def version_of(manifest: bytes) -> str:
    """The version of the artefact with this manifest.json."""
    return hashlib.sha256(manifest).hexdigest()[:VERSION_DIGITS]


SAMPLED = "+sampled"
"""Suffix of the version of a policy that samples its actions: a different behaviour needs a different version."""
