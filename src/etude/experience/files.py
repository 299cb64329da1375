"""Events from JSON Lines: whatever stands there becomes a message, one that can be buried if it is no event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import BinaryIO, NamedTuple

import msgspec

from etude.contracts.bus import Message
from etude.contracts.errors import DataError, EventError
from etude.contracts.subjects import MAX_BYTES, TRAJECTORIES, stream_of, subject_of
from etude.contracts.trajectory import Trajectory
from etude.experience.cleaning import Cleaner

TOO_LONG = "too-long"
"""How ids of messages begin whose line was: what is kept of it would say something else."""
SHOWN = 1 << 16
"""Bytes that are kept of a line that is no event."""
MARK = b"\xef\xbb\xbf"
"""Some programs begin a file with it to say that it is UTF-8."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Convert = Callable[[bytes], bytes | None]
"""A line of another kind to that of an event; None where it is not of that kind either. Raises what is UNREADABLE."""


class Line(NamedTuple):
    text: bytes  # its beginning, where it is longer than an event may be
    size: int  # bytes in the file
    whole: bool


class _Head(msgspec.Struct):
    id: str
    type: str = subject_of(Trajectory)


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Those that are not blank. Memory holds one."""
    first = True
    while text := file.readline(MAX_BYTES + 2):
        size, whole = len(text), True
        text, first = text.removeprefix(MARK) if first else text, False
        while not text.endswith(b"\n") and (more := file.readline(SHOWN)):  # too long to be an event: read past
            size, whole = size + len(more), False
            if more.endswith(b"\n"):
                break
        if text and not text.isspace():
            yield Line(text.strip() if whole else text[:SHOWN], size, whole)


def to_message(line: Line, cleaner: Cleaner, convert: Convert | None = None) -> Message:
    """Redacted. A line without a type is a trajectory, or is converted."""
    text = line.text
    try:
        if convert is not None and line.whole:
            text = convert(text) or text
        subject = _subject(text)
        event, body = cleaner.clean(text, subject=subject)
    except (EventError, DataError, *UNREADABLE):
        return _unread(text, cleaner, whole=line.whole)  # the consumer finds the same, and buries it with the reason
    return Message(id=event.id, subject=subject, body=body)


def _subject(text: bytes) -> str:
    """EventError where it is none that is taken in from files: its stream would never bring it to who buries it."""
    subject = _head.decode(text).type
    if stream_of(subject) != TRAJECTORIES:
        raise EventError(f"{subject} is neither a trajectory nor feedback")
    return subject


def _unread(text: bytes, cleaner: Cleaner, *, whole: bool) -> Message:
    """Its beginning, redacted as text."""
    shown = cleaner.text(text[:SHOWN].decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    try:
        subject = _subject(text)
    except (EventError, *UNREADABLE):
        subject = subject_of(Trajectory)
    kind = "line" if whole else TOO_LONG
    return Message(id=f"{kind}-{sha256(text).hexdigest()[:24]}", subject=subject, body=shown)


_head = msgspec.json.Decoder(_Head)
