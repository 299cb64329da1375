"""A trained planner with a language model as its fallback: who plans what, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import ConfigError
from etude.contracts.work import Fault, Subtask, WorkerError
from etude.orchestrator.executor import Result
from etude.orchestrator.record import correction_of
from etude.problems.workflow.decide import WorkflowDecider, by_rules
from etude.problems.workflow.decisions import State, StepState
from etude.problems.workflow.grammar import Status
from etude.problems.workflow.plan import Limits
from tests.chat_server import Act, ChatServer
from tests.language import CATALOGUE, trained_run

TEXT = "Please fetch the letter, then mail it"
DRAWN = json.dumps({"nodes": [{"id": 1, "task_type": "draw", "worker": "quick", "after": []}]})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory)


def work(subtask: Subtask) -> str:
    return subtask.task_type


def carried_out(
    run: Path, server: ChatServer, min_probability: float, *, worker: Callable[[Subtask], str] = work, **more: Any
) -> Result:
    async def once() -> Result:
        async with server:
            model = etude.load(f"llm:{server.url}#m", attempts=1)
            workers = {"quick": worker, "careful": worker}
            orchestrator = etude.Orchestrator(
                etude.load(run), workers, fallback=model, min_probability=min_probability, **more
            )
            try:
                return await orchestrator.execute(TEXT)
            finally:
                await orchestrator.close()

    return asyncio.run(once())


def probability(decision: Any) -> float:
    return float(decision.context["plan_probability"])


def test_a_planner_that_is_sure_plans_itself(run: Path) -> None:
    server = ChatServer()
    result = carried_out(run, server, 0.0)
    assert server.requests == 0
    assert result.output == "mail"
    first = result.execution.decisions[0]
    assert first.policy == etude.load(run).version
    assert first.propensity == 1.0
    assert 0 < probability(first) < 1
    assert result.execution.policy.startswith(f"{first.policy}+llm:m@127.0.0.1:")
    assert result.execution.policy.endswith("<0")


def test_what_it_is_not_sure_of_the_language_model_plans(run: Path) -> None:
    server = ChatServer(answer=lambda request: DRAWN)
    result = carried_out(run, server, 1.0)
    assert server.requests == 1
    assert (result.success, result.output) == (True, "draw")
    first = result.execution.decisions[0]
    assert first.policy.startswith("llm:m@127.0.0.1:")
    assert first.propensity is None
    assert probability(first) == pytest.approx(probability(carried_out(run, server, 0.0).execution.decisions[0]))
    assert first.context["planning"]["asked"] == 1


def test_failures_are_corrected_by_the_trained_planner(run: Path) -> None:
    def flaky(subtask: Subtask) -> str:
        if subtask.attempt == 1:
            raise WorkerError("busy", fault=Fault.RATE_LIMIT)
        return subtask.task_type

    result = carried_out(run, ChatServer(answer=lambda request: DRAWN), 1.0, worker=flaky)
    correction = next(d for d in result.execution.decisions if correction_of(d))
    assert (correction.policy, correction.propensity) == (etude.load(run).version, 1.0)


def test_a_fallback_that_fails_ends_the_workflow(run: Path) -> None:
    result = carried_out(run, ChatServer([Act.ERROR]), 1.0)
    assert (result.success, result.execution.ended) == (False, "failed")
    assert "answered status 500" in result.error


@pytest.mark.parametrize("replanned", [False, True])
def test_the_probability_of_a_plan_is_that_with_which_it_is_sampled(run: Path, replanned: bool) -> None:
    decider = etude.load(run).decider(explore=True)
    done = StepState(0, 0, (), int(Status.DONE), 1, False, 0.01, 0.0, 5.0)
    state = State(steps=(done,), spent_usd=0.01, clock_ms=5.0, corrections=1, replans=1) if replanned else None
    found = set[float]()
    for seed in range(20):
        request = DecisionRequest(context=TEXT, state=state, seed=1_000_003 * seed)
        decision: Decision = decider.decide(request)
        assert decider.probability(request, decision) == pytest.approx(decision.propensity, rel=1e-4)
        found.add(round(decision.propensity or 0.0, 6))
    assert len(found) > 1


def test_a_fallback_is_for_a_trained_planner(run: Path) -> None:
    rules = WorkflowDecider(version="rules", catalogue=CATALOGUE, limits=Limits(), choosers=by_rules())
    model = etude.load("llm:http://localhost:1/v1#m")
    workers = {"quick": work, "careful": work}
    with pytest.raises(ConfigError, match="'rules' does not say how probable its plans are"):
        etude.Orchestrator(rules, workers, fallback=model)
    with pytest.raises(ConfigError, match=r"min_probability is 1\.5: expected a probability from 0 to 1"):
        etude.Orchestrator(etude.load(run), workers, fallback=model, min_probability=1.5)
    with pytest.raises(ConfigError, match="expected a language model, llm:URL#MODEL"):
        etude.Orchestrator(etude.load(run), workers, fallback=etude.load(run))
