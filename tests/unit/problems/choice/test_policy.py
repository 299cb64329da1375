"""Deciding: the best option under the preferences, reasons for those that may not be chosen, new options."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from etude.contracts.decision import Decision, DecisionRequest, NoOptionError, Preferences
from etude.contracts.errors import CheckpointError, ConfigError, DataError
from etude.contracts.option import Option
from etude.learning.artefact import Artefact, write_artefact
from etude.learning.explore import Explore
from etude.problems.choice.fit import fit_choice
from etude.problems.choice.model import ChoiceModel, Expectation, Frontier
from etude.problems.choice.options import make_table, price_ratio
from etude.problems.choice.policy import ChoicePolicy, load
from etude.problems.choice.rows import Row
from etude.problems.choice.settings import ChoiceConfig
from etude.problems.choice.state import write_model
from etude.text.ngrams import NGramEncoder

OPTIONS: dict[str, dict[str, Any]] = {
    "solver": {"description": "mathematics and proofs, step by step", "regions": ["eu"], "usd_per_mtok_in": 3.0},
    "poet": {"description": "verses, rhymes and songs", "regions": ["us", "eu"], "usd_per_mtok_in": 2.0},
    "clerk": {"description": "quick office chores", "context_tokens": 30, "usd_per_mtok_in": 0.1},
}
DESCRIBED = tuple(
    Option(
        name=name,
        description=about["description"],
        numbers={key: float(value) for key, value in about.items() if isinstance(value, float | int)},
        words={"regions": tuple(about["regions"])} if "regions" in about else {},
    )
    for name, about in OPTIONS.items()
)
OFFER = tuple({"name": name, **about} for name, about in OPTIONS.items())
FORMAL, POETIC = "please write the vector or the tensor", "please write the ballad or the sonnet"
COSTS, LATENCY = {"solver": 0.03, "poet": 0.02, "clerk": 0.001}, {"solver": 900.0, "poet": 500.0, "clerk": 50.0}


def make_rows(count: int, *, seed: int = 0) -> list[Row]:
    """`solver` is right about mathematics, `poet` about poems, `clerk` half of the time about anything."""
    rng, rows = random.Random(seed), []
    for i in range(count):
        formal = rng.random() < 0.5
        first, second = rng.sample(("matrix", "vector", "tensor") if formal else ("sonnet", "ballad", "verses"), 2)
        right = {"solver": 0.9 if formal else 0.2, "poet": 0.1 if formal else 0.8, "clerk": 0.5}
        outcomes = {
            name: {
                "score": float(rng.random() < share),
                "success": float(rng.random() < share),
                "cost_usd": COSTS[name] * rng.uniform(0.9, 1.1),
                "latency_ms": LATENCY[name],
            }
            for name, share in right.items()
        }
        text = f"{rng.choice(('please', 'kindly', 'now'))} write the {first} or the {second}"
        rows.append(Row(context={"text": text}, outcomes=outcomes, group=text, source=f"line {i + 1}"))
    return rows


@pytest.fixture(scope="module")
def model() -> ChoiceModel:
    return fit_choice(lambda: iter([make_rows(500)]), NGramEncoder(), ChoiceConfig(), options=DESCRIBED).model


@pytest.fixture
def policy(model: ChoiceModel) -> ChoicePolicy:
    return ChoicePolicy(model=model, config=ChoiceConfig(), artefact_version="v1")


# What is decided


def test_the_best_option_is_chosen_and_logged(policy: ChoicePolicy) -> None:
    decision = policy.named("choice:model").choose(FORMAL, seed=5)
    assert (decision.action, decision.propensity, decision.policy) == ("solver", 1.0, "v1")
    (logged,) = decision.logged
    assert (logged.problem, logged.action, logged.propensity, logged.policy) == ("choice:model", "solver", 1.0, "v1")
    assert logged.context == FORMAL
    assert logged.eligible == ["clerk", "poet", "solver"]
    assert policy.choose(POETIC).action == "poet"


def test_expectations_are_those_of_the_past(policy: ChoicePolicy) -> None:
    expected = policy.choose(FORMAL).expected
    assert list(expected) == ["clerk", "poet", "solver"]
    solver, poet = expected["solver"], expected["poet"]
    assert solver.score == pytest.approx(0.9, abs=0.1)
    assert poet.score == pytest.approx(0.1, abs=0.1)
    assert solver.success == pytest.approx(0.9, abs=0.15)
    assert solver.cost_usd == pytest.approx(0.03, rel=0.1)
    assert solver.latency_ms == pytest.approx(900, rel=0.05)
    assert solver.quality is None
    assert 0 < solver.score_se < 0.15
    assert (solver.probability, poet.probability, solver.decisions) == (1.0, 0.0, 500.0)
    assert solver.utility == pytest.approx(solver.score, abs=1e-6)


def test_one_context_is_expected_what_it_is_in_a_batch(model: ChoiceModel) -> None:
    contexts = [row.context for row in make_rows(30, seed=3)]
    whole = model.expect(contexts)
    for i, context in enumerate(contexts):
        alone = model.expect([context])
        assert alone.score[0] == pytest.approx(whole.score[i], abs=1e-5)
        assert alone.error[0] == pytest.approx(whole.error[i], rel=1e-3)
        assert alone.cost()[0] == pytest.approx(whole.cost()[i], rel=1e-4)


def test_it_is_reentrant(policy: ChoicePolicy) -> None:
    explorer = replace(policy, explore="softmax")
    rng = random.Random(0)
    requests = [
        DecisionRequest(
            context=row.context["text"],
            options=tuple(rng.sample(OFFER, 2)) if i % 2 else None,
            preferences=Preferences(quality_weight=rng.random()),
            seed=i,
        )
        for i, row in enumerate(make_rows(160, seed=4))
    ]
    alone = [explorer.decide(request) for request in requests]
    fresh = replace(explorer)  # without what is remembered
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fresh.decide, requests)) == alone


@pytest.mark.parametrize("explore", ["epsilon", "softmax", "thompson", "priced"])
def test_what_is_sampled_has_its_propensity(policy: ChoicePolicy, explore: Any) -> None:
    explorer = replace(policy, explore=explore, config=replace(policy.config, epsilon=0.3, temperature=0.4, price=0.2))
    decisions = [explorer.choose("write the tensor or the ballad", seed=seed) for seed in range(600)]
    shown = {name: about.probability for name, about in decisions[0].expected.items()}
    assert sum(shown.values()) == pytest.approx(1)
    for name, probability in shown.items():
        assert np.mean([d.action == name for d in decisions]) == pytest.approx(probability, abs=0.07)
    assert all(d.propensity == d.logged[0].propensity == shown[d.action] for d in decisions)
    assert {d.policy for d in decisions} == {"v1+sampled"}


def test_sampled_explores_as_the_settings_say(policy: ChoicePolicy) -> None:
    assert policy.sampled().explore == "thompson"
    assert (policy.version, policy.sampled().version) == ("v1", "v1+sampled")
    soft = replace(policy, config=replace(policy.config, explore="softmax", temperature=0.5))
    assert 0 < soft.sampled().choose(FORMAL).propensity < 1
    assert soft.choose(FORMAL).propensity == 1


# Preferences


def test_less_weight_of_quality_costs_less(policy: ChoicePolicy) -> None:
    contexts = [row.context["text"] for row in make_rows(40, seed=6)]
    costs = []
    for weight in (1.0, 0.9, 0.7, 0.4, 0.0):
        decisions = [policy.choose(context, quality_weight=weight) for context in contexts]
        costs.append(np.mean([COSTS[decision.action] for decision in decisions]))
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 0.02
    assert costs[-1] == pytest.approx(0.001)
    frugal = replace(policy, config=replace(policy.config, quality_weight=0.0))
    assert frugal.choose(FORMAL).action == "clerk"
    assert frugal.choose(FORMAL, quality_weight=1.0).action == "solver"


def test_between_equals_the_cheaper() -> None:
    e = Expectation(
        score=np.array([[0.5, 0.5]]),
        error=np.ones((1, 2)),
        other={"cost_usd": np.array([[2.0, 1.0]])},
        count=np.ones(2),
    )
    assert e.utility(1.0, 1.0).argmax() == 1
    assert e.utility(0.25, 2.0)[0] == pytest.approx([0.125 - 0.75, 0.125 - 0.375])


@pytest.mark.parametrize(
    ("wanted", "masked"),
    [
        ({"max_cost_usd": 0.025}, {"solver": "its expected cost of 0.03 USD is above 0.025"}),
        ({"max_latency_ms": 600}, {"solver": "its expected 900 ms are above 600"}),
        ({"region": "us"}, {"solver": "its regions are eu, without 'us'"}),  # the clerk says nothing of regions
        ({"allowed": ["poet", "clerk"]}, {"solver": "it is not among allowed"}),
    ],
)
def test_what_may_not_be_chosen_says_why(policy: ChoicePolicy, wanted: dict[str, Any], masked: dict[str, str]) -> None:
    decision = policy.choose(FORMAL, **wanted)
    assert decision.action != "solver"
    shown = {name: about.masked for name, about in decision.expected.items() if about.masked is not None}
    assert shown.keys() == masked.keys()
    for name, reason in masked.items():
        assert (shown[name] or "").split(" of ")[0] == reason.split(" of ")[0]
        assert decision.expected[name].probability == 0
    assert set(decision.logged[0].eligible) == {"poet", "clerk"}
    sampled = [replace(policy, explore="epsilon").choose(FORMAL, **wanted, seed=seed).action for seed in range(60)]
    assert set(sampled) == {"poet", "clerk"}


def test_a_limit_that_is_just_kept_rules_nothing_out() -> None:
    rows = [
        replace(row, outcomes={name: {**o, "cost_usd": 0.001} for name, o in row.outcomes.items()})
        for row in make_rows(60)
    ]
    model = fit_choice(lambda: iter([rows]), NGramEncoder(), ChoiceConfig()).model
    policy = ChoicePolicy(model=model, config=ChoiceConfig(), artefact_version="v")
    decisions = [policy.choose(row.context, max_cost_usd=0.001) for row in rows]
    assert {about.masked for decision in decisions for about in decision.expected.values()} == {None}
    assert all(policy.choose(row.context, max_cost_usd=0.00101).expected["poet"].masked is None for row in rows)
    with pytest.raises(DataError, match=r"its expected cost of 0\.001 USD is above 0\.00099"):
        policy.choose(FORMAL, max_cost_usd=0.00099)


@pytest.fixture(scope="module")
def unpriced() -> ChoicePolicy:
    """It knows neither costs nor latencies."""
    rows = [
        replace(row, outcomes={name: {"score": o["score"]} for name, o in row.outcomes.items()})
        for row in make_rows(300)
    ]
    model = fit_choice(lambda: iter([rows]), NGramEncoder(), ChoiceConfig()).model
    return ChoicePolicy(model=model, config=ChoiceConfig(), artefact_version="v")


def test_a_limit_that_cannot_be_kept_is_not_ignored(unpriced: ChoicePolicy) -> None:
    for limit, kind in (("max_cost_usd", "cost_usd"), ("max_latency_ms", "latency_ms")):
        with pytest.raises(
            DataError, match=f"clerk, poet, solver: its {kind} is not known: give it with the option, or"
        ):
            unpriced.choose(FORMAL, **{limit: 1.0})  # type: ignore[arg-type]
    assert unpriced.choose(FORMAL).action == "solver"


def test_options_may_say_what_they_cost_and_take(unpriced: ChoicePolicy) -> None:
    offer = [
        {"name": "solver", "cost_usd": 5},
        {"name": "poet", "usd_per_call": 3.0},
        {"name": "clerk", "cost_usd": 0.1},
        "other",
    ]
    decision = unpriced.choose(FORMAL, options=offer, max_cost_usd=1)
    assert decision.action is offer[2]
    assert {name: about.masked for name, about in decision.expected.items()} == {
        "solver": "its cost_usd is 5, above max_cost_usd 1",
        "poet": "its usd_per_call is 3, above max_cost_usd 1",
        "clerk": None,
        "other": "its cost_usd is not known: give it with the option, or learn from outcomes that have it",
    }
    quick = unpriced.choose(FORMAL, options=[{"name": "solver", "latency_ms": 900}, {"name": "poet", "latency_ms": 5}],
                            max_latency_ms=10)  # fmt: skip
    assert quick.expected["solver"].masked == "its latency_ms is 900, above max_latency_ms 10"


def test_the_larger_of_what_is_said_and_learned_counts(policy: ChoicePolicy) -> None:
    offer = [{"name": "solver", "cost_usd": 0.0001}, {"name": "poet", "cost_usd": 7.0}, {"name": "clerk"}]
    expected = policy.choose(FORMAL, options=offer, max_cost_usd=0.025).expected
    assert "its expected cost of 0.03" in (expected["solver"].masked or "")
    assert expected["poet"].masked == "its cost_usd is 7, above max_cost_usd 0.025"
    assert expected["poet"].cost_usd == pytest.approx(0.02, rel=0.1)  # as it was learned
    assert expected["clerk"].masked is None


def test_a_new_option_is_expected_to_cost_and_take_what_it_says(policy: ChoicePolicy) -> None:
    like = {"description": "mathematics and proofs, step by step"}
    offer = [{"name": "silent", **like}, {"name": "new", **like, "cost_usd": 5.0, "latency_ms": 7.0}]
    expected = policy.choose(FORMAL, options=offer).expected
    assert (expected["new"].cost_usd, expected["new"].latency_ms) == (5.0, 7.0)
    assert expected["silent"].cost_usd == pytest.approx(0.03, rel=0.2)
    assert policy.choose(FORMAL, options=offer, max_cost_usd=1.0).action is offer[0]


def test_a_context_too_long_or_an_option_that_is_not_available(policy: ChoicePolicy) -> None:
    long = policy.choose("write " * 40, quality_weight=0.0)
    assert long.action != "clerk"
    assert long.expected["clerk"].masked == "its context of 30 tokens is too short for 240 characters"
    assert policy.choose("write " * 4, quality_weight=0.0).action == "clerk"
    gone = policy.choose(
        FORMAL, options=[{"name": "solver", "available": False}, "poet", {"name": "clerk", "available": True}]
    )
    assert gone.expected["solver"].masked == "it is not available"
    assert gone.action != "solver"


def test_if_nothing_may_be_chosen_it_says_why(policy: ChoicePolicy) -> None:
    with pytest.raises(DataError, match="no option of 'choice' may be chosen") as error:
        policy.choose(FORMAL, max_latency_ms=100, region="us", allowed=["poet", "solver"])
    for reason in ("clerk: it is not among", "poet: its expected 500 ms are above 100", "solver: its regions are eu"):
        assert reason in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quality_weight": 2}, "quality_weight is 2: expected a number from 0 to 1"),
        ({"max_cost_usd": -1}, "max_cost_usd is -1: expected a finite number of at least 0 USD"),
        ({"max_latency_ms": float("inf")}, "max_latency_ms is inf: expected"),
        ({"region": 5}, "region is 5: expected a text"),
        ({"allowed": 5}, "allowed is 5: expected a list of names"),
        ({"allowed": ["poet", "pot"]}, "allowed has 'pot', which is none of the options: did you mean 'poet'?"),
        ({"allowed": ["poet"], "options": ["a"]}, "allowed has 'poet', which is none of the options"),
        ({"options": "ab"}, "options is 'ab': expected a list of names"),
        ({"options": {"a": 1}}, "options is {'a': 1}: expected a list of names"),
        ({"options": {"a"}}, "options is {'a'}: expected a list of names"),
        ({"options": 5}, "options is 5: expected a list of names"),
        ({"options": ["a", "a"]}, r"options\[1\] has the name 'a'"),
        ({"options": []}, "options is empty"),
        ({"options": ["a", object()]}, r"options\[1\] is <object object .*: it has no name"),
        ({"options": [{"name": "a", "price": float("nan")}]}, r"options\[0\]\.price is nan: expected a finite number"),
        ({"context": [1]}, r"context is \[1\]"),
        ({"context": {"x": object}}, r"context\['x'\] is <class 'object'>"),
        ({"seed": "x"}, "seed is 'x': expected a whole number of at least 0"),
    ],
)
def test_a_request_that_is_not_valid_is_refused(policy: ChoicePolicy, given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        policy.choose(**given)


def test_numbers_of_numpy_are_numbers(policy: ChoicePolicy) -> None:
    for given, same in ((np.float32(3), 3.0), (np.int64(3), 3), ({"tokens": np.float64(3)}, {"tokens": 3.0})):
        assert policy.choose(given) == policy.choose(same)


# Options


def test_options_differ_from_decision_to_decision(policy: ChoicePolicy) -> None:
    full = policy.choose(FORMAL).expected
    for names in (["poet", "clerk"], ["clerk", "solver"], ["poet"]):
        decision = policy.choose(FORMAL, options=names)
        assert list(decision.expected) == names
        assert decision.action == max(names, key=lambda name: full[name].utility or 0)
        for name in names:
            assert decision.expected[name].score == pytest.approx(full[name].score)
            assert decision.expected[name].score_se == pytest.approx(full[name].score_se)
    given = ({"name": "poet", "note": "x"}, {"name": "solver"})
    assert policy.choose(FORMAL, options=given).action is given[1]  # as it was offered


def test_the_order_of_options_does_not_matter(policy: ChoicePolicy) -> None:
    turned = policy.choose(FORMAL, options=OFFER[::-1]).expected
    straight = policy.choose(FORMAL, options=OFFER).expected
    assert {name: turned[name] for name in straight} == straight


def test_a_new_option_is_expected_to_do_what_those_like_it_did(policy: ChoicePolicy) -> None:
    like_good = {"name": "prover", "description": "mathematics and proofs, step by step", "usd_per_mtok_in": 3.0}
    like_bad = {"name": "bard", "description": "verses, rhymes and songs", "usd_per_mtok_in": 2.0}
    found = policy.choose(FORMAL, options=[*OFFER, like_good, like_bad])
    expected = found.expected
    assert expected["prover"].score > expected["bard"].score + 0.3
    assert expected["prover"].score == pytest.approx(expected["solver"].score, abs=0.15)
    assert expected["prover"].score_se > expected["solver"].score_se
    assert (expected["prover"].decisions, expected["solver"].decisions) == (0, 500)
    assert found.action["name"] == "solver"  # not the new one, which is no better as far as is known
    assert policy.choose(FORMAL, options=[like_good, like_bad]).action is like_good


def test_a_new_option_is_taken_if_it_is_clearly_better() -> None:
    e = Expectation(
        score=np.array([[0.5, 0.55], [0.5, 0.8]]), error=np.full((2, 2), 0.1), other={}, count=np.array([90.0, 0.0])
    )
    assert e.utility(1.0, 1.0).argmax(1).tolist() == [1, 1]
    for few in (0.0, 1.0, 9.0):
        e = replace(e, count=np.array([90.0, few]))
        assert e.careful(e.utility(1.0, 1.0), 1.0).argmax(1).tolist() == [0, 1]
    e = replace(e, count=np.array([90.0, 10.0]))
    assert e.careful(e.utility(1.0, 1.0), 1.0).argmax(1).tolist() == [1, 1]


def test_a_policy_doubts_new_options_unless_it_explores(policy: ChoicePolicy) -> None:
    """The better of the two is known by its description alone."""
    prover = {"name": "prover", "description": "mathematics and proofs, step by step", "usd_per_mtok_in": 3.0}
    offer = ["clerk", prover]
    sure, unsure = (replace(policy, model=replace(policy.model, between=error)) for error in (0.01, 0.5))
    assert sure.choose(FORMAL, options=offer).action is prover
    doubted = unsure.choose(FORMAL, options=offer)
    assert doubted.action == "clerk"
    assert (doubted.expected["prover"].utility or 0) > (doubted.expected["clerk"].utility or 0)
    exploring = replace(unsure, explore="epsilon").choose(FORMAL, options=offer)
    assert exploring.expected["prover"].probability > 0.9


def test_exploring_tries_new_options(policy: ChoicePolicy) -> None:
    offer = [*OFFER, {"name": "prover", "description": "mathematics and proofs, step by step", "usd_per_mtok_in": 3.0}]
    careful, bold = (
        replace(policy, explore="thompson", config=replace(policy.config, posterior_scale=scale)).choose(
            FORMAL, options=offer
        )
        for scale in (0.3, 1.0)
    )
    assert bold.expected["prover"].probability > 0.05
    assert 0 < careful.expected["prover"].probability < bold.expected["prover"].probability


def test_a_changed_price_changes_the_cost(policy: ChoicePolicy) -> None:
    offer = [dict(option) for option in OFFER]
    before = policy.choose(FORMAL, options=offer).expected["solver"].cost_usd or 0
    offer[0]["usd_per_mtok_in"] = 0.3
    after = policy.choose(FORMAL, options=offer).expected
    assert after["solver"].cost_usd == pytest.approx(before / 10)
    assert after["poet"].cost_usd == pytest.approx(0.02, rel=0.1)
    assert after["solver"].latency_ms == pytest.approx(900, rel=0.05)


def test_price_ratios() -> None:
    def priced(**numbers: float) -> Option:
        return Option(name="x", numbers=numbers)

    old = priced(usd_per_mtok_in=2, usd_per_mtok_out=10)
    assert price_ratio(priced(usd_per_mtok_in=1, usd_per_mtok_out=20), old) == pytest.approx((0.5 + 2) / 2)
    assert price_ratio(priced(usd_per_mtok_in=0), old) == 0
    assert price_ratio(priced(usd_per_call=3), old) == 1
    assert price_ratio(priced(usd_per_mtok_in=3), priced(usd_per_mtok_in=0)) == 1


def test_remembered_offers_give_the_same_answers(policy: ChoicePolicy) -> None:
    def answers() -> list[Decision]:
        return [policy.choose(text, options=OFFER) for text in (FORMAL, POETIC)]

    first = answers()
    assert policy.offer(OFFER) is policy.offer([dict(option) for option in OFFER])
    assert answers() == first
    for i in range(40):  # more than are remembered
        policy.choose(FORMAL, options=[f"x{i}", "poet"])
    assert answers() == first
    assert [replace(policy).choose(text, options=OFFER) for text in (FORMAL, POETIC)] == first


def test_options_that_are_no_json_are_read_too(policy: ChoicePolicy) -> None:
    odd = [{"name": "poet", "description": "\ud800"}, {"name": "solver"}]
    assert policy.choose(FORMAL, options=odd).action is odd[1]


def test_a_table_mixes_known_options_by_likeness() -> None:
    table = make_table(DESCRIBED, NGramEncoder())
    like = table.likeness([Option(name="poet", description="verses, rhymes and songs")], NGramEncoder())
    assert like.sum() == pytest.approx(1)
    assert table.names[int(like.argmax())] == "poet"
    out = table.left_out()
    assert np.diag(out).tolist() == [0, 0, 0]
    assert out.sum(1) == pytest.approx(np.ones(3))
    assert make_table(DESCRIBED[:1], NGramEncoder()).left_out().tolist() == [[0]]
    back = type(table).from_state(table.vectors, table.to_json())
    assert back.options == table.options
    offer = [*OFFER, {"name": "new", "description": "songs"}]
    assert (back.offer(offer, NGramEncoder()).mix == table.offer(offer, NGramEncoder()).mix).all()


def test_options_are_alike_by_their_numbers_too() -> None:
    sizes = [Option(name=f"m{i}", numbers={"size": 10.0**i, "other": 1.0}) for i in range(4)]
    table = make_table(sizes, NGramEncoder())
    assert table.numbers == ("other", "size")
    small, large = table.likeness(
        [
            Option(name="m", numbers={"size": 2.0, "other": 1.0}),
            Option(name="m", numbers={"size": 900.0, "other": 1.0}),
        ],
        NGramEncoder(),
    )
    assert table.names[int(small.argmax())] == "m0"
    assert table.names[int(large.argmax())] == "m3"


# Artefacts


def test_an_artefact_gives_the_policy_back(policy: ChoicePolicy, tmp_path: Path) -> None:
    parts = write_model(policy.model)
    about = {
        "problem": "choice",
        "method": "replay",
        "encoder": "ngrams",
        "step": 1,
        "code": "0",
        "settings": {"choice": {"explore": "softmax", "quality_weight": 0.5}},
        "details": dict(parts.details),
    }
    write_artefact(tmp_path / "a", tensors=parts.tensors, files={}, about=about)
    artefact = Artefact(tmp_path / "a")
    back = load(artefact)
    assert back.version == artefact.version
    assert (back.explore, back.sampled().explore, back.config.quality_weight) == ("none", "softmax", 0.5)
    for text in (FORMAL, POETIC):
        for weight in (1.0, 0.3):
            ours = policy.choose(text, quality_weight=weight, options=[*OFFER, "new"]).expected
            theirs = back.choose(text, quality_weight=weight, options=[*OFFER, "new"]).expected
            for name, mine in ours.items():
                assert theirs[name].utility == pytest.approx(mine.utility, abs=1e-4)
                assert theirs[name].score_se == pytest.approx(mine.score_se, rel=1e-3)
    assert back.model.best_single == policy.model.best_single
    assert back.model.frontier.score == pytest.approx(policy.model.frontier.score)
    assert load(artefact, explore="epsilon").version == f"{artefact.version}+sampled"


def test_a_way_to_explore_that_is_unknown_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="explore is 'zzz': expected one of none, epsilon, softmax"):
        load(Artefact(tmp_path), explore="zzz")  # type: ignore[arg-type]


def test_an_artefact_that_lacks_something_is_refused(model: ChoiceModel) -> None:
    tensors = model.tensors()
    tensors.pop("options")
    with pytest.raises(CheckpointError, match="artefact is not complete"):
        ChoiceModel.from_state(tensors, model.to_json(), NGramEncoder())


def test_a_frontier_knows_the_cheapest_weight_for_a_score() -> None:
    frontier = Frontier(
        weight=np.array([1.0, 0.8, 0.5, 0.0]),
        score=np.array([0.8, 0.82, 0.7, 0.5]),
        cost_usd=np.array([4.0, 3.0, 2.0, 1.0]),
    )
    assert [frontier.weight_for(score) for score in (0.4, 0.6, 0.7, 0.75, 0.9)] == [0.0, 0.5, 0.5, 0.8, 0.8]
    assert [frontier.weight_within(cost) for cost in (9.0, 4.0, 2.5, 1.0, 0.1)] == [0.8, 0.8, 0.5, 0.0, 0.0]


def test_a_limit_of_the_mean_cost_lowers_the_quality_weight_until_past_rows_keep_it(model: ChoiceModel) -> None:
    limit = 0.5 * (model.frontier.cost_usd.min() + model.frontier.cost_usd.max())
    free, limited, roomy = (
        ChoicePolicy(model=model, config=ChoiceConfig(max_mean_cost_usd=most), artefact_version="v")
        for most in (None, limit, 1.0)
    )
    texts = [row.context for row in make_rows(200, seed=5)]

    def cost(policy: ChoicePolicy) -> float:
        return float(np.mean([COSTS[policy.choose(text).action] for text in texts]))

    assert cost(free) > limit
    assert cost(roomy) == cost(free)
    assert cost(limited) < 0.8 * cost(free)
    at = int(np.flatnonzero(model.frontier.weight == limited.quality_weight(Preferences()))[0])
    assert model.frontier.cost_usd[at] <= limit
    assert limited.choose(POETIC, quality_weight=1.0).action == "poet"  # a request may say otherwise


def past_cost(model: ChoiceModel, options: list[dict[str, Any]], weight: float) -> float:
    """Mean expected cost of the choices that a policy without a limit makes in the contexts that the model keeps."""
    offered, frontier = model.table.offer(options, model.reader.encoder), model.frontier
    expected = model._expect(frontier.features, lambda: frontier.length, offered)
    pick = expected.careful(expected.utility(weight, model.unit_usd), weight).argmax(1)
    return float(expected.cost()[np.arange(len(pick)), pick].mean())


def test_a_limit_of_the_mean_cost_holds_among_options_that_appear_and_at_new_prices(model: ChoiceModel) -> None:
    limit = 0.5 * (model.frontier.cost_usd.min() + model.frontier.cost_usd.max())
    limited, unlimited = (
        ChoicePolicy(model=model, config=ChoiceConfig(max_mean_cost_usd=most), artefact_version="v")
        for most in (limit, 99.0)
    )
    texts = [row.context for row in make_rows(200, seed=5)]
    known: list[dict[str, Any]] = list(OFFER)
    expensive = {"name": "another poet", "description": OPTIONS["poet"]["description"], "cost_usd": 5 * limit}
    raised = [option | {"usd_per_mtok_in": 2 * option["usd_per_mtok_in"]} for option in known]

    def cost(policy: ChoicePolicy, options: list[dict[str, Any]]) -> float:
        scored = [policy.score(text, options, Preferences()) for text in texts]
        return float(np.mean([one.expectation.cost()[0, int(one.probability.argmax())] for one in scored]))

    for options in (known, raised, [expensive, *known]):
        assert cost(limited, options) <= 1.05 * limit
        assert cost(unlimited, options) > 1.2 * limit
        weight = limited.quality_weight(Preferences(), limited.offer(options))
        assert past_cost(model, options, weight) <= limit < past_cost(model, options, weight + 1e-9), "it is used"
    nothing = ChoicePolicy(model=model, config=ChoiceConfig(max_mean_cost_usd=1e-9), artefact_version="v")
    assert nothing.quality_weight(Preferences(), nothing.offer(known)) == 0.0
    assert unlimited.quality_weight(Preferences(), unlimited.offer(known)) == 1.0


@pytest.mark.parametrize("explore", ["epsilon", "softmax", "thompson", "priced"])
def test_a_limit_of_the_mean_cost_counts_what_is_explored_and_options_that_are_new(
    model: ChoiceModel, explore: Explore
) -> None:
    """A policy that explores takes new options without the caution of one that does not."""
    limit = 0.5 * (model.frontier.cost_usd.min() + model.frontier.cost_usd.max())
    limited, unlimited = (
        ChoicePolicy(
            model=model,
            config=ChoiceConfig(max_mean_cost_usd=most, epsilon=0.2, temperature=0.3),
            artefact_version="v",
            explore=explore,
        )
        for most in (limit, None)
    )
    new = {"name": "another poet", "description": OPTIONS["poet"]["description"], "cost_usd": 5 * limit}
    texts = [row.context for row in make_rows(100, seed=5)]

    def cost(policy: ChoicePolicy, options: list[dict[str, Any]]) -> float:
        scored = [policy.score(text, options, Preferences()) for text in texts]
        return float(np.mean([one.expectation.cost()[0] @ one.probability for one in scored]))

    for options in (list(OFFER), [new, *OFFER]):
        assert cost(unlimited, options) > limit
        assert cost(limited, options) <= 1.1 * limit


# Many at a time


def test_requests_that_arrive_together_get_the_answers_that_each_gets_alone(policy: ChoicePolicy) -> None:
    offers = [OFFER, OFFER[:2], None, OFFER]
    wanted = [Preferences(), Preferences(max_cost_usd=0.025), Preferences(quality_weight=0.2), Preferences(region="us")]
    requests = [
        DecisionRequest(context=text, options=offers[i % 4], preferences=wanted[i % 3], seed=i)
        for i, text in enumerate([FORMAL, POETIC, "hello", FORMAL + " " + POETIC] * 6)
    ]
    for asked in (policy, replace(policy, explore="epsilon"), replace(policy, explore="thompson")):
        together = asked.decide_many(requests)
        alone = [asked.decide(request) for request in requests]
        for one, other in zip(together, alone, strict=True):
            assert isinstance(one, Decision)
            assert (one.action, one.policy) == (other.action, other.policy)
            assert one.propensity == pytest.approx(other.propensity)
            assert one.logged[0].eligible == other.logged[0].eligible
            assert one.expected.keys() == other.expected.keys()


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise DataError("cannot be read")


def test_of_requests_that_arrive_together_one_that_is_wrong_fails_alone(policy: ChoicePolicy) -> None:
    good, wrong = (DecisionRequest(context=context, options=OFFER) for context in (FORMAL, Unreadable(a=1)))
    none = DecisionRequest(context=FORMAL, options=OFFER, preferences=Preferences(allowed=()))
    found = policy.decide_many([good, wrong, good, none])
    assert [type(one) for one in found] == [Decision, DataError, Decision, NoOptionError]


def test_without_an_explanation_the_same_option_is_chosen(policy: ChoicePolicy) -> None:
    for explore in ("none", "epsilon", "thompson"):
        asked = replace(policy, explore=explore)
        for seed, text in enumerate((FORMAL, POETIC, "hello")):
            request = DecisionRequest(context=text, options=(*OFFER, "a new one"), seed=seed)
            full, short = asked.decide(request), asked.decide(msgspec.structs.replace(request, explain=False))
            assert (short.action, short.expected) == (full.action, {})
            assert short.propensity == pytest.approx(full.propensity)
