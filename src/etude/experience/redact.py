"""Removes personal data and secrets from a text or JSON-like value, and says what was removed and why.

A removed value is replaced by a placeholder of its kind: [EMAIL_1], [CARD_2]. Within a session equal values get equal
placeholders, so persons stay distinguishable but anonymous. Time is linear in the size of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import Any

from msgspec import Struct

from etude.contracts.errors import ConfigError
from etude.experience.redaction.addresses import find_after_colons, find_emails
from etude.experience.redaction.allow import AllowList
from etude.experience.redaction.document import Document, Keys
from etude.experience.redaction.matches import KINDS, PLACEHOLDER, START, Match, View
from etude.experience.redaction.names import SecretNames
from etude.experience.redaction.numbers import find_ibans, find_numbers
from etude.experience.redaction.secrets import extra_names, find_assigned, find_tokens

ROUNDS = 4
"""Maximum number of passes: a removed word may have shown that the number next to it is not a phone number."""


_ESCAPE = re.compile(r"(?<!\\)\\++(?:u([0-9a-fA-F]{4})|/)")


class Removed(Struct, frozen=True):
    """One value that was removed, and how often; never the value itself."""

    kind: str
    placeholder: str
    count: int
    why: str


class Span(Struct, frozen=True):
    """The position of something to be removed in a text."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class RedactionConfig:
    """What is redacted, and what is not."""

    kinds: tuple[str, ...] = KINDS
    """Kinds to redact; the others are kept."""
    allow: tuple[str, ...] = ()
    """What is not redacted: values, `@example.com` for addresses, networks such as `10.0.0.0/8`, `re:` with a regex."""
    secret_keys: tuple[str, ...] = ()
    """Names whose values are secret, in addition to `password`, `api_key`, `client_secret` and similar ones."""
    max_depth: int = 200
    """Maximum depth of nesting of a value; deeper ones are refused."""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigError(f"kinds: {kind!r} is not one of {', '.join(KINDS)}")
        if not 1 <= self.max_depth <= 500:
            raise ConfigError(f"max_depth: {self.max_depth!r} is not between 1 and 500")


class Redactor:
    """The compiled rules of one tenant; threads may share it."""

    def __init__(self, config: RedactionConfig | None = None) -> None:
        self.config = config or RedactionConfig()
        self._names = SecretNames(self.config.secret_keys)
        self.keys = Keys(self._names)
        self._kinds = frozenset(self.config.kinds)
        self._allow = AllowList(self.config.allow)
        self._extra = extra_names(self.config.secret_keys)

    def session(self) -> Session:
        """A session for one trajectory, which remembers the placeholder of each value."""
        return Session(self)

    def spans(self, text: str) -> list[Span]:
        """The spans that would be removed, in order and without overlap."""
        return [Span(found.kind, found.start, found.end) for found in self.find(text)]

    def find(self, text: str, known: Iterable[Match] = ()) -> list[Match]:
        """Matches to be removed, the `known` ones included, in order; overlapping ones are merged."""
        found = [each for each in chain(known, self._detect(View(text))) if self._goes(each, text)]
        return _merged(found) if len(found) > 1 else found

    def _detect(self, view: View) -> Iterator[Match]:
        kinds = self._kinds
        if kinds & {"secret", "password"}:
            yield from find_assigned(view, self._names, self._extra)
        if "secret" in kinds:
            yield from find_tokens(view)
        if kinds & {"url_password", "ip"}:
            yield from find_after_colons(view)
        if "email" in kinds:
            yield from find_emails(view)
        if "iban" in kinds:
            yield from find_ibans(view)
        if kinds & {"card", "ssn", "ip", "phone"}:
            yield from find_numbers(view)

    def _goes(self, found: Match, text: str) -> bool:
        return found.kind in self._kinds and not (
            self._allow and self._allow.holds(found, text[found.start : found.end])
        )


class Session:
    """The placeholders of one trajectory. Threads must not share it."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._removed: dict[tuple[str, str], Removed] = {}
        self._numbers: dict[str, int] = {}

    def text(self, text: str) -> str:
        """The redacted text; redacting it again changes nothing."""
        return self._redact([START, text], {})[1]

    def value(self, value: Any) -> Any:
        """The redacted value of dicts, lists, strings and numbers; the same object if nothing is removed.

        DataError if it is nested too deeply.
        """
        document = Document(value, self._redactor.keys, self._redactor.config.max_depth)
        parts = self._redact(document.parts, document.secret)
        return value if parts is document.parts else document.with_parts(parts)

    @property
    def removed(self) -> tuple[Removed, ...]:
        """The values removed so far, in the order of their first occurrence."""
        return tuple(self._removed.values())

    def _redact(self, parts: list[str], secret: Mapping[int, str], rounds: int = ROUNDS) -> list[str]:
        """Redact parts, which alternate marks and strings; those in `secret` are removed as a whole."""
        read = _unescaped(parts)
        known = _wholes(read, secret) if secret else ()
        found = self._redactor.find("".join(read), known)
        if not found:
            return parts
        made, changed = self._replaced(parts, read, found)
        if rounds > 1:
            near = _neighbours(parts, changed)
            for index, part in zip(near, self._redact([made[i] for i in near], {}, rounds - 1), strict=True):
                made[index] = part
        return made

    def _replaced(self, parts: list[str], read: list[str], found: Sequence[Match]) -> tuple[list[str], list[int]]:
        """The parts with placeholders for the matches, and the indices of the changed parts."""
        made, ends = list(parts), list(accumulate(map(len, read)))
        changed = []
        for index, group in groupby(found, lambda each: bisect_right(ends, each.start)):
            part = read[index]
            start = ends[index] - len(part)
            pieces: list[str] = []
            done = 0
            for each in group:
                pieces += (part[done : each.start - start], self._placeholder(each))
                done = each.end - start
            made[index] = "".join(pieces) + part[done:]
            changed.append(index)
        return made, changed

    def _placeholder(self, found: Match) -> str:
        known = self._removed.get((found.kind, found.key))
        if known is None:
            number = self._numbers[found.kind] = self._numbers.get(found.kind, 0) + 1
            known = Removed(found.kind, f"[{found.kind.upper()}_{number}]", 0, found.why)
        self._removed[found.kind, found.key] = Removed(known.kind, known.placeholder, known.count + 1, known.why)
        return known.placeholder


def _unescaped(parts: list[str]) -> list[str]:
    """JSON within a string may write any character as an escape: `ana\\u0040example.com`."""
    return [_ESCAPE.sub(_character, part) if "\\" in part else part for part in parts]


def _character(escape: re.Match[str]) -> str:
    if escape[1] is None:
        return "/"
    character = chr(int(escape[1], 16))
    return character if character.isprintable() and character not in '"\\' else escape[0]


def _merged(found: Sequence[Match]) -> list[Match]:
    """Matches in order, with nested and overlapping ones merged."""
    merged: list[Match] = []
    for each in sorted(found, key=lambda each: (each.start, -each.end)):
        last = merged[-1] if merged else None
        if last is None or each.start >= last.end:
            merged.append(each)
        elif {last.kind, each.kind} == {"email", "url_password"}:  # the @ belongs to the URL
            merged[-1] = last if last.kind == "url_password" else each
        elif each.end > last.end:
            merged[-1] = Match(last.kind, last.start, each.end, f"{last.key}{each.key}", last.why)
    return merged


def _wholes(parts: Sequence[str], secret: Mapping[int, str]) -> Iterator[Match]:
    ends = list(accumulate(map(len, parts)))
    for index, kind in secret.items():
        part = parts[index]
        if part.strip("* ") and not PLACEHOLDER.fullmatch(part):
            yield Match(kind, ends[index] - len(part), ends[index], part, f"its key says that it is a {kind}")


def _neighbours(parts: Sequence[str], changed: Iterable[int]) -> list[int]:
    """The changed parts, each with its key and its neighbours under that key."""
    near: list[int] = []
    for index in changed:
        if near and index <= near[-1]:
            continue
        first, last = index - 1, index + 1
        while parts[first] != START:
            first -= 2
        while last < len(parts) and parts[last] != START:
            last += 2
        near += range(first, last)
    return near
