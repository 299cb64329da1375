"""A text in, the views of it that the detectors read out; and what a detector says it found."""

from __future__ import annotations

import re
from typing import NamedTuple

KINDS = ("email", "phone", "card", "iban", "ssn", "ip", "secret", "password", "url_password")
"""What can be found; a kind's placeholder is its name in capitals and a number."""

START, LINK = "\x00", "\x01"
"""Stand before each string of a joined document, and between a key and its value."""

PLACEHOLDER = re.compile(rf"\[(?:{'|'.join(kind.upper() for kind in KINDS)})_[0-9]+\]")

_ASCII = {
    **{ord(digit): str(i % 10) for first in "٠۰०０" for i, digit in enumerate(chr(ord(first) + n) for n in range(10))},
    **dict.fromkeys(map(ord, "\xa0\u2007\u2009\u202f"), " "),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\uff0d"), "-"),
}
_FOREIGN = re.compile("[" + "".join(map(chr, _ASCII)) + "]")
_SHAPE = bytes(48 if chr(i).isdigit() and i < 128 else 65 if chr(i).isalpha() or i == 95 else 126 for i in range(256))
_RUN = bytes(97 if i < 128 and (chr(i).isalnum() or chr(i) in "_-") else 32 for i in range(256))


class Match(NamedTuple):
    """A span that goes. Spans with the same kind and key hold the same value and so get the same placeholder."""

    kind: str
    start: int
    end: int
    key: str
    why: str


class View:
    """One text in the forms that are fast to search; an index means the same character in all of them."""

    __slots__ = ("low", "runs", "shape", "text")

    def __init__(self, text: str) -> None:
        if not text.isascii() and _FOREIGN.search(text):
            text = _FOREIGN.sub(lambda match: _ASCII[ord(match[0])], text)
        self.text = text  # digits, spaces and hyphens of all scripts as ASCII
        raw = text.encode("latin-1", "replace")
        if b"\\" in raw:  # the n of an escaped line break is no letter before a number or a key
            raw = raw.replace(b"\\n", b"\\ ").replace(b"\\t", b"\\ ").replace(b"\\r", b"\\ ")
        self.low = raw.lower()
        self.shape = b"~" + raw.translate(_SHAPE)  # A for a letter, 0 for a digit, ~ for the rest; off by one
        self.runs = raw.translate(_RUN)  # a for what a token is made of

    def is_word(self, index: int) -> bool:
        """Whether there is a letter, digit or _; the n of an escaped line break is none."""
        return self.shape[index + 1 : index + 2] in (b"A", b"0")

    def has_words(self, start: int, width: int) -> bool:
        """Whether there may be letters before a place: cheaper than to look at them."""
        return not self.text.isascii() or b"A" in self.shape[max(0, start - width) : start + 1]

    def before(self, start: int, width: int) -> str:
        """What leads up to a place, in lower case, from the same string and its key."""
        return self.text[max(0, start - width) : start].rpartition(START)[2].lower()

    def after(self, end: int, width: int) -> str:
        return self.text[end : end + width].partition(START)[0].lower()
