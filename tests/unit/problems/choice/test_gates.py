"""A choice's own gate and the requests that gates ask it: limits hold for a real policy, and broken ones are seen."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.decision import DecisionRequest, Preferences
from etude.contracts.ports import Decider
from etude.contracts.trajectory import Trajectory
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact, write_artefact
from etude.learning.gate import Contender, GateConfig, GateContext
from etude.problems.choice import SPEC
from etude.problems.choice.fit import fit_choice
from etude.problems.choice.gates import gate_requests, limits_hold
from etude.problems.choice.policy import ChoicePolicy, load
from etude.problems.choice.rows import Row
from etude.problems.choice.settings import ChoiceConfig
from etude.problems.choice.state import write_model
from etude.release.gates.gate import run_gate
from etude.release.gates.red_team import read_instructions, red_team
from etude.release.gates.safety import safety
from etude.text.ngrams import NGramEncoder
from tests.unit.release.gates.policies import make_examples


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    rng, rows = random.Random(0), []
    for i in range(200):
        outcomes = {
            name: {"score": float(rng.random() < share), "cost_usd": usd, "latency_ms": 1000 * usd}
            for name, share, usd in (("small", 0.5, 0.01), ("middle", 0.6, 0.1), ("large", 0.9, 1.0))
        }
        context = {"text": rng.choice(("write a poem", "prove a theorem")), "tier": rng.choice(("gold", "basic"))}
        rows.append(Row(context=context, outcomes=outcomes, group=str(i)))
    model = fit_choice(lambda: iter([rows]), NGramEncoder(), ChoiceConfig()).model
    parts, place = write_model(model), tmp_path_factory.mktemp("choice") / "policy"
    about: dict[str, Any] = {"problem": "choice", "method": "replay", "step": 1, "code": "test"}
    about |= {"details": parts.details, "encoder": "ngrams", "settings": {"choice": asdict(ChoiceConfig())}}
    return write_artefact(place, tensors=parts.tensors, files=parts.files, about=about)


def context_of(artefact: Artefact, policy: Decider | None = None) -> GateContext:
    made = load(artefact, explore="softmax")
    version, instructions = read_instructions()
    return GateContext(
        slot="choice",
        spec=SPEC,
        candidate=Contender(artefact=artefact, load=lambda: policy or made),
        requests=gate_requests(artefact, [], 40, 0),
        instructions=instructions,
        instructions_version=version,
        config=GateConfig(fuzz_cases=150, frequency_draws=150),
    )


def test_requests_are_those_of_the_logs(artefact: Artefact) -> None:
    trajectories = [example.trajectory for example in make_examples(5)]
    found = gate_requests(artefact, trajectories, 3, 7)
    assert [request.seed for request in found] == [7, 8, 9]
    assert found[0].options == ("a", "b")


def test_requests_are_made_up_of_what_it_has_learned(artefact: Artefact) -> None:
    nothing: list[Trajectory] = []
    found = gate_requests(artefact, nothing, 30, 0)
    assert len(found) == 30
    assert {request.context["tier"] for request in found} == {"gold", "basic"}
    assert {option["name"] for option in found[0].options or ()} == {"small", "middle", "large"}
    assert found == gate_requests(artefact, nothing, 30, 0)


def test_a_trained_choice_passes_its_own_gate_and_the_red_team(artefact: Artefact) -> None:
    context = context_of(artefact)
    for name, gate in {"choice_limits": limits_hold, "red_team": red_team}.items():
        found = run_gate(name, gate, context)
        assert found.verdict is Verdict.PASS, found.reason


def test_a_trained_choice_passes_the_safety_suite(artefact: Artefact) -> None:
    found = run_gate("safety", safety, context_of(artefact))
    assert found.verdict is Verdict.PASS, found.reason


class IgnoresCaps:
    """A trained choice that decides as if nothing were limited."""

    problem = "choice"

    def __init__(self, policy: ChoicePolicy, *, keep: tuple[str, ...]) -> None:
        self.policy, self.version, self.keep = policy, policy.version, keep

    def decide(self, request: DecisionRequest) -> Any:
        wanted = request.preferences
        kept = {name: getattr(wanted, name) for name in self.keep}
        return self.policy.decide(
            DecisionRequest(context=request.context, options=request.options, preferences=Preferences(**kept))
        )


@pytest.mark.parametrize(
    ("keep", "said"), [(("allowed",), "is expected to have cost_usd"), (("max_cost_usd", "max_latency_ms"), "allowed")]
)
def test_a_choice_that_ignores_limits_fails(artefact: Artefact, keep: tuple[str, ...], said: str) -> None:
    policy = IgnoresCaps(load(artefact), keep=keep)
    found = run_gate("choice_limits", limits_hold, context_of(artefact, policy))
    assert found.verdict is Verdict.FAIL
    assert said in found.reason


def test_without_requests_it_cannot_tell(artefact: Artefact, tmp_path: Path) -> None:
    context = replace(context_of(artefact), requests=())
    assert run_gate("choice_limits", limits_hold, context).verdict is Verdict.CANNOT_TELL
