"""An option that appears later: expected by its description, then learned from its outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from etude.contracts.option import Option
from etude.problems.choice.fit import continue_choice, fit_choice
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.rows import Row, Rows
from etude.problems.choice.settings import ChoiceConfig
from etude.text.ngrams import NGramEncoder

KINDS = ("maths", "poems", "code")
OPTIONS = (
    Option(name="prover", description="step by step maths and proofs", numbers={"usd_per_call": 2.0}),
    Option(name="bard", description="poems, songs and stories", numbers={"usd_per_call": 0.5}),
    Option(name="coder", description="writes and repairs programs", numbers={"usd_per_call": 1.0}),
)
NEW = Option(name="coder-2", description="writes and repairs programs well", numbers={"usd_per_call": 1.0})
SCORES = {"prover": (0.9, 0.3, 0.6), "bard": (0.2, 0.9, 0.2), "coder": (0.5, 0.2, 0.8), "coder-2": (0.5, 0.2, 0.95)}
COSTS = {"prover": 2.0, "bard": 0.5, "coder": 1.0, "coder-2": 0.9}


def outcome(name: str, kind: int, rng: np.random.Generator) -> dict[str, float]:
    return {"score": SCORES[name][kind] + float(rng.normal(0, 0.05)), "cost_usd": COSTS[name]}


def past(n: int, rng: np.random.Generator) -> Rows:
    chosen = rng.integers(0, len(KINDS), n).tolist()
    names = [option.name for option in OPTIONS]
    rows = [
        Row(context={"kind": KINDS[k]}, outcomes={name: outcome(name, k, rng) for name in names}, group=str(i))
        for i, k in enumerate(chosen)
    ]
    return lambda: iter([rows])


def tried(n: int, rng: np.random.Generator) -> Rows:
    """The new option alone, where it is tried: for code with probability .5, else .02."""
    rows = []
    for i, k in enumerate(rng.integers(0, len(KINDS), n).tolist()):
        propensity = 0.5 if KINDS[k] == "code" else 0.02
        new = rng.random() < propensity
        name, share = ("coder-2", propensity) if new else (("prover", "bard", "coder")[k], 1 - propensity)
        row = Row(
            context={"kind": KINDS[k]}, outcomes={name: outcome(name, k, rng)}, propensity=share, group=f"later {i}"
        )
        rows.append(row)

    def parts() -> Iterator[list[Row]]:
        yield rows[: n // 2]
        yield rows[n // 2 :]

    return parts


def _described(option: Option) -> dict[str, Any]:
    return {"name": option.name, "description": option.description, **option.numbers}


@pytest.fixture(scope="module")
def model() -> ChoiceModel:
    rows = past(600, np.random.default_rng(0))
    return fit_choice(rows, NGramEncoder(), ChoiceConfig(encoder="ngrams"), options=OPTIONS).model


def test_before_any_outcome_it_is_expected_to_do_what_those_like_it_do(model: ChoiceModel) -> None:
    offered = model.table.offer([_described(option) for option in (*OPTIONS, NEW)], NGramEncoder())
    mix = offered.mix
    names = [*model.table.names]
    assert mix.sum(1) == pytest.approx(np.ones(4))
    assert all(mix[i, names.index(option.name)] == 1 for i, option in enumerate(OPTIONS))
    assert names[int(mix[3].argmax())] == "coder"
    expected = model.expect([{"kind": "code"}, {"kind": "poems"}], offered)
    assert expected.score[0, 3] > expected.score[1, 3] + 0.1
    assert expected.count[3] == 0


def test_few_outcomes_of_one_kind_say_how_it_differs_there(model: ChoiceModel) -> None:
    """Neither rows before it appeared nor kinds where it was hardly tried hide that."""
    later = continue_choice(model, tried(120, np.random.default_rng(1)), ChoiceConfig(), options=[*OPTIONS, NEW]).model
    assert later.table.names[-1] == "coder-2"
    expected = later.expect([{"kind": kind} for kind in KINDS])
    best = [later.table.names[i] for i in expected.score.argmax(1)]
    assert best == ["prover", "bard", "coder-2"]
    assert expected.score[2, 3] == pytest.approx(0.95, abs=0.15)
    assert expected.cost()[2, 3] == pytest.approx(0.9, rel=0.15)
    assert later.best_single == model.best_single


def test_the_same_options_stay_as_they_are(model: ChoiceModel) -> None:
    later = continue_choice(model, past(60, np.random.default_rng(2)), ChoiceConfig(), options=OPTIONS).model
    contexts = [{"kind": kind} for kind in KINDS]
    assert later.expect(contexts).score == pytest.approx(model.expect(contexts).score, abs=0.03)
    assert later.outcomes.parts[0].base == pytest.approx(0)
    assert later.outcomes.sums.since == pytest.approx(np.full(3, 660.0))


def test_a_fit_to_more_rows_than_its_sample_expects_the_same(model: ChoiceModel) -> None:
    config = ChoiceConfig(encoder="ngrams", sample=100)
    trained = fit_choice(past(600, np.random.default_rng(0)), NGramEncoder(), config, options=OPTIONS)
    contexts = [{"kind": kind} for kind in KINDS]
    assert trained.model.expect(contexts).score == pytest.approx(model.expect(contexts).score, abs=0.03)
    assert trained.model.outcomes.sums.since == pytest.approx(np.full(3, 600.0))
    assert trained.held_out is not None
    assert len(trained.held_out[0]) == 100
