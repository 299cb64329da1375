"""The made-up world of the demo: queries of several kinds in, the score, cost and latency of every model out.

All outcomes are simulated: a model has a hidden skill for each kind of query and loses some of it where a query is
difficult. Kinds, skills and difficulties are in demo_world.yaml; a policy sees none of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from etude.contracts.option import Option, read_options

CHARS_PER_TOKEN = 4
FIRST_TOKEN_MS = 250
SPREAD, SHARED = 0.10, 0.06
"""Standard deviations of a score: of one answer, and of what all answers to a query share."""
HIDDEN = ("verbosity", "effort", "skill")
SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query with the simulated outcomes of all models, the new one included."""

    text: str
    kind: str
    outcomes: Mapping[str, Mapping[str, float]]  # by model: score, cost_usd, latency_ms

    def row(self, *models: str) -> dict[str, Any]:
        """A line of a replay file with the outcomes of these models."""
        return {"context": self.text, "outcomes": {name: self.outcomes[name] for name in models}}


@cache
def _world() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("demo_world.yaml").read_text("utf-8"))
    return found


def kinds() -> tuple[str, ...]:
    return tuple(_world()["kinds"])


def described() -> list[dict[str, Any]]:
    """The models as a file of options describes them."""
    return [_described(model) for model in _world()["models"]]


def described_new() -> dict[str, Any]:
    """The model that appears later."""
    return _described(_world()["new_model"])


def options() -> tuple[Option, ...]:
    return read_options(described())


def _described(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in HIDDEN}


def make_rows(n: int, seed: int) -> list[Query]:
    """n different queries with their outcomes; the same seed gives the same."""
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    found: dict[str, Query] = {}
    while len(found) < n:
        kind = rng.choice(kinds())
        difficulty, text = _text(kind, rng)
        if text not in found:
            found[text] = Query(text=text, kind=kind, outcomes=_outcomes(kind, difficulty, len(text), noise))
    return list(found.values())


def _text(kind: str, rng: random.Random) -> tuple[float, str]:
    about = _world()["kinds"][kind]
    difficulty = rng.choice(sorted(about["templates"]))
    text = rng.choice(about["templates"][difficulty])
    while SLOT.search(text):  # a word may have slots of its own
        text = SLOT.sub(lambda slot: _word(slot[1], about["words"], rng), text)
    return float(difficulty), text


def _word(slot: str, words: Mapping[str, list[str]], rng: random.Random) -> str:
    return str(rng.randint(2, 99)) if slot == "n" else str(rng.choice(words[slot]))


def _outcomes(kind: str, difficulty: float, chars: int, noise: np.random.Generator) -> dict[str, dict[str, float]]:
    models, usual = [*_world()["models"], _world()["new_model"]], _world()["kinds"][kind]["tokens"]
    shared, found = noise.normal(0, SHARED), {}
    for model in models:
        score = model["skill"][kind] - model["effort"] * (difficulty - 0.4) + shared + noise.normal(0, SPREAD)
        tokens = usual * model["verbosity"] * (0.6 + difficulty) * noise.lognormal(0, 0.3)
        price = model["usd_per_mtok_in"] * chars / CHARS_PER_TOKEN + model["usd_per_mtok_out"] * tokens
        found[model["name"]] = {
            "score": round(float(np.clip(score, 0, 1)), 3),
            "cost_usd": round(price / 1e6, 8),
            "latency_ms": round(FIRST_TOKEN_MS + 1000 * tokens / model["tokens_per_second"], 1),
        }
    return found
