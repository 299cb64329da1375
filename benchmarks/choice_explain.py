"""Explanations of choices, tested by what they claim: does removing the named words move the prediction as stated?

    python benchmarks/choice_explain.py ../shared/data/routes/llmrouter       # about a minute

The folder holds `catalogue.json` and `train.jsonl`. A policy is trained on all other queries, and each held-out query
is explained. Then the words that speak for the chosen option are cut out of the text, all at once, the policy is asked
again, and the difference between the two options is compared; the same for the words against it, and for as many words
at random. A query without a named word counts as a failure. The words are found by asking the same policy, so this
tests that what is shown is true of the policy, not that the policy is right.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from results import save
from rich.progress import track

from etude.contracts.decision import DecisionRequest
from etude.problems.choice.explain import Explanation, distinct_words, explain
from etude.problems.choice.fit import fit_choice
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.choice.rows import ReplayFile, Row, find_options
from etude.problems.choice.settings import ChoiceConfig
from etude.text.encoders import make_encoder

SIDES = {"words_for": -1, "words_against": 1}
"""Which way the difference goes when the words are removed."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """One side of one explanation."""

    named: int  # words
    moved: float  # by how much the difference changed when they were removed, positive in the stated direction
    at_random: float  # the same, for as many words at random
    flipped: bool  # another option is chosen without them


def cut(text: str, words: Collection[str]) -> str:
    """The text without these words, as a reader would cut them out."""
    parts = re.split(r"([^\W_]+)", text)
    return "".join("" if part.lower() in words else part for part in parts)


def difference(policy: ChoicePolicy, context: dict[str, Any], why: Explanation) -> tuple[float, bool]:
    """Between the utilities of the two options, and whether another one is chosen."""
    decision = policy.choose(context)
    own, other = (decision.expected[name].utility for name in (why.chosen, why.runner_up))
    assert own is not None
    assert other is not None
    return own - other, decision.action != why.chosen


def check(policy: ChoicePolicy, row: Row, why: Explanation, rng: np.random.Generator) -> dict[str, Tested]:
    context, found = dict(row.context), {}
    before, _ = difference(policy, context, why)
    for side, sign in SIDES.items():
        named = getattr(why, side).effects
        after, flipped = difference(policy, context | {"text": cut(context["text"], named)}, why)
        words = distinct_words(policy.model, context)
        some = set(rng.choice(words, min(len(words), len(named)), replace=False).tolist())
        random, _ = difference(policy, context | {"text": cut(context["text"], some)}, why)
        found[side] = Tested(
            named=len(named), moved=sign * (after - before), at_random=sign * (random - before), flipped=flipped
        )
    return found


def train(folder: Path, queries: int, encoder: str) -> tuple[ChoicePolicy, list[Row]]:
    """A policy, and the queries that it has not seen."""
    path = folder / "train.jsonl"
    options = find_options(path, None)
    rows = [row for part in ReplayFile(path, options)() for row in part]
    held_out = set(np.random.default_rng(0).choice(len(rows), queries, replace=False).tolist())
    rest = [row for i, row in enumerate(rows) if i not in held_out]

    def parts() -> Iterator[list[Row]]:
        yield rest

    trained = fit_choice(parts, make_encoder(encoder), ChoiceConfig(), options=options)
    policy = ChoicePolicy(model=trained.model, config=ChoiceConfig(), artefact_version="benchmark")
    return policy, [rows[i] for i in sorted(held_out)]


def summary(tested: list[Tested]) -> dict[str, float]:
    return {
        "as_stated": float(np.mean([t.named > 0 and t.moved > 0 for t in tested])),
        "as_stated_at_random": float(np.mean([t.named > 0 and t.at_random > 0 for t in tested])),
        "named": float(np.mean([t.named > 0 for t in tested])),
        "words": float(np.mean([t.named for t in tested])),
        "mean_change": float(np.mean([t.moved for t in tested])),
        "mean_change_at_random": float(np.mean([t.at_random for t in tested])),
        "another_option_chosen": float(np.mean([t.flipped for t in tested])),
    }


def main(given: Sequence[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--queries", type=int, default=200)
    arguments.add_argument("--encoder", default="fast")
    options = arguments.parse_args(given)
    policy, rows = train(options.folder, options.queries, options.encoder)
    rng, seconds, tested = np.random.default_rng(1), [], []
    for row in track(rows, description="explaining"):
        started, chosen = time.perf_counter(), policy.choose(row.context).action
        why = explain(policy, DecisionRequest(context=row.context), chosen)
        seconds.append(time.perf_counter() - started)
        assert why is not None
        tested.append(check(policy, row, why, rng))
    values = {side: summary([one[side] for one in tested]) for side in SIDES}
    for side, row_ in values.items():
        print(
            f"{side}: removing {row_['words']:.1f} words moves the difference as stated in {row_['as_stated']:.1%} of "
            f"{len(tested)} queries, as many words at random in {row_['as_stated_at_random']:.1%}"
        )
    print(f"seconds per explanation: median {np.median(seconds):.2f}, maximum {max(seconds):.2f}")
    setting = {"queries": len(tested), "encoder": options.encoder, "seconds_median": float(np.median(seconds))}
    save("choice_explain", setting | values)


if __name__ == "__main__":
    main()
