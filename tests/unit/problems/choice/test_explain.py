"""Why an option was chosen: removing the named words moves the prediction as stated, and past decisions are real."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from etude.contracts.decision import DecisionRequest, Preferences
from etude.contracts.option import Option
from etude.problems.choice.explain import MAX_WORDS, SHOWN, Floats, Words, distinct_words, explain, find_words, without
from etude.problems.choice.fit import continue_choice, fit_choice
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.choice.rows import Row
from etude.problems.choice.settings import ChoiceConfig
from etude.text.ngrams import NGramEncoder

SUBJECTS = ("matrix", "vector", "tensor", "scalar")
FORMS = ("sonnet", "ballad", "verses", "poetry")  # words of one length: the length of words is a feature, too
FILLERS = ("please", "kindly", "now")


def make_rows(count: int, *, seed: int = 0) -> list[Row]:
    """`solver` is right about mathematics, `poet` about poems, `clerk` half of the time about anything."""
    rng, rows = random.Random(seed), []
    for i in range(count):
        formal = rng.random() < 0.5
        first, second = rng.sample(SUBJECTS if formal else FORMS, 2)
        text = f"{rng.choice(FILLERS)} write the {first} or the {second}"
        right = {"solver": 0.9 if formal else 0.1, "poet": 0.1 if formal else 0.9, "clerk": 0.5}
        costs = {"solver": 0.03, "poet": 0.02, "clerk": 0.001}
        outcomes = {
            name: {"score": float(rng.random() < share), "cost_usd": costs[name]} for name, share in right.items()
        }
        rows.append(Row(context={"text": text}, outcomes=outcomes, group=text, source=f"line {i + 1}"))
    return rows


@pytest.fixture(scope="module")
def policy() -> ChoicePolicy:
    trained = fit_choice(lambda: iter([make_rows(600)]), NGramEncoder(), ChoiceConfig())
    return ChoicePolicy(model=trained.model, config=ChoiceConfig(), artefact_version="v1")


def difference(policy: ChoicePolicy, text: str, chosen: str, other: str) -> float:
    expected = policy.choose(text).expected
    return (expected[chosen].utility or 0) - (expected[other].utility or 0)


@pytest.mark.parametrize(("word", "chosen"), [*product(SUBJECTS, ["solver"]), *product(FORMS, ["poet"])])
def test_removing_the_named_words_moves_the_prediction_as_stated(policy: ChoicePolicy, word: str, chosen: str) -> None:
    text = f"please write the {word} or the {word.capitalize()} now"
    why = explain(policy, DecisionRequest(context=text), policy.choose(text).action)
    assert why is not None
    assert why.chosen == chosen
    assert why.difference == pytest.approx(difference(policy, text, chosen, why.runner_up))
    assert max(why.words_for.effects, key=lambda named: why.words_for.effects[named]) == word
    for words, sign in ((why.words_for, 1), (why.words_against, -1)):
        assert all(sign * effect > 0 for effect in words.effects.values())
        assert len(words.effects) <= SHOWN
        if words.effects:
            left = " ".join(part for part in text.split() if part.lower() not in words.effects)
            moved = why.difference - difference(policy, left, chosen, why.runner_up)
            assert sign * moved > 0
            assert sign * words.together >= max(sign * effect for effect in words.effects.values())


def test_removal_is_exact(policy: ChoicePolicy) -> None:
    context = {"text": "Write the Poem; the POEMS of poem-lovers", "size": 3.0}
    assert distinct_words(policy.model, context) == ["write", "the", "poem", "poems", "of", "lovers"]
    assert without(policy.model, context, {"poem", "the"}) == {"text": "Write  ;  POEMS of -lovers", "size": 3.0}
    many = {"text": " ".join(f"w{i}" for i in range(2 * MAX_WORDS))}
    assert len(distinct_words(policy.model, many)) == MAX_WORDS


def test_words_are_chosen_that_have_the_largest_effect_together() -> None:
    alone = {"a": 5.0, "b": 4.0, "c": 3.0, "d": -1.0, "e": 0.0, "f": -2.0}

    def effects(sets: Sequence[Collection[str]]) -> Floats:
        """`a` and `b` say the same, so that one of them is enough."""
        return np.array([sum(alone[word] for word in some) - 4 * ({"a", "b"} <= set(some)) for some in sets])

    speak_for, speak_against = find_words(list(alone), effects)
    assert speak_for == Words(effects={"a": 5.0, "c": 3.0}, together=8.0)
    assert speak_against == Words(effects={"f": -2.0, "d": -1.0}, together=-3.0)


def test_past_decisions_are_rows_with_their_outcomes(policy: ChoicePolicy) -> None:
    rows = make_rows(600)
    why = explain(policy, DecisionRequest(context="please write the sonnet now"), "poet")
    assert why is not None
    assert len(why.similar) == SHOWN
    assert [past.similarity for past in why.similar] == sorted((p.similarity for p in why.similar), reverse=True)
    for past in why.similar:
        row = rows[int(past.source.removeprefix("line ")) - 1]
        for name in ("poet", why.runner_up):
            assert past.outcomes[name] == pytest.approx(row.outcomes[name])
    assert why.mean is not None
    assert why.mean.source == "50 most similar"
    assert why.mean.outcomes["poet"]["score"] > why.mean.outcomes[why.runner_up]["score"]


def test_the_runner_up_is_the_best_of_those_that_are_eligible(policy: ChoicePolicy) -> None:
    text = "write the sonnet"
    allowed = DecisionRequest(context=text, preferences=Preferences(allowed=("poet", "solver")))
    why = explain(policy, allowed, "poet")
    assert why is not None
    assert why.runner_up == "solver"
    alone = DecisionRequest(context=text, preferences=Preferences(allowed=("poet",)))
    assert explain(policy, alone, "poet") is None


def test_an_option_that_was_sampled_is_compared_with_the_best(policy: ChoicePolicy) -> None:
    why = explain(replace(policy, explore="epsilon"), DecisionRequest(context="write the sonnet"), "solver")
    assert why is not None
    assert (why.chosen, why.runner_up) == ("solver", "poet")
    assert why.difference < 0
    assert "sonnet" in why.words_against.effects


def test_new_options_have_no_past(policy: ChoicePolicy) -> None:
    new = (Option(name="bard", description="poet"), Option(name="minstrel", description="solver"))
    offered = tuple({"name": option.name, "description": option.description} for option in new)
    request = DecisionRequest(context="write the sonnet", options=offered)
    why = explain(policy, request, policy.decide(request).action["name"])
    assert why is not None
    assert why.similar == ()
    assert why.mean is None


def test_a_context_without_text_has_no_words() -> None:
    rows = [
        Row(context={"tier": tier}, outcomes={"a": {"score": float(tier == "gold")}, "b": {"score": 0.5}}, group=str(i))
        for i, tier in enumerate(["gold", "basic"] * 60)
    ]
    trained = fit_choice(lambda: iter([rows]), NGramEncoder(), ChoiceConfig())
    policy = ChoicePolicy(model=trained.model, config=ChoiceConfig(), artefact_version="v1")
    why = explain(policy, DecisionRequest(context={"tier": "gold"}), "a")
    assert why is not None
    assert why.words_for == why.words_against == Words(effects={}, together=0)
    assert list(why.entries) == ["tier: gold"]
    assert why.entries["tier: gold"] == pytest.approx(0.5, abs=0.05)  # for an average context a and b are the same
    both = {"tier": "gold", "text": "Gold rush"}
    assert without(policy.model, both, {"gold"}) == {"tier": "gold", "text": " rush"}  # a category is no text
    assert why.mean is not None
    assert why.mean.outcomes["a"]["score"] == pytest.approx(1)


def test_a_category_decides_and_not_the_words_or_a_number() -> None:
    rng, rows = random.Random(0), []
    for i in range(300):
        context = {
            "tier": ("gold", "basic")[i % 2],
            "text": f"please write {rng.choice(SUBJECTS)}",
            "size": float(i % 7),
        }
        scores = {"a": float(context["tier"] == "gold"), "b": 0.5}
        rows.append(Row(context=context, outcomes={name: {"score": s} for name, s in scores.items()}, group=str(i)))
    trained = fit_choice(lambda: iter([rows]), NGramEncoder(), ChoiceConfig())
    policy = ChoicePolicy(model=trained.model, config=ChoiceConfig(), artefact_version="v1")
    why = explain(policy, DecisionRequest(context=rows[0].context), "a")
    assert why is not None
    assert next(iter(why.entries)) == "tier: gold"
    assert why.entries["tier: gold"] > 0.3
    assert abs(why.entries.get("size: 0", 0)) < 0.05
    assert abs(why.words_for.together) < 0.1
    untiered = {key: value for key, value in rows[0].context.items() if key != "tier"}
    other = explain(policy, DecisionRequest(context=untiered), "a")
    assert other is not None
    assert "tier: gold" not in other.entries


def test_a_continued_choice_remembers_later_rows(policy: ChoicePolicy) -> None:
    later = [replace(row, source=f"trajectory {i}") for i, row in enumerate(make_rows(300, seed=1))]
    memory = continue_choice(policy.model, lambda: iter([later]), ChoiceConfig()).model.memory
    assert memory.sources[:2] == ("line 1", "line 2")
    assert memory.sources[-1] == "trajectory 299"
    assert memory.total == 900
