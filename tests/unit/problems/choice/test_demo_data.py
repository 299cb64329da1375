"""The made-up world of the demo."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import mean

from etude.problems.choice.demo_data import SLOT, described, described_new, kinds, make_rows, options
from etude.problems.choice.rows import KINDS


def test_queries_differ_and_the_same_seed_gives_the_same() -> None:
    rows = make_rows(400, 3)
    assert len({row.text for row in rows}) == 400
    assert make_rows(400, 3) == rows
    assert make_rows(400, 4) != rows
    assert set(Counter(row.kind for row in rows)) == set(kinds())
    assert not [row.text for row in rows if SLOT.search(row.text)]


def test_every_model_has_an_outcome_and_no_skill_is_shown() -> None:
    names = [model["name"] for model in [*described(), described_new()]]
    for row in make_rows(50, 0):
        assert list(row.outcomes) == names
        for outcome in row.outcomes.values():
            assert set(outcome) <= set(KINDS)
            assert 0 <= outcome["score"] <= 1
            assert outcome["cost_usd"] > 0
    assert all(option.description and option.numbers["usd_per_mtok_out"] > 0 for option in options())
    assert not any("skill" in model for model in [*described(), described_new()])


def test_no_model_is_best_for_every_kind() -> None:
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in make_rows(800, 0):
        for option in options():
            scores[row.kind][option.name].append(row.outcomes[option.name]["score"])
    best = {kind: max(found, key=lambda name: mean(found[name])) for kind, found in scores.items()}
    assert len(set(best.values())) >= 4
    assert best["maths"] == "theorem-r"
    assert best["law"] == "atlas-pro"
