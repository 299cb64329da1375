"""The catalogue of the simulated office, and phrases for instructions to it, read from `phrases.yaml`.

A phrasing is an imperative with slots: {x} is the object of the step, the others are filled from `fillers`. Each task
type has phrasings for training and others for the shift to unseen wording.
"""

from __future__ import annotations

from importlib.resources import files

import msgspec
from msgspec import Struct

from etude.problems.catalogue import Catalogue

ByType = dict[str, tuple[str, ...]]
"""Phrases by task type."""
ByWording = dict[str, tuple[str, ...]]
"""Phrases for `seen` and for `unseen` wording."""


class Phrases(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's content; its comments say what each part is."""

    catalogue: Catalogue
    new_entries: tuple[str, ...]
    seen: ByType
    unseen: ByType
    nouns: ByType
    inline: ByType
    objects: ByType
    plain: tuple[str, ...]
    code: tuple[str, ...]
    fillers: dict[str, tuple[str, ...]]
    follows: ByType
    roots: tuple[str, ...]
    then: ByWording
    parallel: ByWording
    turned: dict[str, tuple[tuple[str, str], ...]]
    openings: ByWording
    closings: ByWording
    needless: ByWording
    needless_nouns: dict[str, str]
    keywords: dict[str, str]


PHRASES = msgspec.yaml.decode(files(__package__).joinpath("phrases.yaml").read_bytes(), type=Phrases)
CATALOGUE, NEW_ENTRIES = PHRASES.catalogue, PHRASES.new_entries
