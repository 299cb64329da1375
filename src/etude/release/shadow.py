"""Answers of a candidate that no one sees: one journal per process, and their summary for people and the controller."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from etude.files.durable import PRIVATE, make_folder

SUFFIX = ".shadow"


class ShadowAnswer(Struct, frozen=True, array_like=True):
    trajectory: str
    same: bool
    """Whether the candidate does what the incumbent does."""
    ms: float
    error: str = ""
    """The error that the candidate raised."""


@dataclass(frozen=True, kw_only=True)
class ShadowSummary:
    answers: int = 0
    same: int = 0
    failed: int = 0
    mean_ms: float = 0.0
    first_error: str = ""


class ShadowJournal:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: tuple[str, int, int] | None = None  # release, process, file

    def append(self, release: str, answer: ShadowAnswer) -> None:
        if self._open is None or self._open[:2] != (release, os.getpid()):
            folder = self._folder / quote(release, safe="")
            make_folder(folder)
            name = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
            self._open = release, os.getpid(), os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        os.write(self._open[2], msgspec.json.encode(answer) + b"\n")

    def summary(self, release: str) -> ShadowSummary:
        answers = []
        for path in sorted((self._folder / quote(release, safe="")).glob(f"*{SUFFIX}")):
            for line in path.read_bytes().splitlines():
                try:
                    answers.append(msgspec.json.decode(line, type=ShadowAnswer))
                except msgspec.DecodeError:  # a dying process left it unfinished
                    continue
        return ShadowSummary(
            answers=len(answers),
            same=sum(answer.same for answer in answers),
            failed=sum(bool(answer.error) for answer in answers),
            mean_ms=sum(answer.ms for answer in answers) / max(1, len(answers)),
            first_error=next((answer.error for answer in answers if answer.error), ""),
        )
