"""Plans that a trained planner is unsure of: who plans instead, what it costs, and what is recorded of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import etude
from etude.contracts.errors import ConfigError
from etude.contracts.work import Fault, Subtask, WorkerError
from etude.orchestrator.executor import Result
from etude.orchestrator.record import Execution, correction_of
from etude.orchestrator.trajectories import to_execution, to_trajectory
from etude.orchestrator.unsure import Unsure, Verdicts, verdict
from etude.problems.workflow.decide import WorkflowDecider, by_rules
from etude.problems.workflow.doubt import Hinted, Proposal
from etude.problems.workflow.plan import Limits, Node, Plan
from tests.chat_server import Act, ChatServer
from tests.language import CATALOGUE, WORDS, trained_run
from tests.unit.orchestrator.lines import execution

TEXT = "Please fetch the letter, then mail it"
HARD = "draw, count, fetch, mail, translate and summarise"
"""More subtasks than any example has."""
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
    assert result.execution.probability == pytest.approx(proposed(run).probability_with_links)


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
    assert result.execution.probability == pytest.approx(proposed(run).probability_with_links)


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
    with pytest.raises(ConfigError, match="when_unsure is 'refuse', and there is no min_probability"):
        Unsure(min_probability=None)


# Takeover: the minimum probability follows how often the fallback is right


@pytest.fixture
def workers(tmp_path: Path) -> Callable[[str | None], Path]:
    """A workers file whose verifier of whole workflows expects this pattern; None has no verifier."""

    def write(pattern: str | None) -> Path:
        tool = {"kind": "command", "task_types": list(WORDS), "command": ["echo", "done"]}
        verify = {} if pattern is None else {"verify": {"regex": pattern}}
        file = tmp_path / "workers.yaml"
        file.write_text(json.dumps({"task_types": WORDS, "workers": {"tool": tool}, **verify}))
        return file

    return write


WRONG, RIGHT = "never", "done"


def carried_out_all(
    run: Path, workers: Path, instructions: list[str], *, server: ChatServer | None = None, **options: Any
) -> tuple[list[Execution], Verdicts]:
    """In this order unless `concurrency` is above 1, with a language model as the fallback."""
    concurrency = options.pop("concurrency", 1)

    async def all_of_them() -> tuple[list[Execution], Verdicts]:
        async with server or ChatServer(answer=lambda request: DRAWN) as serving:
            model = etude.load(f"llm:{serving.url}#m", attempts=1)
            orchestrator = etude.Orchestrator(etude.load(run), workers, fallback=model, **options)
            try:
                results = await orchestrator.execute_all(instructions, concurrency=concurrency)
            finally:
                await orchestrator.close()
            return [result.execution for result in results], orchestrator.unsure.verdicts

    return asyncio.run(all_of_them())


def is_by_model(done: Execution) -> bool:
    return bool(done.decisions) and done.decisions[0].policy.startswith("llm:")


def test_the_planner_takes_over_from_a_model_that_is_wrong(run: Path, workers: Callable[..., Path]) -> None:
    done, verdicts = carried_out_all(run, workers(WRONG), [HARD] * 40)
    chance = done[0].probability or 0.0
    assert 0 < chance < 0.5
    # 1/2, 1/3, 1/4, … until the planner is as sure of its plan as the model is right
    asked = sum(is_by_model(one) for one in done)
    assert 0 < asked < 40
    expected = [1 / (2 + min(i, asked)) for i in range(40)]
    assert [one.min_probability for one in done] == pytest.approx(expected)
    assert expected[asked] <= chance < expected[asked - 1]
    assert [is_by_model(one) for one in done] == [i < asked for i in range(40)]
    assert verdicts == Verdicts(right=0, wrong=asked)


def test_a_model_that_is_right_plans_more(run: Path, workers: Callable[..., Path]) -> None:
    chance = proposed(run).probability
    done, verdicts = carried_out_all(run, workers(RIGHT), [TEXT, *[HARD] * 60, TEXT])
    assert not is_by_model(done[0])
    assert verdicts.right >= 60
    assert done[-1].min_probability == pytest.approx(61 / 62)
    assert chance < 61 / 62
    assert is_by_model(done[-1])


def test_a_minimum_that_is_given_does_not_move(run: Path, workers: Callable[..., Path]) -> None:
    done, verdicts = carried_out_all(run, workers(WRONG), [HARD] * 4, min_probability=0.5)
    assert [one.min_probability for one in done] == [0.5] * 4
    assert all(map(is_by_model, done))
    assert verdicts.wrong == 4


def test_self_declared_success_does_not_count(run: Path, workers: Callable[..., Path]) -> None:
    done, verdicts = carried_out_all(run, workers(None), [HARD] * 3)
    assert {(one.success, one.success_by, one.min_probability) for one in done} == {(True, "self", 0.5)}
    assert verdicts == Verdicts()


@pytest.mark.parametrize(("pattern", "wrong"), [(RIGHT, 2), (None, 0)])
def test_a_model_that_makes_no_plan_is_wrong_where_workflows_are_verified(
    run: Path, workers: Callable[..., Path], pattern: str | None, wrong: int
) -> None:
    server = ChatServer(answer=lambda request: "I had rather not")
    done, verdicts = carried_out_all(run, workers(pattern), [HARD] * 2, server=server)
    assert {one.ended for one in done} == {"failed"}
    assert {one.fallback for one in done} == {f"llm:m@{server.url.split('/')[2]}"}
    assert verdicts == Verdicts(wrong=wrong)


def test_many_workflows_at_once_each_keep_to_one_minimum(run: Path, workers: Callable[..., Path]) -> None:
    texts = [HARD if i % 3 else f"{TEXT} {i}" for i in range(48)]
    server = ChatServer(answer=lambda request: DRAWN, latency_s=0.005)
    done, verdicts = carried_out_all(run, workers(WRONG), texts, server=server, concurrency=16)
    for one in done:
        assert one.probability is not None
        assert one.min_probability is not None
        assert is_by_model(one) == (one.probability < one.min_probability) == (one.fallback is not None)
    assert verdicts == Verdicts(wrong=sum(map(is_by_model, done)))
    assert len({one.min_probability for one in done}) > 2


def test_the_record_says_who_planned_and_why(run: Path, workers: Callable[..., Path]) -> None:
    (done,), _ = carried_out_all(run, workers(RIGHT), [HARD])
    assert done.fallback == done.decisions[0].policy
    assert done.min_probability == 0.5
    assert done.probability is not None
    again = to_execution(to_trajectory(done, CATALOGUE.withdrawn("quick", "careful")))
    assert (again.probability, again.min_probability, again.fallback) == (done.probability, 0.5, done.fallback)


def test_what_a_log_shows_about_the_fallback() -> None:
    rules = WorkflowDecider(version="rules", catalogue=CATALOGUE, limits=Limits(), choosers=by_rules())
    unsure = Unsure(min_probability=None, then="fallback", fallback=rules)
    counted = [
        execution(fallback="rules"),
        execution(policy="rules"),  # where it is the policy itself
        execution(fallback="rules", success=False, success_by="judge"),
        execution(fallback="rules", success=False, success_by="person"),
        execution(fallback="rules", success=False, success_by="self", planner_outputs=None),
    ]
    others = [
        execution(),
        execution(fallback="llm:m@host"),
        execution(policy="rules", fallback="llm:m@host"),
        execution(fallback="rules", success_by="self"),
        execution(fallback="rules", success_by=None, success=False),
        execution(fallback="rules", success=False, success_by="self", planner_outputs=None, ended="cancelled"),
    ]
    unsure.learn([*counted, *others], judged=True)
    assert unsure.verdicts == Verdicts(right=2, wrong=3)
    assert unsure.threshold() == pytest.approx(3 / 7)


def test_what_was_not_asked_for_is_planned_again_without_it(run: Path) -> None:
    def choosy(subtask: Subtask) -> str:
        if subtask.task_type == "draw":
            raise WorkerError("this was not asked for", fault=Fault.NOT_APPLICABLE)
        return subtask.task_type

    result = carried_out(run, ChatServer(answer=lambda request: DRAWN), 1.0, worker=choosy)
    corrections = [correction_of(d) for d in result.execution.decisions if correction_of(d)]
    assert corrections == ["replan"]
    assert [node.status for node in result.execution.nodes][-1] == "dropped"
    done = {CATALOGUE.task_types[node.task_type].name for node in result.execution.nodes if node.status == "done"}
    assert done
    assert "draw" not in done
    replanned = [d for d in result.execution.decisions if (d.context or {}).get("state", {}).get("replaced")]
    assert [step[0] for step in replanned[0].context["state"]["replaced"]] == [list(WORDS).index("draw")]


def revising(run: Path, *, right: int, wrong: int) -> tuple[Result, Unsure]:
    """With a fallback that always draws, and so many verdicts on it; the planner takes over no plan."""
    drawing = WorkflowDecider(
        version="drawing",
        catalogue=CATALOGUE,
        limits=Limits(),
        choosers=lambda rules, text: lambda draft, rng: [(a, 1.0) for a in rules.actions(drawn(text))],
    )
    trained = etude.load(run)
    hints = (Hinted(cost=3.0, examples=100, kept=0.95, mended=0.9),)
    calibration = msgspec.structs.replace(trained.calibration, hints=hints, subtasks=(-9.0, 0.0))
    verdicts = Verdicts(right=right, wrong=wrong)
    unsure = Unsure(min_probability=None, then="fallback", fallback=drawing, verdicts=verdicts)
    workers = {"quick": work, "careful": work}
    orchestrator = etude.Orchestrator(dataclasses.replace(trained, calibration=calibration), workers, unsure=unsure)
    return orchestrator.run(TEXT), unsure


def drawn(text: str) -> Plan:
    return Plan(instruction=text, nodes=(Node(task_type="draw", worker="quick"),))


def test_a_plan_of_the_fallback_that_is_mostly_wrong_is_revised(run: Path) -> None:
    result, _ = revising(run, right=5, wrong=45)
    execution_ = result.execution
    assert (execution_.fallback, execution_.revised) == ("drawing", True)
    assert {d.policy for d in execution_.decisions} == {etude.load(run).version}
    assert execution_.decisions[0].propensity is None
    assert result.output == "mail"
    assert to_execution(to_trajectory(execution_, CATALOGUE)).revised


def test_a_plan_of_the_fallback_that_is_mostly_right_is_carried_out(run: Path) -> None:
    result, _ = revising(run, right=990, wrong=1)
    assert (result.execution.fallback, result.execution.revised, result.output) == ("drawing", False, "draw")


def test_a_revised_plan_that_succeeds_shows_that_the_fallback_was_wrong() -> None:
    revised = msgspec.structs.replace(execution(), fallback="m", revised=True, success=True, success_by="verifier")
    assert verdict(revised, "m", judged=True) is False
    assert verdict(msgspec.structs.replace(revised, success=False), "m", judged=True) is None
    assert verdict(msgspec.structs.replace(revised, success_by="self"), "m", judged=True) is None
