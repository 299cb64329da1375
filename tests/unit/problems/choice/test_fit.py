"""Fitting choices: from a sample or all rows, in one process or several, faded, continued, from partial outcomes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from etude.contracts.errors import DataError
from etude.contracts.option import Option
from etude.learning.outcome_model import MAX_WEIGHT
from etude.problems.choice import fit as module
from etude.problems.choice.fit import _line, _sample, _shares, continue_choice, eligible_mask, fit_choice, observe
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.choice.rows import Row, Rows
from etude.problems.choice.settings import ChoiceConfig
from etude.text.ngrams import NGramEncoder

TIERS = ("gold", "basic", "trial")
RIGHT = {"gold": "a", "basic": "b", "trial": "c"}
CONFIG, WHOLE = ChoiceConfig(sample=100), ChoiceConfig()


def make_row(rng: random.Random, *, right: dict[str, str] = RIGHT, names: Sequence[str] = "abc", **more: Any) -> Row:
    """The right option of a tier succeeds in 90 %, the others in 30 %."""
    tier = rng.choice(TIERS)
    outcomes = {
        name: {"score": float(rng.random() < (0.9 if right[tier] == name else 0.3)), "cost_usd": 1.0 + ord(name) - 97}
        for name in names
    }
    return Row(context={"tier": tier, "size": rng.random()}, outcomes=outcomes, group=str(rng.random()), **more)


def make_rows(count: int, *, seed: int = 0, **more: Any) -> list[Row]:
    rng = random.Random(seed)
    return [make_row(rng, **more) for _ in range(count)]


def parts(rows: Sequence[Row], size: int = 1000) -> Rows:
    def read() -> Iterator[list[Row]]:
        for start in range(0, len(rows), size):
            yield list(rows[start : start + size])

    return read


def fit(rows: Sequence[Row] | Rows, config: ChoiceConfig = WHOLE, **more: Any) -> module.Trained:
    return fit_choice(rows if callable(rows) else parts(rows), NGramEncoder(), config, **more)


def chosen(model: ChoiceModel) -> dict[str, str]:
    policy = ChoicePolicy(model=model, config=ChoiceConfig(), artefact_version="v")
    return {tier: policy.choose({"tier": tier, "size": 0.5}).action for tier in TIERS}


def scores(model: ChoiceModel) -> Any:
    return model.expect([{"tier": tier, "size": 0.5} for tier in TIERS]).score


# All outcomes known


def test_what_suits_each_context_is_learned() -> None:
    trained = fit(make_rows(400))
    model = trained.model
    assert chosen(model) == RIGHT
    assert trained.rows == 400
    assert trained.value == pytest.approx(0.9, abs=0.06)
    assert trained.plain_value == pytest.approx(0.5, abs=0.08)
    assert trained.z > 5
    assert trained.remarks == ()
    assert model.kinds == ("score", "cost_usd")
    means = {name: np.mean([row.outcomes[name]["score"] for row in make_rows(400)]) for name in "abc"}
    assert model.best_single == max(means, key=lambda name: means[name])
    assert model.unit_usd == pytest.approx(1.0 + "abc".index(model.best_single))
    assert model.frontier.score[0] == pytest.approx(trained.value, abs=0.02)
    assert model.frontier.cost_usd[-1] == pytest.approx(1.0)  # cost alone: always a
    assert model.memory.total == 400


def test_progress_is_reported() -> None:
    seen = list[float]()
    fit(make_rows(300), CONFIG, report=seen.append)
    assert seen == sorted(seen)
    assert seen[0] > 0
    assert seen[-1] == 1.0


def test_the_same_rows_and_seed_give_the_same_model() -> None:
    rows = make_rows(250)
    first, again = (fit(rows, CONFIG, seed=3).model.tensors() for _ in range(2))
    assert all((first[name] == again[name]).all() for name in first)
    other = fit(rows, CONFIG, seed=4).model
    assert other.memory.sources is not None
    assert not np.array_equal(other.tensors()["reader.mean"], first["reader.mean"])  # another sample


def test_one_option_is_no_choice() -> None:
    with pytest.raises(DataError, match="there is one option, 'a': a choice needs at least two"):
        fit(make_rows(10, names="a"))


def test_options_that_never_occur_are_new_ones_later() -> None:
    described = (Option(name="b", description="the second"), Option(name="z", description="never tried"))
    model = fit(make_rows(60), options=described).model
    assert [(option.name, option.description) for option in model.table.options] == [
        ("a", ""),
        ("b", "the second"),
        ("c", ""),
    ]


# More rows than the sample


def test_all_rows_are_learned_from_although_a_sample_is_looked_at() -> None:
    rows = make_rows(3000)
    small, whole = fit(rows, CONFIG).model, fit(rows, ChoiceConfig(sample=20_000)).model
    assert small.outcomes.sums.rows == 3000
    assert small.outcomes.parts[0].mean == pytest.approx(whole.outcomes.parts[0].mean, abs=0.05)
    assert small.outcomes.parts[0].count == pytest.approx(np.full(3, 3000))
    assert scores(small) == pytest.approx(scores(whole), abs=0.05)
    first = fit(rows[:100], CONFIG).model  # as many as the sample
    truth = np.where(np.eye(3, dtype=bool), 0.9, 0.3)
    assert np.abs(scores(small) - truth).max() < 0.06
    assert np.abs(scores(first) - truth).max() > np.abs(scores(small) - truth).max()


def test_the_size_of_parts_does_not_matter() -> None:
    rows = make_rows(900)
    models = [fit(parts(rows, size), CONFIG).model for size in (900, 37)]
    assert scores(models[0]) == pytest.approx(scores(models[1]), abs=1e-4)
    for name in ("gram", "own", "total"):
        first, second = (getattr(model.outcomes.sums, name) for model in models)
        assert first == pytest.approx(second, rel=1e-4, abs=1e-2)


def test_several_processes_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(2000)
    alone = fit(parts(rows, 100), CONFIG).model.tensors()
    monkeypatch.setattr(module, "MIN_ROWS_FOR_PROCESSES", 10)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    pools = list[int]()
    whole = module.ProcessPoolExecutor

    def counted(workers: int, **more: Any) -> Any:
        pools.append(workers)
        return whole(workers, **more)

    monkeypatch.setattr(module, "ProcessPoolExecutor", counted)
    together = fit(parts(rows, 100), CONFIG).model.tensors()
    assert pools == [3]
    assert alone.keys() == together.keys()
    for name, x in alone.items():
        assert (x == together[name]).all(), name
    assert module._adding is None


def test_a_part_that_cannot_be_read_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_ROWS_FOR_PROCESSES", 10)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    reads = 0

    def broken() -> Iterator[list[Row]]:
        nonlocal reads
        reads += 1
        yield make_rows(200)
        if reads == 2:
            raise DataError("the disk is gone")

    with pytest.raises(DataError, match="the disk is gone"):
        fit(broken, CONFIG)
    assert module._adding is None


def test_a_sample_is_uniform_and_in_the_order_of_time() -> None:
    rows = [Row(context={}, outcomes={"a": {"score": 0.0}}, source=str(i)) for i in range(2000)]
    taken, total, offered = _sample(parts(rows, 300), 400, 0)
    at = [int(row.source) for row in taken]
    assert (len(at), len(set(at)), total, list(offered)) == (400, 400, 2000, ["a"])
    assert at == sorted(at)
    assert np.mean(at) == pytest.approx(1000, abs=100)
    assert np.histogram(at, 4)[0] == pytest.approx(np.full(4, 100), abs=35)
    assert len(_sample(parts(rows[:50]), 400, 0)[0]) == 50


# Fading

TURNED = {"gold": "c", "basic": "a", "trial": "b"}


@pytest.mark.parametrize("sample", [20_000, 100])
def test_a_change_of_the_world_is_followed_if_rows_fade(sample: int) -> None:
    rows = make_rows(1500) + make_rows(500, seed=1, right=TURNED)
    still = fit(parts(rows, 100), ChoiceConfig(sample=sample)).model
    faded = fit(parts(rows, 100), ChoiceConfig(sample=sample, half_life_rows=150)).model
    assert chosen(still) == RIGHT
    assert chosen(faded) == TURNED
    assert faded.outcomes.sums.rows == pytest.approx(150 / np.log(2), rel=0.4)


def test_a_continued_choice_follows_a_change_too() -> None:
    before = fit(make_rows(1500)).model
    later = parts(make_rows(500, seed=1, right=TURNED), 50)
    assert chosen(continue_choice(before, later, ChoiceConfig()).model) == RIGHT
    assert chosen(continue_choice(before, later, ChoiceConfig(half_life_rows=100)).model) == TURNED


# Continuing


def test_continuing_adds_rows() -> None:
    rows = make_rows(1600)
    first, whole = fit(rows[:400]).model, fit(rows).model
    trained = continue_choice(first, parts(rows[400:]), ChoiceConfig())
    assert trained.rows == 1200
    assert np.isnan(trained.value)
    model = trained.model
    assert model.outcomes.sums.rows == 1600
    assert model.outcomes.parts[0].mean == pytest.approx(whole.outcomes.parts[0].mean, abs=0.01)
    assert scores(model) == pytest.approx(scores(whole), abs=0.08)
    errors = [m.outcomes.standard_error(m.reader([{"tier": "gold"}])).mean() for m in (first, model)]
    assert errors[1] < errors[0]
    assert first.outcomes.sums.rows == 400  # it is not changed


def test_a_new_option_is_learned_about_when_it_is_tried() -> None:
    first = fit(make_rows(400)).model
    best = dict.fromkeys(TIERS, "d")
    later = make_rows(600, seed=2, right=best, names="abcd")
    model = continue_choice(
        first, parts(later, 100), ChoiceConfig(), options=[Option(name="d", description="new")]
    ).model
    assert model.table.names == ("a", "b", "c", "d")
    assert model.table.options[3].description == "new"
    assert model.outcomes.parts[0].count == pytest.approx([1000, 1000, 1000, 600])
    assert model.outcomes.parts[0].mean[3] == pytest.approx(0.9, abs=0.05)
    assert model.best_single == "d"
    assert set(chosen(model).values()) == {"d"}
    cost = model.expect([{"tier": "gold"}]).cost()[0]
    assert np.isfinite(cost).all()
    again = continue_choice(model, parts(later), ChoiceConfig()).model
    assert again.table.names == model.table.names


def test_what_a_new_option_costs_is_learned_from_its_own_rows() -> None:
    """`gold` costs far more than any known option, `dust` far less; `wordy` grows with the text."""
    rng, texts = random.Random(0), ["word " * length for length in range(1, 41)]

    def make(names: dict[str, float]) -> list[Row]:
        rows = []
        for i, text in enumerate(texts * 3):
            outcomes = {n: {"score": float(rng.random() < 0.5), "cost_usd": c} for n, c in names.items()}
            if "gold" in names:
                outcomes["wordy"] = {"score": 0.0, "cost_usd": 0.5 * len(text)}
            rows.append(Row(context={"text": text}, outcomes=outcomes, group=str(i)))
        return rows

    known = {"a": 0.01, "b": 0.001}
    model = continue_choice(
        fit(make(known)).model, parts(make({**known, "gold": 2.0, "dust": 1e-7}), 30), ChoiceConfig()
    ).model
    for text in ("word " * 2, "word " * 30):
        costs = dict(zip(model.table.names, model.expect([{"text": text}]).cost()[0].tolist(), strict=True))
        assert costs == pytest.approx(
            {"a": 0.01, "b": 0.001, "gold": 2.0, "dust": 1e-7, "wordy": 0.5 * len(text)}, rel=0.1
        )
    again = continue_choice(model, parts(make({**known, "gold": 2.0, "dust": 1e-7})), ChoiceConfig()).model
    assert again.lines["cost_usd"] == pytest.approx(model.lines["cost_usd"])


@pytest.mark.parametrize("way", ["fitted", "sampled", "continued"])
def test_past_costs_count_at_the_prices_of_now(way: str) -> None:
    """`a` costs its list price, which doubles; `b` stays; what has no list price is taken as it is."""

    def offer(price: float) -> tuple[Option, ...]:
        return (Option(name="a", numbers={"usd_per_call": price}), Option(name="b", numbers={"usd_per_call": 1.0}))

    def make(price: float, seed: int) -> list[Row]:
        rng, rows = random.Random(seed), []
        for i in range(300):
            name = rng.choice("ab")
            outcome = {"score": float(rng.random() < 0.5), "cost_usd": price if name == "a" else 1.0}
            context = {"tier": rng.choice(TIERS)}
            rows.append(
                Row(context=context, outcomes={name: outcome}, propensity=0.5, options=offer(price), group=f"{seed}{i}")
            )
        return rows

    before, after = make(1.0, 0), make(2.0, 1)
    if way == "continued":
        model = continue_choice(fit(before).model, parts(after, 100), ChoiceConfig()).model
    else:
        model = fit(before + after, WHOLE if way == "fitted" else CONFIG).model
    for price in (1.0, 2.0, 6.0):
        offered = model.table.offer(
            [{"name": "a", "usd_per_call": price}, {"name": "b", "usd_per_call": 1.0}], NGramEncoder()
        )
        assert model.expect([{"tier": "gold"}], offered).cost()[0] == pytest.approx([price, 1.0], rel=0.02)


def test_costs_that_the_earlier_policy_does_not_know_are_not_dropped_silently() -> None:
    rows = make_rows(60)
    without = [replace(row, outcomes={name: {"score": o["score"]} for name, o in row.outcomes.items()}) for row in rows]
    first = fit(without).model
    trained = continue_choice(first, parts(rows), ChoiceConfig())
    assert trained.model.kinds == ("score",)
    (remark,) = trained.remarks
    assert "has not learned cost_usd" in remark
    assert continue_choice(first, parts(without), ChoiceConfig()).remarks == ()


# Few outcomes


def test_one_lucky_outcome_does_not_win() -> None:
    one_good = Row(context={"tier": "gold", "size": 0.5}, outcomes={"rare": {"score": 1.0, "cost_usd": 0.1}}, group="x")
    trained = fit([*make_rows(300), one_good])
    model = trained.model
    assert chosen(model) == RIGHT
    assert model.best_single != "rare"
    assert 0.7 < trained.value <= 1
    assert trained.plain_value < 0.6
    assert any("Fewer than 10 outcomes are known of rare (1)" in remark for remark in trained.remarks)
    assert trained.held_out is not None
    taken, expected = trained.held_out
    picks = expected.careful(expected.utility(1.0, 1.0), 1.0).argmax(1)
    assert "rare" not in {model.table.names[pick] for pick in picks}
    assert len(taken) == 301
    later = continue_choice(fit(make_rows(300)).model, parts([*make_rows(50, seed=1), one_good]), ChoiceConfig())
    assert chosen(later.model) == RIGHT
    assert later.model.best_single != "rare"
    assert any("rare (1)" in remark for remark in later.remarks)


@pytest.mark.parametrize("seed", [1, 7])
def test_values_are_within_the_scores_that_occur(seed: int) -> None:
    """Nearly all choices score 1, and outcomes are weighted by propensities: some estimates are above 1."""
    rng, rows = random.Random(seed), []
    for i in range(60):
        odd = bool(i % 2)
        p = {"a": 0.3, "b": 0.7} if odd else {"a": 0.7, "b": 0.3}
        (name,) = rng.choices(list(p), list(p.values()))
        outcome = {"score": float((name == "a") == odd) if rng.random() < 0.9 else 0.0}
        context = {"tier": "odd" if odd else "even"}
        rows.append(Row(context=context, outcomes={name: outcome}, propensity=p[name], group=str(i)))
    trained = fit(rows)
    assert 0.4 < trained.plain_value < trained.value <= 1


@pytest.mark.parametrize("count", [1, 2, 9])
def test_too_few_rows_cannot_be_judged(count: int) -> None:
    trained = fit(make_rows(count))
    assert all(np.isnan(x) for x in (trained.value, trained.plain_value, trained.z))
    (remark,) = trained.remarks
    assert "cannot be judged by cross-validation: that needs at least 10 rows" in remark
    assert fit(make_rows(10)).value >= 0


def test_rows_of_one_context_cannot_be_judged() -> None:
    rows = [replace(row, context={"tier": "gold"}, group="gold") for row in make_rows(40)]
    trained = fit(rows)
    assert np.isnan(trained.value)
    assert any("more than one context" in remark for remark in trained.remarks)


def test_options_that_come_or_go_are_named_with_their_lines() -> None:
    rows = make_rows(60, names="ab") + make_rows(60, names="bc")
    rows = [replace(row, source=f"line {i + 1}") for i, row in enumerate(rows)]
    (remark,) = [one for one in fit(parts(rows, 50)).remarks if "change" in one]
    assert remark.endswith("These occur: a not after line 60; c not before line 61.")


# Partial outcomes


def sampled_rows(count: int, *, seed: int = 0, with_propensity: bool = True) -> list[Row]:
    """Option `a` is tried in 80 % of gold rows and seldom in others; only what was tried is known."""
    rng, found = random.Random(seed), []
    for row in make_rows(count, seed=seed):
        p = {"a": 0.8, "b": 0.1, "c": 0.1} if row.context["tier"] == "gold" else {"a": 0.1, "b": 0.45, "c": 0.45}
        (name,) = rng.choices(list(p), list(p.values()))
        offered = tuple(Option(name=one) for one in "abc")
        found.append(
            replace(
                row,
                outcomes={name: row.outcomes[name]},
                propensity=p[name] if with_propensity else None,
                options=offered,
            )
        )
    return found


@pytest.mark.parametrize("config", [ChoiceConfig(), ChoiceConfig(sample=300)])
def test_logged_choices_with_propensities_are_enough(config: ChoiceConfig) -> None:
    trained = fit(sampled_rows(3000), config)
    assert chosen(trained.model) == RIGHT
    assert trained.model.outcomes.parts[0].mean == pytest.approx(np.full(3, 0.5), abs=0.06)  # corrected
    naive = np.mean([row.outcomes["a"]["score"] for row in sampled_rows(3000) if "a" in row.outcomes])
    assert naive > 0.65
    assert trained.remarks == ()
    assert trained.value == pytest.approx(0.9, abs=0.12)


def test_partial_outcomes_without_propensities_are_remarked_on() -> None:
    (remark,) = fit(sampled_rows(300, with_propensity=False)).remarks
    assert "Not every option has an outcome in every row" in remark
    assert "no propensities" in remark


def test_propensities_that_do_not_fit_are_remarked_on() -> None:
    halved = [replace(row, propensity=(row.propensity or 1) / 2) for row in sampled_rows(600)]
    (remark,) = fit(halved).remarks
    assert "The propensities do not fit: for a policy that always chooses " in remark
    (remark,) = continue_choice(fit(sampled_rows(600)).model, parts(halved), ChoiceConfig()).remarks
    assert "The propensities do not fit" in remark
    (remark,) = fit([replace(row, propensity=1.0) for row in sampled_rows(600)]).remarks
    assert "All propensities are 1: nothing was explored" in remark


def test_rows_to_arrays() -> None:
    rows = [
        Row(context={}, outcomes={"a": {"score": 1.0}}, propensity=0.25, options=(Option(name="a"), Option(name="c"))),
        Row(context={}, outcomes={"a": {"score": 2.0, "cost_usd": 5.0}, "b": {"score": 3.0}, "z": {"score": 9.0}}),
        Row(context={}, outcomes={"b": {"score": 4.0}}, propensity=0.001),
        Row(context={}, outcomes={"b": {"score": 6.0}}),
    ]
    place = {"a": 0, "b": 1, "c": 2}
    shares = _shares(rows, place)
    assert shares == pytest.approx([0.5, 1.0, 0.001])  # of the two rows without propensities
    seen = observe(rows, place, ("score", "cost_usd"), shares)
    assert seen.row.tolist() == [0, 1, 1, 2, 3]
    assert seen.option.tolist() == [0, 0, 1, 1, 1]
    assert seen.value[:, 0].tolist() == [1, 2, 3, 4, 6]
    assert seen.kind(1).value.tolist() == [5]
    assert seen.weight == pytest.approx([4, 2, 1, MAX_WEIGHT, 1])
    mask = eligible_mask(rows, place)
    assert mask is not None
    assert mask.tolist() == [[True, False, True], [True] * 3, [True] * 3, [True] * 3]
    assert eligible_mask(rows[1:], place) is None


# Costs


def test_costs_grow_with_the_text() -> None:
    """`a` costs 2 and 0.5 per character, `b` 10 whatever the text, `c` falls, which is noise."""
    rng, length = np.random.default_rng(0), np.arange(10.0, 60.0)
    costs = np.stack([2 + 0.5 * length, np.full(50, 10.0), 20 - 0.1 * length], 1) + 0.01 * rng.normal(size=(50, 3))
    rows = [
        Row(context={}, outcomes={name: {"score": 0.0, "cost_usd": float(cost)} for name, cost in zip("abc", row)})  # noqa: B905
        for row in costs
    ]
    place = {"a": 0, "b": 1, "c": 2, "d": 3}
    seen = observe(rows, place, ("score", "cost_usd"), np.ones(4)).kind(1)
    base, slope, least = _line(seen, length, 4)
    assert base[:2] == pytest.approx([2, 10], abs=0.5)
    assert slope[:2] == pytest.approx([0.5, 0], abs=0.02)
    assert slope[2] == 0
    assert base[2] == pytest.approx(costs[:, 2].mean())
    assert (base[3], slope[3], least[3]) == pytest.approx((costs.mean(), 0, 0))  # never tried: what is usual
    assert least[:3] == pytest.approx(costs.min(0))


def test_expected_costs_depend_on_the_length_and_are_never_negative() -> None:
    rng, rows = random.Random(0), []
    for i in range(200):
        text = "word " * rng.randint(1, 60)
        outcomes = {"a": {"score": 1.0, "cost_usd": 0.001 * len(text)}, "b": {"score": 0.5, "cost_usd": 0.05}}
        rows.append(Row(context={"text": text}, outcomes=outcomes, group=str(i)))
    model = fit(rows).model
    short, long = model.expect([{"text": "word " * 5}]).cost()[0], model.expect([{"text": "word " * 50}]).cost()[0]
    assert short == pytest.approx([0.025, 0.05], rel=0.25)
    assert long == pytest.approx([0.25, 0.05], rel=0.25)
    least = min(row.outcomes["a"]["cost_usd"] for row in rows)
    assert model.expect([{"text": ""}]).cost()[0] == pytest.approx([least, 0.05], rel=0.25)
    assert model.expect([{"text": ""}]).cost()[0, 0] >= least
