"""Makes prompts up: of many kinds, in several forms, with none, one or several defects.

It shares no code and no list of words with what reads prompts: templates and phrases are in prompts.yaml, whose last
three of every ten are held out.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

DEFECTS = ("failure", "noise", "vague", "open", "bundle")
"""No word about failures; noise around the task; vague; no limits; several tasks in one."""
HELD_OUT = 0.3
"""Share of the templates and phrases that no policy learns from."""
HOW_MANY = (0.2, 0.35, 0.3, 0.15)
"""Probability of none, one, two and three defects."""
SLOT = re.compile(r"\{(\w+)\}")
SENTENCE = re.compile(r"(?<=[.!?])\s+")

Split = Literal["train", "held out"]


@dataclass(frozen=True, kw_only=True)
class GeneratedPrompt:
    """A prompt, and what is known of it because it was made up."""

    text: str
    kind: str
    defects: frozenset[str]
    noise: tuple[str, ...]  # sentences that do not belong to the task
    needed: tuple[str, ...]  # sentences that do

    @property
    def is_seen(self) -> bool:
        """Whether prompts of this kind are learned from."""
        return self.kind not in _world()["unseen"]


@cache
def _world() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("prompts.yaml").read_text("utf-8"))
    return found


def kinds(*, seen: bool) -> tuple[str, ...]:
    """The kinds that are learned from, or the others."""
    return tuple(kind for kind in _world()["needs"] if (kind in _world()["unseen"]) != seen)


def needs(kind: str) -> Mapping[str, float]:
    """By defect: the gain of mending it, or, if negative, the loss by a mutation that the kind does not want."""
    found: Mapping[str, float] = _world()["needs"][kind]
    return found


def make_prompts(n: int, seed: int, *, split: Split = "train", seen: bool = True) -> list[GeneratedPrompt]:
    """n different prompts; the same seed gives the same. `split` chooses the templates, `seen` the kinds."""
    rng, among = random.Random(f"{seed} {split} {seen}"), kinds(seen=seen)
    found: dict[str, GeneratedPrompt] = {}
    while len(found) < n:
        made = _Writer(rng, rng.choice(among), split).prompt()
        found.setdefault(made.text, made)
    return list(found.values())


class _Writer:
    """Writes one prompt. A slot has the same word wherever it occurs in a prompt."""

    def __init__(self, rng: random.Random, kind: str, split: Split) -> None:
        self.rng, self.kind, self.split = rng, kind, split
        self.manner = _world()["manner"][kind]
        self.words = {slot: rng.choice(words) for slot, words in _world()["words"].items()}

    def prompt(self) -> GeneratedPrompt:
        rng, wanted = self.rng, needs(self.kind)
        possible = [defect for defect in DEFECTS if wanted[defect] > 0]
        many = rng.choices(range(len(HOW_MANY)), HOW_MANY)[0]
        defects = frozenset(rng.sample(possible, many))
        task = [self._pick("vague" if "vague" in defects else "full", self.kind)]
        if "vague" not in defects and rng.random() < 0.5:
            task += self._several("detail", None, 1, 2)
        more = self._several("more", self.manner, 1, 3) if "bundle" in defects else []
        limits = self._several("limits", self.manner, 1, 2) if self._has("open", defects) else []
        failures = self._several("failure", self.manner, 1, 2) if self._has("failure", defects) else []
        noise = self._noise() if "noise" in defects else self._small_talk() if rng.random() < 0.25 else []
        return GeneratedPrompt(
            text=self._arranged(task, more, limits, failures, noise),
            kind=self.kind,
            defects=defects,
            noise=tuple(sentence for part in noise for sentence in SENTENCE.split(part)),
            needed=(*task, *more, *limits, *failures),
        )

    def _has(self, defect: str, defects: frozenset[str]) -> bool:
        """Whether the prompt has what would mend the defect; where a kind does not want it, seldom."""
        return defect not in defects and (needs(self.kind)[defect] > 0 or self.rng.random() < 0.15)

    def _noise(self) -> list[str]:
        """Paragraphs beside the point, some of them pasted several times, with courtesies."""
        pasted = [part for part in self._several("noise", None, 1, 2) for _ in range(self.rng.randint(2, 4))]
        self.rng.shuffle(pasted)
        polite = self._several("courtesy", None, 1, 2)
        return [polite[0], *pasted, *polite[1:]]

    def _small_talk(self) -> list[str]:
        """What many prompts have, and is not worth a change."""
        return self._several(self.rng.choice(("noise", "courtesy")), None, 1, 1)

    def _several(self, bank: str, group: str | None, least: int, most: int) -> list[str]:
        phrases = self._phrases(bank, group)
        return [
            self._filled(text) for text in self.rng.sample(phrases, self.rng.randint(least, min(most, len(phrases))))
        ]

    def _pick(self, bank: str, group: str | None) -> str:
        return self._filled(self.rng.choice(self._phrases(bank, group)))

    def _phrases(self, bank: str, group: str | None) -> Sequence[str]:
        found: Sequence[str] = _world()[bank] if group is None else _world()[bank][group]
        kept = round(len(found) * (1 - HELD_OUT))
        return found[:kept] if self.split == "train" else found[kept:]

    def _filled(self, text: str) -> str:
        return SLOT.sub(lambda slot: str(self.rng.randint(2, 40)) if slot[1] == "n" else self.words[slot[1]], text)

    def _arranged(
        self, task: list[str], more: list[str], limits: list[str], failures: list[str], noise: list[str]
    ) -> str:
        """In one of several forms, noise around the task."""
        rng = self.rng
        before = noise[: rng.randint(0, len(noise))]
        after = noise[len(before) :]
        rules = [*limits, *failures]
        rng.shuffle(rules)
        form = rng.choice(("paragraph", "paragraph", "lines", "list", "sections"))
        if form == "paragraph":
            body = [" ".join([*task, *more, *rules])]
        elif form == "lines":
            body = [" ".join(task), *more, *rules]
        else:
            body = [" ".join([*task, *more])]
            listed = "\n".join(f"- {rule}" for rule in rules)
            if form == "list":
                body += [listed] if rules else []
            else:
                body = ["## Task", *body, *(["## Please mind", listed] if rules else [])]
        return "\n\n".join([*before, *body, *after])


def remaining(text: str, sentences: Sequence[str]) -> float:
    """Share of the characters of these sentences, each as often as it is given, that is in a text; 0 without any."""
    flat, total = " ".join(text.split()), sum(len(sentence) for sentence in sentences)
    left = sum(len(s) * min(many, flat.count(s)) for s, many in Counter(sentences).items())
    return left / total if total else 0.0


def iterate_texts() -> Iterator[str]:
    """Every template and phrase, for tests that compare them with what reads prompts."""
    for bank in ("full", "vague", "limits", "failure", "more"):
        for texts in _world()[bank].values():
            yield from texts
    yield from (*_world()["noise"], *_world()["courtesy"], *_world()["detail"])
