"""`etude.Orchestrator` as a user has it: a loaded policy, callables or a file for workers, await or not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import etude
from etude.contracts.errors import WorkersError
from etude.contracts.work import Fault, Reply, Subtask, WorkerError
from etude.orchestrator.record import correction_of, failed_node
from tests.language import trained_run

TEXT = "Please fetch the letter, then mail it"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory)


def quick(subtask: Subtask) -> str:
    return f"{subtask.task_type}({', '.join(str(made.output) for made in subtask.inputs)})"


async def careful(subtask: Subtask) -> Reply:
    await asyncio.sleep(0)
    return Reply(output=quick(subtask).upper(), cost_usd=0.02)


def test_callables_carry_out_what_a_policy_plans_blocking_or_not(run: Path) -> None:
    orchestrator = etude.Orchestrator(etude.load(run), {"quick": quick, "careful": careful})
    blocking, awaited = orchestrator.run(TEXT), asyncio.run(orchestrator.execute(TEXT))
    assert blocking.success
    assert awaited.success
    assert blocking.output == awaited.output == "mail(fetch())"
    assert blocking.cost_usd == pytest.approx(0.02)  # two calls at the catalogue's price
    assert blocking.execution.policy == etude.load(run).version


def test_what_fails_is_corrected_by_the_policy(run: Path) -> None:
    calls = []

    def flaky(subtask: Subtask) -> str:
        calls.append(subtask.attempt)
        if len(calls) == 1:
            raise WorkerError("busy", fault=Fault.RATE_LIMIT)
        return quick(subtask)

    result = etude.Orchestrator(etude.load(run), {"quick": flaky, "careful": careful}).run(TEXT)
    decided = [correction_of(d) for d in result.execution.decisions if failed_node(d) is not None]
    assert decided
    assert result.execution.nodes[0].attempts[0].fault == "rate_limit"
    assert not result.execution.violations


def test_a_new_worker_may_join_and_one_that_is_gone_is_not_asked(run: Path) -> None:
    orchestrator = etude.Orchestrator(etude.load(run), {"newcomer": quick})
    assert {w.name for w in orchestrator.crew.catalogue.workers} == {"newcomer"}
    result = orchestrator.run(TEXT)
    assert result.success
    assert result.cost_usd == 0.0


def test_a_workers_file(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(
        "task_types: {fetch: fetch a document from the archive, mail: mail the result to the team}\n"
        "workers: {sh: {kind: command, command: [echo, '{task_type}']}}\n"
    )
    result = etude.Orchestrator(etude.load(run), file).run(TEXT)
    assert (result.success, result.output) == (True, "mail")


def test_no_worker_to_do_it(run: Path) -> None:
    with pytest.raises(WorkersError, match="there are no workers"):
        etude.Orchestrator(etude.load(run), {})


def test_there_is_no_such_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Orchestra'"):
        _ = etude.Orchestra
