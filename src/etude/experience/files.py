"""Reads events from JSON Lines: every line becomes a message, which can be buried if it is not an event."""

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
"""Prefix of the id of a message whose line was too long: its stored beginning alone would give a different error."""
SHOWN = 1 << 16
"""Bytes that are stored of a line that is not an event."""
MARK = b"\xef\xbb\xbf"
"""Byte order mark, with which some programs begin a UTF-8 file."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Convert = Callable[[bytes], bytes | None]
"""Converts a line of another format to an event; None if the line is not of that format. Raises UNREADABLE errors."""


class Line(NamedTuple):
    text: bytes  # only its beginning if it is longer than MAX_BYTES
    size: int  # bytes in the file
    whole: bool


class _Head(msgspec.Struct):
    id: str
    type: str = subject_of(Trajectory)


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """The lines that are not blank, one at a time."""
    first = True
    while text := file.readline(MAX_BYTES + 2):
        size, whole = len(text), True
        text, first = text.removeprefix(MARK) if first else text, False
        while not text.endswith(b"\n") and (more := file.readline(SHOWN)):  # too long to be an event: skip the rest
            size, whole = size + len(more), False
            if more.endswith(b"\n"):
                break
        if text and not text.isspace():
            yield Line(text.strip() if whole else text[:SHOWN], size, whole)


def to_message(line: Line, cleaner: Cleaner, convert: Convert | None = None) -> Message:
    """The redacted message of a line. A line without a type is a trajectory, or is converted."""
    text = line.text
    try:
        if convert is not None and line.whole:
            text = convert(text) or text
        subject = _subject(text)
        event, body = cleaner.clean(text, subject=subject)
    except (EventError, DataError, *UNREADABLE):
        return _unread(
            text, cleaner, whole=line.whole
        )  # the consumer finds the same error and buries it with the reason
    return Message(id=event.id, subject=subject, body=body)


def _subject(text: bytes) -> str:
    """The subject; EventError unless it is a trajectory or feedback, since no consumer would bury another event."""
    subject = _head.decode(text).type
    if stream_of(subject) != TRAJECTORIES:
        raise EventError(f"{subject} is neither a trajectory nor feedback")
    return subject


def _unread(text: bytes, cleaner: Cleaner, *, whole: bool) -> Message:
    """A message with the redacted beginning of a line that is not an event."""
    try:
        subject = _subject(text)
    except (EventError, *UNREADABLE):
        subject = subject_of(Trajectory)
    kind = "line" if whole else TOO_LONG
    shown = cleaner.unknown(text if whole else text[:SHOWN])[:SHOWN]
    return Message(id=f"{kind}-{sha256(text).hexdigest()[:24]}", subject=subject, body=shown)


_head = msgspec.json.Decoder(_Head)
