from __future__ import annotations

from collections import Counter

import pytest
import torch

from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import DataError
from etude.problems.prompt.mutations import MUTATIONS, Prompt
from etude.problems.prompt.policy import PromptDecider
from etude.problems.prompt.reader import ACTIONS, DONE, ENOUGH, STOP, State
from tests.unit.problems.prompt.tiny import READER, policy, prompts

TEXT = prompts()[0].text


def decider(*, explore: bool = False) -> PromptDecider:
    made = PromptDecider(network=policy(), reader=READER, artefact_version="0123456789abcdef")
    return made.sampled() if explore else made


def test_a_decision_is_logged_with_what_was_eligible() -> None:
    decision = decider(explore=True).decide(DecisionRequest(context=TEXT, seed=3))
    (logged,) = decision.logged
    assert decision.action in logged.eligible
    assert set(logged.eligible) == set(ACTIONS) - set(READER.rules.masked(State(prompt=TEXT)))
    assert logged.propensity == decision.propensity == pytest.approx(decision.expected[decision.action].probability)
    assert logged.policy == "0123456789abcdef+sampled"
    assert logged.context == TEXT


def test_the_same_request_gives_the_same_answer_and_propensities_are_frequencies() -> None:
    asked = decider(explore=True)
    assert asked.decide(DecisionRequest(context=TEXT, seed=9)) == asked.decide(DecisionRequest(context=TEXT, seed=9))
    found = asked.decide_many([DecisionRequest(context=TEXT, seed=seed) for seed in range(2000)])
    count = Counter(one.action for one in found if not isinstance(one, Exception))
    expected = asked.decide(DecisionRequest(context=TEXT)).expected
    for action in ACTIONS:
        assert count[action] / 2000 == pytest.approx(expected[action].probability, abs=0.05)


def test_what_was_done_is_masked_with_its_reason() -> None:
    expected = decider().decide(DecisionRequest(context={"prompt": TEXT, "done": ["expansion"]})).expected
    assert expected["expansion"].masked == DONE
    assert expected["expansion"].probability == 0
    done = list(MUTATIONS[: READER.rules.max_mutations])
    decision = decider().decide(DecisionRequest(context={"prompt": TEXT, "done": done}))
    assert decision.action == STOP
    assert {decision.expected[m].masked for m in MUTATIONS} == {ENOUGH}


def test_a_prompt_is_improved_until_the_policy_stops() -> None:
    asked = decider(explore=True)
    for seed in range(8):
        found = asked.improve(TEXT, seed=seed)
        assert len(found.mutations) == len(set(found.mutations)) <= READER.rules.max_mutations
        assert 0 < found.propensity <= 1
        prompt: Prompt = TEXT
        for step in found.steps:
            assert step.mutated.revert() == prompt
            prompt = step.mutated.prompt
        assert found.prompt == prompt
        assert found == asked.improve(TEXT, seed=seed)


def test_a_greedy_policy_takes_the_best_of_what_is_legal() -> None:
    decision = decider().decide(DecisionRequest(context=TEXT))
    free = {name: one.score for name, one in decision.expected.items() if one.masked is None}
    assert decision.action == max(free, key=lambda name: free[name])
    assert decision.propensity == 1.0


def test_chat_messages_are_decided_on() -> None:
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": TEXT}]
    assert decider().decide(DecisionRequest(context=messages)).action in ACTIONS
    assert decider().decide(DecisionRequest(context={"prompt": messages})).action in ACTIONS


@pytest.mark.parametrize(
    "context",
    [
        None,
        3,
        "",
        "  ",
        {"prompt": 3},
        {"text": TEXT},
        {"prompt": TEXT, "done": ["sing"]},
        {"prompt": TEXT, "done": "x"},
        "\0",
    ],
)
def test_what_is_no_prompt_is_refused_alone(context: object) -> None:
    with pytest.raises(DataError):
        decider().decide(DecisionRequest(context=context))
    good, bad = decider().decide_many([DecisionRequest(context=TEXT), DecisionRequest(context=context)])
    assert not isinstance(good, Exception)
    assert isinstance(bad, DataError)


def test_deciding_together_is_deciding_alone() -> None:
    asked = decider(explore=True)
    requests = [DecisionRequest(context=one.text, seed=i) for i, one in enumerate(prompts())]
    for alone, together in zip(map(asked.decide, requests), asked.decide_many(requests), strict=True):
        assert not isinstance(together, Exception)
        assert alone.action == together.action
        assert alone.propensity == pytest.approx(together.propensity, abs=1e-5)


def test_no_weights_make_a_masked_action_possible() -> None:
    network = policy()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(torch.nan)
    asked = PromptDecider(network=network, reader=READER, artefact_version="0").sampled()
    decision = asked.decide(DecisionRequest(context={"prompt": TEXT, "done": ["expansion"]}, seed=1))
    assert decision.expected[decision.action].masked is None
