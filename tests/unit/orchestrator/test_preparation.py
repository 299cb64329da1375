"""Workflows with inputs and parameters on real commands, callables and a chat service; what lacks one costs nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.errors import DataError
from etude.orchestrator.executor import Orchestrator, Result
from etude.orchestrator.instructions import Instruction
from etude.orchestrator.trajectories import to_execution, to_trajectory
from etude.orchestrator.workplace import make_decider, make_workplace
from etude.problems.workflow.plan import Node, Plan
from tests.chat_server import Act, ChatServer

TOOLS = """
def top(inputs, count, workflow_inputs):
    words = str(inputs[-1].output).split()
    return sorted(words)[:count] + sorted(workflow_inputs)
"""
WORKERS = """
task_types:
  sort: {description: Sort the lines of a text}
  count: {description: Count the words of a text, input: required}
  top:
    description: List the top words
    input: required
    parameters: {type: object, properties: {count: {type: integer, maximum: 9}}, required: [count]}
    patterns: {count: "top (\\\\d+)"}
  note: {description: Write a note, input: optional}
workers:
  sorter: {kind: command, task_types: [sort], command: [sort], stdin: "{input}", usd_per_call: 0.01}
  counter: {kind: command, task_types: [count], command: [sh, -c, 'wc -w | tr -d " "'], stdin: "{input}"}
  reader: {kind: command, task_types: [sort], command: [cat, "{input.report}"]}
  arguments: {kind: command, task_types: [sort, count], command: [printf, "%s", "{input}"]}
  ranker: {kind: callable, task_types: [top], callable: "inputs_tools:top"}
  writer: {kind: command, task_types: [note], command: [sh, -c, "touch written; cat"], stdin: "{input}"}
"""


@pytest.fixture
def workers(tmp_path: Path) -> Path:
    (tmp_path / "inputs_tools.py").write_text(TOOLS)
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS)
    return file


def plan(*nodes: tuple[str, str, tuple[int, ...]]) -> Plan:
    found = tuple(Node(task_type=kind, worker=worker, dependencies=needs) for kind, worker, needs in nodes)
    return Plan(instruction="do it", nodes=found)


def orchestrator(workers: Path) -> Orchestrator:
    place = make_workplace(workers)
    return Orchestrator(make_decider("rules", place), place.crew)


def run(workers: Path, instruction: str, *nodes: tuple[str, str, tuple[int, ...]], **more: Any) -> Result:
    return orchestrator(workers).run(instruction, plan=plan(*nodes) if nodes else None, **more)


COUNT, SORT = ("count", "counter", ()), ("sort", "sorter", ())


def test_workers_get_the_inputs_of_the_workflow_and_then_the_outputs_of_others(workers: Path, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("pear\napple\nfig tree")
    given = {"report": tmp_path / "report.txt"}
    assert run(workers, "Sort it", SORT, inputs=given).output == "apple\nfig tree\npear"
    assert run(workers, "Count it", SORT, ("count", "counter", (0,)), inputs=given).output == "4"
    assert run(workers, "Read it", ("sort", "reader", ()), inputs=given).output == "pear\napple\nfig tree"
    first = run(workers, "Do both", SORT, COUNT, inputs={"a": "x", "b": "pear fig"})
    assert first.output == {0: "pear fig", 1: "2"}
    made = run(workers, "List the top 2", SORT, ("top", "ranker", (0,)), inputs=given)
    assert made.output == ["apple", "fig", "report"]


def test_a_text_in_the_instruction_is_an_input(workers: Path) -> None:
    done = run(workers, "Sort the lines and count the words: pear, apple, fig")
    assert done.success
    assert sorted(done.output.values()) == ["3", "pear, apple, fig"]
    assert run(workers, Instruction("Count the words", {"a": "one two"}), COUNT).output == "2"


@pytest.mark.parametrize(
    ("instruction", "nodes", "reported"),
    [
        ("Note it, count the words", [("note", "writer", ()), COUNT], "count: it needs an input, and the workflow has"),
        ("Note and sort it", [("note", "writer", ()), SORT], "sort: it needs an input, and the workflow has none"),
        ("Note: it", [("note", "writer", ()), ("top", "ranker", ())], "top: it needs the parameter 'count'"),
        ("Note top 99: it", [("note", "writer", ()), ("top", "ranker", ())], "99 is greater than the maximum of 9"),
        (
            "Note and read: it",
            [("note", "writer", ()), ("sort", "reader", ())],
            "sort: it needs the input 'report', and the workflow has 'text'",
        ),
        (
            f"Note it: {'x' * 40_000}",
            [("note", "writer", ()), ("count", "arguments", ())],
            "count: argument 2 of command, '{input}', is too long: 40,000 bytes, expected at most 32,768",
        ),
    ],
)
def test_a_plan_that_lacks_something_ends_before_its_first_attempt(
    workers: Path, tmp_path: Path, instruction: str, nodes: list[tuple[str, str, tuple[int, ...]]], reported: str
) -> None:
    result = run(workers, instruction, *nodes)
    assert reported in result.error
    assert result.error.endswith("(wrong_input)")
    assert result.lacks_input
    assert (result.success, result.cost_usd, result.trajectory.turns) == (False, 0.0, ())
    assert result.trajectory.outcome.ended == "failed"
    assert [node["status"] for node in (result.trajectory.metadata or {})["nodes"]] == ["planned", "planned"]
    assert not (tmp_path / "written").exists()


def test_a_declaration_wins_over_the_template(workers: Path, tmp_path: Path) -> None:
    workers.write_text(WORKERS.replace("{description: Sort the lines of a text}", "{input: optional}"))
    assert run(workers, "Sort it", SORT).success
    assert run(workers, "Note it", ("note", "writer", ())).success
    assert (tmp_path / "written").exists()


def test_an_output_that_is_too_long_for_an_argument_is_not_retried(workers: Path) -> None:
    story = "word\n" * 20_000
    made = run(workers, "Sort and count it", SORT, ("count", "arguments", (0,)), inputs={"text": story})
    attempts = [(turn.action["worker"], turn.error) for turn in made.trajectory.turns]
    assert attempts[0] == ("sorter", None)
    assert attempts[1][0] == "arguments"
    assert "wrong_input: argument 2 of command, '{input}', is too long" in str(attempts[1][1])
    assert [name for name, _ in attempts[2:]].count("arguments") == 0
    correction = made.trajectory.decisions[-1]
    assert correction.action["correction"] != "retry"
    assert "retry" not in correction.eligible["corrections"]
    assert "switch" in correction.eligible["corrections"]


def test_what_waited_for_an_input_that_was_skipped_is_not_done_with_nothing(workers: Path) -> None:
    workers.write_text(WORKERS.replace("command: [sort],", "command: ['false'],"))
    made = run(workers, "Sort and count it", SORT, ("count", "counter", (0,)), inputs={"text": "a"})
    faults = {str(turn.error) for turn in made.trajectory.turns if turn.action["task_type"] == "count"}
    assert not made.success
    assert any("wrong_input: it needs an input, and no earlier subtask has an output for it" in why for why in faults)


def test_the_record_has_names_sizes_and_parameters_and_no_content(workers: Path) -> None:
    story = "a secret story of many words " * 3
    made = run(workers, "List the top 2", ("top", "ranker", ()), inputs={"report": story})
    (turn,) = made.trajectory.turns
    assert turn.action == {"node": 0, "task_type": "top", "worker": "ranker", "parameters": {"count": 2}}
    metadata = made.trajectory.metadata or {}
    assert set(metadata["inputs"]["report"]) == {"bytes", "sha256"}
    assert story not in json.dumps(metadata)
    line = to_execution(made.trajectory)
    assert line.nodes[0].parameters == {"count": 2}
    catalogue = make_workplace(workers).crew.catalogue
    again = to_trajectory(line, catalogue)
    assert (again.metadata, again.turns) == (metadata, made.trajectory.turns)


def test_files_of_inputs_are_gone_with_the_workflow(workers: Path) -> None:
    workers.write_text(WORKERS.replace('[cat, "{input.report}"]', '[echo, "{input.report}"]'))
    where = Path(run(workers, "Read it", ("sort", "reader", ()), inputs={"report": "x"}).output)
    assert where.name == "report.txt"
    assert not where.parent.exists()


def test_an_input_that_cannot_be_used_is_refused_at_the_call(workers: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt cannot be read"):
        run(workers, "Sort it", inputs={"report": Path("nowhere.txt")})


def filled(workers: Path, server: ChatServer, instruction: str, **more: str) -> Result:
    """A workflow whose parameter a model fills."""

    async def once() -> Result:
        async with server:
            fill = f"fill: {{url: '{server.url}', model: m, attempts: 1, usd_per_call: 0.1}}"
            workers.write_text(WORKERS.replace('patterns: {count: "top (\\\\d+)"}', fill) + more.get("limits", ""))
            asked = orchestrator(workers)
            try:
                nodes = (("note", "writer", ()), ("top", "ranker", ()))
                return await asked.execute(instruction, plan=plan(*nodes))
            finally:
                await asked.close()

    return asyncio.run(once())


def test_a_model_fills_parameters_and_is_paid(workers: Path) -> None:
    server = ChatServer(answer=lambda request: '{"count": 2, "other": 1}')
    made = filled(workers, server, "List the two top words: pear apple fig")
    assert made.output[1] == ["apple", "fig", "text"]
    assert made.cost_usd == pytest.approx(0.1)
    (request,) = server.asked
    assert "List the two top words" in json.dumps(request)
    assert "maximum" in json.dumps(request)


@pytest.mark.parametrize(
    ("answer", "reported", "usd"),
    [
        ("I cannot say", "top: the model that fills its parameters answered 'I cannot say'", 0.1),
        ('{"count": 99}', "99 is greater than the maximum of 9", 0.1),
        ("{}", "it needs the parameter 'count'", 0.1),
        (Act.ERROR, "top: the model that fills its parameters: http", 0.0),
    ],
)
def test_a_model_that_fills_nothing_usable_ends_the_workflow(
    workers: Path, tmp_path: Path, answer: Any, reported: str, usd: float
) -> None:
    acts = [answer] if isinstance(answer, Act) else []
    made = filled(workers, ChatServer(acts, answer=lambda request: str(answer)), "List the top words: pear fig")
    assert reported in made.error
    assert made.trajectory.turns == ()
    assert made.cost_usd == pytest.approx(usd)
    assert not (tmp_path / "written").exists()


def test_a_model_is_not_asked_for_what_is_refused_anyway_or_too_expensive(workers: Path) -> None:
    server = ChatServer(answer=lambda request: '{"count": 2}')
    assert "it needs an input" in filled(workers, server, "List the top words").error
    limits = "limits: {max_cost_usd: 0.05}\n"
    made = filled(workers, server, "List the top words: pear fig", limits=limits)
    assert "to fill its parameters: it may cost 0.1 USD" in made.error
    assert server.requests == 0
