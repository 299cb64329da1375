"""Edits of a text with their positions, and a mutated prompt that can be reverted by them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from etude.problems.prompt.mutations.prompts import Prompt, all_texts, replaced


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A place of the original where something was removed, added, or both."""

    start: int
    """Position in the original text, in characters."""
    removed: str = ""
    added: str = ""
    message: int | None = None
    """Number of the chat message; None in a plain text."""
    part: int | None = None
    """Number of the part of that message's content; None where the content is a text."""

    @property
    def end(self) -> int:
        return self.start + len(self.removed)


@dataclass(frozen=True, kw_only=True)
class Mutated:
    """A prompt after a mutation. `prompt` has the shape of the input."""

    prompt: Prompt
    mutation: str
    edits: tuple[Edit, ...] = ()
    """In order of their positions; they never overlap."""
    reason: str | None = None
    """Why nothing was changed, or why a language model's result was not used."""
    by: str = "rules"
    """Who carried it out: `rules`, or the name of a language model."""

    @property
    def changed(self) -> bool:
        return bool(self.edits)

    def revert(self) -> Prompt:
        """The prompt before the mutation, exactly."""
        return _each_text(self.prompt, self.edits, backward)

    def diff(self) -> str:
        """A unified diff from the prompt before the mutation to the one after it; empty where nothing changed."""
        before, after = all_texts(self.revert()), all_texts(self.prompt)
        return "".join(
            _unified(old.text, new.text, "prompt" if new.message is None else f"message {new.message} ({new.role})")
            for old, new in zip(before, after, strict=True)
            if old.text != new.text
        )


def forward(text: str, edits: Sequence[Edit]) -> str:
    """The text with edits applied."""
    found, at = [], 0
    for edit in edits:
        found += [text[at : edit.start], edit.added]
        at = edit.end
    return "".join((*found, text[at:]))


def backward(text: str, edits: Sequence[Edit]) -> str:
    """The text before edits were applied."""
    found, at, shift = [], 0, 0
    for edit in edits:
        start = edit.start + shift
        found += [text[at:start], edit.removed]
        at = start + len(edit.added)
        shift += len(edit.added) - len(edit.removed)
    return "".join((*found, text[at:]))


class Pieces:
    """A text under several rounds of edits: which parts of the original are left, and what was added between them."""

    def __init__(self, text: str) -> None:
        self.original = text
        self._pieces: list[tuple[int, int, str]] = [(0, len(text), "")]

    @property
    def text(self) -> str:
        return "".join(added or self.original[start:end] for start, end, added in self._pieces)

    def apply(self, edits: Sequence[Edit]) -> None:
        """Edits of the text as it is now, in order, none overlapping another."""
        found: list[tuple[int, int, str]] = []
        pieces, at = self._pieces[::-1], 0  # from the last to the first, so that the next one is at the end
        for edit in edits:
            _move(pieces, edit.start - at, found)
            _move(pieces, len(edit.removed), [])
            if edit.added:
                found.append((0, 0, edit.added))
            at = edit.end
        self._pieces = [*found, *reversed(pieces)]

    def edits(self, *, message: int | None, part: int | None) -> tuple[Edit, ...]:
        """The difference from the original."""
        found, at, added = [], 0, ""
        for start, end, new in (*self._pieces, (len(self.original), len(self.original), "")):
            if new:
                added += new
                continue
            if start > at or added:
                removed = self.original[at:start]
                found.append(Edit(start=at, removed=removed, added=added, message=message, part=part))
            at, added = end, ""
        return tuple(found)


def _move(pieces: list[tuple[int, int, str]], length: int, to: list[tuple[int, int, str]]) -> None:
    """That many characters, from the end of a list of pieces in reverse to another list."""
    while length > 0 and pieces:
        start, end, added = pieces.pop()
        size = len(added) or end - start
        if size > length:
            first, rest = (
                ((0, 0, added[:length]), (0, 0, added[length:]))
                if added
                else ((start, start + length, ""), (start + length, end, ""))
            )
            to.append(first)
            pieces.append(rest)
            return
        to.append((start, end, added))
        length -= size


def mutated(prompt: Prompt, mutation: str, edits: Iterable[Edit]) -> Mutated:
    """The prompt with edits applied."""
    ordered = tuple(edits)
    return Mutated(prompt=_each_text(prompt, ordered, forward), mutation=mutation, edits=ordered)


def _each_text(prompt: Prompt, edits: Sequence[Edit], apply: Callable[[str, Sequence[Edit]], str]) -> Prompt:
    by_place: dict[tuple[int | None, int | None], list[Edit]] = {}
    for edit in edits:
        by_place.setdefault((edit.message, edit.part), []).append(edit)
    if not by_place:
        return prompt
    changed = {
        (each.message, each.part): apply(each.text, by_place[each.message, each.part])
        for each in all_texts(prompt)
        if (each.message, each.part) in by_place
    }
    return replaced(prompt, changed)


def _unified(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(_lines(before), _lines(after), f"{name}, before", f"{name}, after")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.split("\n")[:-1]] + ([last] if (last := text.split("\n")[-1]) else [])
