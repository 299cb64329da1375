"""Plans that a trained planner is unsure of: who plans instead, what it costs, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.contracts.errors import ConfigError
from etude.contracts.work import Fault, Subtask, WorkerError
from etude.orchestrator.executor import Result
from etude.orchestrator.record import correction_of
from etude.orchestrator.unsure import Unsure
from etude.problems.workflow.decide import WorkflowDecider, by_rules
from etude.problems.workflow.doubt import Proposal
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
    run: Path, server: ChatServer, min_probability: float, *, worker: Callable[[Subtask], str] = work, **options: Any
) -> Result:
    """With a language model as the fallback."""

    async def once() -> Result:
        async with server:
            model = etude.load(f"llm:{server.url}#m", attempts=1, **options)
            workers = {"quick": worker, "careful": worker}
            orchestrator = etude.Orchestrator(etude.load(run), workers, fallback=model, min_probability=min_probability)
            try:
                return await orchestrator.execute(TEXT)
            finally:
                await orchestrator.close()

    return asyncio.run(once())


def proposed(run: Path) -> Proposal:
    """The planner's own plan."""
    made: Proposal = etude.load(run).propose(TEXT)
    return made


def test_a_planner_that_is_sure_plans_itself(run: Path) -> None:
    server = ChatServer()
    result = carried_out(run, server, 0.0)
    assert server.requests == 0
    assert result.output == "mail"
    first = result.execution.decisions[0]
    assert first.policy == result.execution.policy == etude.load(run).version
    assert first.propensity == 1.0
    assert result.execution.probability == pytest.approx(proposed(run).probability)


def test_what_it_is_not_sure_of_the_language_model_plans(run: Path) -> None:
    server = ChatServer(answer=lambda request: DRAWN)
    result = carried_out(run, server, 1.0)
    assert server.requests == 1
    assert (result.success, result.output) == (True, "draw")
    first = result.execution.decisions[0]
    assert first.policy.startswith("llm:m@127.0.0.1:")
    assert first.propensity is None
    assert first.context["planning"]["asked"] == 1
    assert result.execution.policy == etude.load(run).version
    assert result.execution.probability == pytest.approx(proposed(run).probability)


@pytest.mark.parametrize(("answer", "ended"), [(DRAWN, "done"), ("no plan", "failed")])
def test_what_the_language_model_costs_counts_for_the_workflow(run: Path, answer: str, ended: str) -> None:
    server = ChatServer(answer=lambda request: answer)
    result = carried_out(run, server, 1.0, usd_per_call=0.25)
    assert result.execution.ended == ended
    assert server.requests > 0
    assert result.cost_usd == pytest.approx(0.25 * server.requests + (0.01 if ended == "done" else 0.0))  # and `quick`


def test_any_decider_may_be_the_fallback(run: Path) -> None:
    workers = {"quick": work, "careful": work}
    rules = WorkflowDecider(version="rules", catalogue=CATALOGUE, limits=Limits(), choosers=by_rules())
    unsure = Unsure(min_probability=1.0, then="fallback", fallback=rules)
    result = etude.Orchestrator(etude.load(run), workers, unsure=unsure).run(TEXT)
    assert {decision.policy for decision in result.execution.decisions} == {"rules"}


def test_a_refused_plan_is_not_carried_out(run: Path) -> None:
    workers = {"quick": work, "careful": work}
    result = etude.Orchestrator(etude.load(run), workers, unsure=Unsure(min_probability=1.0)).run(TEXT)
    assert (result.refused, result.execution.nodes) == (True, ())
    assert "min_probability is 1" in result.error


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


def test_a_fallback_is_for_a_planner_that_says_how_probable_its_plans_are(run: Path) -> None:
    rules = WorkflowDecider(version="rules", catalogue=CATALOGUE, limits=Limits(), choosers=by_rules())
    model, planner = etude.load("llm:http://localhost:1/v1#m"), etude.load(run)
    workers = {"quick": work, "careful": work}
    with pytest.raises(ConfigError, match="'rules' does not say how probable its plans are"):
        etude.Orchestrator(rules, workers, fallback=model)
    with pytest.raises(ConfigError, match="does not explore"):
        etude.Orchestrator(planner.decider(explore=True), workers, fallback=model)
    with pytest.raises(ConfigError, match=r"min_probability is 1\.5: expected a probability from 0 to 1"):
        etude.Orchestrator(planner, workers, fallback=model, min_probability=1.5)
    with pytest.raises(ConfigError, match="unsure and fallback are given"):
        etude.Orchestrator(planner, workers, fallback=model, unsure=Unsure(min_probability=0.5))
    with pytest.raises(ConfigError, match="there is no policy to fall back to"):
        Unsure(min_probability=0.5, then="fallback")
