"""A JSON-like value in, its strings in one text out; and back, with some of them replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from etude.contracts.errors import DataError
from etude.experience.redaction.cues import Sense, sense_of
from etude.experience.redaction.matches import LINK, START
from etude.experience.redaction.names import SecretNames

_HARMLESS = re.compile(r"[A-Za-z_.]{1,15}")
_MAX_KEYS, _MAX_KEY_CHARS = 10_000, 100
_MIN_NUMBER, _MIN_CARD, _MAX_NUMBER = 10**6, 10**12, 10**25


class Key(NamedTuple):
    """What there is to know of a key."""

    kind: str | None = None  # of what it holds, where that is secret
    read: bool = False  # whether it may hold something to be removed, or says what a number under it is
    number: bool = False  # whether it says that a number under it may have to go


class Keys(dict[object, Key]):
    """The keys met so far, because they recur."""

    def __init__(self, names: SecretNames) -> None:
        self._names = names

    def __missing__(self, key: object) -> Key:
        if not isinstance(key, str):
            return _NO_KEY
        sense = sense_of(key)
        known = Key(
            kind=self._names.kind(key),
            read=_HARMLESS.fullmatch(key) is None or sense != Sense(),
            number=sense.phone in ("called", "reached") or sense.card or sense.ssn or sense.national is not None,
        )
        if len(self) >= _MAX_KEYS:
            self.clear()
        if len(key) <= _MAX_KEY_CHARS:
            self[key] = known
        return known


_NO_KEY = Key()


class Document:
    """The strings, keys and large whole numbers of a value, so that one text is searched instead of hundreds.

    `parts` alternates marks and what they stand before; `secret` has the kinds of those whose key tells it.
    """

    def __init__(self, value: Any, keys: Keys, max_depth: int) -> None:
        """DataError where the value is nested deeper than `max_depth`."""
        self.parts: list[str] = []
        self.secret: dict[int, str] = {}
        self._value, self._keys, self._max_depth = value, keys, max_depth
        self._read(value, START, _NO_KEY, max_depth)

    def _read(self, value: Any, mark: str, key: Key, left: int) -> None:
        if isinstance(value, str) or (type(value) is int and _counts(value, key)):
            if key.kind:
                self.secret[len(self.parts) + 1] = key.kind
            self.parts += (mark, str(value))
        elif isinstance(value, dict):
            self._read_dict(value, key, left - 1)
        elif isinstance(value, list | tuple):
            if not left:
                raise self._too_deep()
            for held in value:
                self._read(held, mark, key, left - 1)

    def _read_dict(self, value: dict[Any, Any], outer: Key, left: int) -> None:
        if left < 0:
            raise self._too_deep()
        parts, keys = self.parts, self._keys
        for name, held in value.items():
            key = keys[name]
            mark = START
            if key.read:
                parts += (START, name)
                mark = LINK
            if type(held) is str and not key.kind and not outer.kind:
                parts += (mark, held)
            elif held is not None and type(held) is not float:
                self._read(held, mark, _inner(key, outer, name, value), left)

    def with_parts(self, parts: list[str]) -> Any:
        """The value with these parts; what holds no changed one is the same object as before."""
        return self._rebuild(self._value, iter(parts[1::2]), _NO_KEY)

    def _rebuild(self, value: Any, turn: Iterator[str], key: Key) -> Any:
        if isinstance(value, str) or (type(value) is int and _counts(value, key)):
            new = next(turn)
            return value if new == str(value) else new
        if isinstance(value, dict):
            return self._rebuild_dict(value, turn, key)
        if isinstance(value, list | tuple):
            held = [self._rebuild(each, turn, key) for each in value]
            if all(new is old for new, old in zip(held, value, strict=True)):
                return value
            return tuple(held) if isinstance(value, tuple) else held
        return value

    def _rebuild_dict(self, value: dict[Any, Any], turn: Iterator[str], outer: Key) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        changed = False
        for name, held in value.items():
            key = self._keys[name]
            new_name = next(turn) if key.read else name
            if type(held) is str:
                new = next(turn)
                new = held if new == held else new
            else:
                new = self._rebuild(held, turn, _inner(key, outer, name, value))
            changed = changed or new is not held or new_name != name
            made[_free(made, new_name)] = new
        return made if changed else value

    def _too_deep(self) -> DataError:
        return DataError(
            f"a value is nested deeper than {self._max_depth} levels, which is not redacted and so not kept: "
            "flatten it, or send its inner part as a string of JSON"
        )


def _inner(key: Key, outer: Key, name: str, owner: dict[Any, Any]) -> Key:
    """What is under a secret key is secret too; but a token next to its logprob is a language model's."""
    if key.kind:
        return key if name != "token" or "logprob" not in owner else _NO_KEY
    return key._replace(kind=outer.kind) if outer.kind else key


def _counts(value: int, key: Key) -> bool:
    """Whether a whole number may be a secret, a phone's or an id: cards are long and do not begin as times do."""
    if value >= _MAX_NUMBER:
        return False
    return key.kind is not None or (
        value >= _MIN_NUMBER if key.number else value >= _MIN_CARD and str(value)[0] in "23456"
    )


def _free(made: dict[Any, Any], key: Any) -> Any:
    """Two keys may hold one value in two spellings: the second gets a number."""
    if key not in made:
        return key
    return next(name for number in count(2) if (name := f"{key} ({number})") not in made)
