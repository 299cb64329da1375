"""Which arm a unit belongs to: an exposure and a unit's id in, the assignment with its probability out.

The arm is a keyed hash of the unit, with the release's id as the key: independent of all earlier units and of other
releases, and the same in every process. A unit keeps the arm and the probability of its first assignment. A journal of
one file per process records it before the policy decides, so that a unit whose process dies still counts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from urllib.parse import quote

import msgspec
from msgspec import Struct

from etude.contracts.release import Exposure
from etude.files.durable import PRIVATE, make_folder
from etude.release.remembered import Remembered, Units

KEY_BYTES = 64
INVALID = "invalid: "
"""Begins the reason where the candidate answered, but not with a decision that may be carried out."""
MAX_REASON = 200


class Assigned(Struct, frozen=True, array_like=True, gc=False):
    """A line of the journal."""

    unit: str
    at_ns: int
    """Time of the assignment, in nanoseconds since 1970."""
    candidate: bool
    share: float
    """Probability of the candidate."""
    trajectory: str
    """The unit, or a trajectory of the conversation that is the unit."""
    failed: str = ""
    """Why the candidate's policy could not decide, so that the incumbent did: what it raised, or INVALID …"""


def in_candidate_arm(release: str, unit: str, share: float) -> bool:
    """True with probability `share`, over units."""
    return _below(_mark(release, unit), share)


def _mark(release: str, unit: str) -> int:
    """64 random bits of a unit, others in each release."""
    key = release.encode()[:KEY_BYTES]
    return int.from_bytes(blake2b(unit.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest())


def _below(mark: int, share: float) -> bool:
    return mark < share * 2.0**64


class Assignments:
    """The assignments of one slot in this process, journalled for the controller."""

    def __init__(self, folder: Path, *, clock_ns: Callable[[], int]) -> None:
        self._folder, self._clock_ns = folder, clock_ns
        self._release = ""  # the one that the rest is about
        self._known: Units  # made for the first release
        self._file: int | None = None
        self._seen: dict[str, int] = {}  # bytes read of each journal
        self._turn, self._pid = Lock(), os.getpid()

    def assign(self, exposure: Exposure, unit: str, trajectory: str | None = None) -> Assigned:
        """The arm of a unit. A new unit is in the journal when this returns, and each further trajectory of it."""
        with self._turn:
            if exposure.release != self._release or os.getpid() != self._pid:
                self._begin(exposure.release)
            mark, about = _mark(self._release, unit), trajectory or unit
            found = self._known.find(mark)
            if found is None and exposure.unit == "conversation":
                self._read()  # another process may have assigned it
                found = self._known.find(mark)
            share = exposure.share if found is None else found.share
            assigned = Assigned(unit, self._clock_ns(), _below(mark, share), share, about)
            known = Remembered(share, mark if about == unit else _mark(self._release, about))
            if found is None or (trajectory is not None and found != known):
                self._write(assigned)
                self._known.keep(mark, known)
            return assigned

    def failed(self, exposure: Exposure, assigned: Assigned, why: str) -> None:
        """Journal that the candidate could not decide for a unit of its arm."""
        with self._turn:
            if exposure.release == self._release:
                self._write(msgspec.structs.replace(assigned, failed=why[:MAX_REASON]))

    def _begin(self, release: str) -> None:
        """Another release, or after a fork a process that needs a journal of its own."""
        if self._file is not None and os.getpid() == self._pid:
            os.close(self._file)
        if release != self._release:
            self._known, self._seen = Units(), {}
        self._release, self._file, self._pid = release, None, os.getpid()

    def _write(self, line: Assigned) -> None:
        if self._file is None:
            folder = self._folder / quote(self._release, safe="")
            make_folder(folder)
            name = folder / f"{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        os.write(self._file, _encoder.encode(line) + b"\n")  # one write: lines never mix

    def _read(self) -> None:
        """What other processes assigned since the last time."""
        for line in new_lines(self._folder / quote(self._release, safe=""), self._seen):
            mark = _mark(self._release, line.unit)
            if self._known.find(mark) is None:
                self._known.keep(mark, Remembered(line.share, _mark(self._release, line.trajectory)))


def new_lines(folder: Path, seen: dict[str, int]) -> Iterator[Assigned]:
    """Lines that were added to the journals of a release since `seen`, the bytes read of each file, which is updated.

    A line that a dying process left unfinished, or that is no assignment, is skipped.
    """
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            file.seek(seen.get(path.name, 0))
            data = file.read()
        whole = data.rpartition(b"\n")[0]
        for line in whole.splitlines():
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError:
                continue
        if whole:
            seen[path.name] = seen.get(path.name, 0) + len(whole) + 1


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Assigned)
