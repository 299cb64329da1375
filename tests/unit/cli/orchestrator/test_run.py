"""`etude run` and `etude collect`: on simulated workers, on real ones, and mistakes reported before anything runs."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from etude.bootstrap.executions import registered_logs
from etude.bootstrap.experience import open_store
from etude.bootstrap.release import open_registry
from etude.contracts.release import Action
from etude.experience.cleaning import pseudonym
from etude.learning.run_folder import find_policy
from etude.orchestrator.log import forget_in_logs, read_log
from etude.orchestrator.record import Execution
from tests.chat_server import Act, ChatServer, in_thread
from tests.office import second_phase
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[4]
ASKED = "Summarise the report and count its words"
WORKERS = """
task_types:
  summarise: {description: Summarise a report, verify: {regex: short}}
  count: {description: Count the words of a text, input: optional}
workers:
  writer: {kind: command, task_types: [summarise], command: [echo, short]}
  counter: {kind: command, task_types: [count], command: [sh, -c, 'printf %s "$1" | wc -w', wc, "{input}"]}
"""


@pytest.fixture
def workers(tmp_path: Path) -> Path:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS)
    return file


def executions(folder: Path) -> list[Execution]:
    return [found for found in read_log(folder) if isinstance(found, Execution)]


def test_real_commands_do_what_is_asked_and_are_logged(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    svg = tmp_path / "plan.svg"
    assert etude("run", "rules", ASKED, "--workers", workers, "--log", tmp_path / "log", "--svg", svg) == 0
    reported = capsys.readouterr().out
    assert "● summarise writer" in reported
    assert "● count counter" in reported
    assert "\ndone in " in reported
    assert "<svg" in svg.read_text()
    (kept,) = executions(tmp_path / "log")
    assert (kept.success, kept.instruction, kept.ended, kept.violations) == (True, ASKED, "done", ())
    assert {node.status for node in kept.nodes} == {"done"}


def test_json_is_the_line_of_the_log(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    reported = json_output(capsys, "run", "rules", ASKED, "--workers", workers, "--log", tmp_path / "log")
    (line,) = (tmp_path / "log" / "executions.jsonl").read_text().splitlines()
    assert reported == json.loads(line)
    assert reported["planner_outputs"]["task_types"]


def test_what_does_not_succeed_leaves_with_3(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace("[echo, short]", "['false']"))
    assert etude("run", "rules", ASKED, "--workers", file) == 3
    reported = capsys.readouterr().out
    assert "unknown:" in reported
    assert "→ retry" in reported
    assert "→ skip" in reported
    assert "not done: summarise was skipped" in reported


def test_an_instruction_on_stdin(workers: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ASKED.encode())))
    assert etude("run", "rules", "-", "--workers", workers) == 0
    assert ASKED in capsys.readouterr().out


def test_a_trained_planner_runs_in_the_office(tmp_path_factory: pytest.TempPathFactory, capsys: Captured) -> None:
    run = second_phase(tmp_path_factory)
    assert etude("run", run, "Summarise the report and mail it to the team", "--json") in (0, 3)
    reported = json.loads(capsys.readouterr().out)
    assert reported["policy"]
    assert all(0 < decision["propensity"] <= 1 for decision in reported["decisions"])
    assert "violations" not in reported


def test_the_planner_that_serves_runs_by_the_name_of_its_slot(
    tmp_path_factory: pytest.TempPathFactory, capsys: Captured, tmp_path: Path
) -> None:
    assert "workflow is no run folder" in refused(capsys, "run", "workflow", ASKED)
    registry = open_registry()
    version = registry.register(find_policy(second_phase(tmp_path_factory)), "workflow", actor="test")
    registry.record("workflow", Action.GATES_PASSED, version, actor="test")
    registry.approve("workflow", version, by="ada")
    registry.promote_directly("workflow", version, by="ada", reason="")
    capsys.readouterr()
    assert etude("run", "workflow", ASKED, "--json") in (0, 3)
    execution = json.loads(capsys.readouterr().out)
    assert execution["policy"].partition("+")[0] == version
    collect = ("collect", "--policy", "workflow", "--num-executions", "2", "--explore", "1", "--out", tmp_path / "log")
    assert etude(*collect) == 0
    assert {one.policy.partition("+")[0] for one in executions(tmp_path / "log")} == {version}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (("kind: command", "kind: comand"), "did you mean 'command'?"),
        (("[echo, short]", "[no-such-program-anywhere]"), "no-such-program-anywhere"),
        (('"{input}"', '"{inptu}"'), "did you mean"),
        (("regex: short", "regex: '('"), "regex"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_line(
    tmp_path: Path, capsys: Captured, broken: tuple[str, str], said: str
) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace(*broken))
    line = 1 + file.read_text()[: file.read_text().index(broken[1])].count("\n")
    reported = refused(capsys, "run", "rules", ASKED, "--workers", file, "--log", tmp_path / "log", "--strict")
    assert f"{file}:{line}: " in reported
    assert said in reported
    assert not (tmp_path / "log" / "executions.jsonl").exists() or not executions(tmp_path / "log")


def test_a_worker_that_cannot_be_reached_is_reported_and_left_out(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS + "  gone: {kind: command, command: [no-such-program], success_rate: 1.0}\n")
    assert etude("run", "rules", ASKED, "--workers", file, "--log", tmp_path / "log") == 0
    reported = capsys.readouterr().err
    assert f"warning: worker gone is given no work: {file}:8: workers.gone: the program 'no-such-program'" in reported
    assert "install it" in reported
    (kept,) = executions(tmp_path / "log")
    assert {node.worker for node in kept.nodes} == {0, 1}
    assert [decision.context["live"][2][3] for decision in kept.decisions[:1]] == [False]
    reported = refused(capsys, "run", "rules", ASKED, "--workers", file, "--strict")
    assert f"{file}:8: workers.gone" in reported
    assert "given no work" not in reported


def test_only_a_run_that_needs_it_is_refused(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace("[echo, short]", "[no-such-program]"))
    assert etude("run", "rules", ASKED, "--workers", file, "--log", tmp_path / "log") == 2
    reported = capsys.readouterr()
    assert "error: 'summarise' is needed, and no worker that can do it can be reached" in reported.err
    assert reported.out == ""
    assert executions(tmp_path / "log") == []
    assert etude("run", "rules", "Count the words", "--workers", file) == 0


def test_the_example_runs_as_shipped(tmp_path: Path, capsys: Captured) -> None:
    example = ROOT / "examples" / "workers.yaml"
    asked = "Summarise the news and count the words: small steps lead further"
    assert etude("run", "rules", asked, "--workers", example, "--log", tmp_path / "log") == 0
    assert "worker small-model is given no work" in capsys.readouterr().err
    report = tmp_path / "report.txt"
    report.write_text("small steps, and many small steps, lead further")
    asked = "Count the words and list 2 keywords"
    given = ("--workers", example, "--log", tmp_path / "log", "--input", f"report={report}")
    assert etude("run", "rules", asked, *given) == 0
    first, second = executions(tmp_path / "log")
    assert first.execution_result.outputs["1"] == "4"
    assert second.execution_result.outputs == {"0": "8", "1": ["small", "steps"]}
    assert [node.parameters for node in second.nodes] == [{}, {"count": 2}]
    assert etude("run", "rules", "Count the words", "--workers", example) == 3
    reported = capsys.readouterr().out
    assert "count: it needs an input, and the workflow has none" in reported
    assert "give it an input with --input NAME=FILE" in reported


NAMED = """
task_types:
  count: {description: Count the words of a text, input: required}
  greet:
    description: Greet a person
    parameters: {type: object, properties: {person: {type: string}}, required: [person]}
    patterns: {person: "person (\\\\S+)"}
workers:
  counter: {kind: command, task_types: [count], command: [sh, -c, 'wc -w < "$ETUDE_INPUT_REPORT"']}
  greeter: {kind: command, task_types: [greet], command: [printf, "hello %s", "{param.person}"]}
"""


def test_a_log_holds_names_and_sizes_of_inputs_and_redacted_parameters(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(NAMED)
    asked = "Count the words and greet the person ana@example.com"
    given = ("--workers", file, "--log", tmp_path / "log", "--input", "report=the private words of the report")
    assert etude("run", "rules", asked, *given) == 0
    written = (tmp_path / "log" / "executions.jsonl").read_text()
    assert "ana@example.com" not in written
    assert "private" not in written
    (kept,) = executions(tmp_path / "log")
    assert kept.inputs == {"report": {"bytes": 31}}
    assert kept.execution_result.outputs == {"0": "6", "1": "hello [EMAIL_1]"}
    assert kept.nodes[1].parameters == {"person": "[EMAIL_1]"}


def test_a_mistaken_input_is_reported_before_anything_runs(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(NAMED)
    reported = refused(capsys, "run", "rules", "Count the words", "--workers", file, "--input", "report=reprot.txt")
    assert "the input 'report': there is no file reprot.txt" in reported
    assert etude("run", "rules", "Greet somebody", "--workers", file) == 3
    reported = capsys.readouterr().out
    assert "greet: it needs the parameter 'person', and the instruction does not say it" in reported
    assert "--input" not in reported


def test_a_log_is_redacted_and_private_unless_asked_otherwise(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    asked = "Summarise the report that ana@example.com wrote, then count its words"
    assert etude("run", "rules", asked, "--workers", workers, "--log", tmp_path / "log") == 0
    assert etude("run", "rules", asked, "--workers", workers, "--log", tmp_path / "own", "--unredacted") == 0
    assert b"ana@example.com" not in (tmp_path / "log" / "executions.jsonl").read_bytes()
    (kept,), (own,) = executions(tmp_path / "log"), executions(tmp_path / "own")
    assert kept.instruction == asked.replace("ana@example.com", "[EMAIL_1]")
    assert own.instruction == asked
    assert kept.nodes[0].status == "done"
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "log").iterdir()} == {0o600}


def test_what_a_worker_says_is_redacted_too(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace("[echo, short]", "[echo, short of ana@example.com]"))
    assert etude("run", "rules", ASKED, "--workers", file, "--log", tmp_path / "log") == 0
    assert executions(tmp_path / "log")[0].execution_result.outputs["0"] == "short of [EMAIL_1]"
    file.write_text(WORKERS.replace("[echo, short]", "[sh, -c, 'echo no ana@example.com >&2; exit 1']"))
    assert etude("run", "rules", ASKED, "--workers", file, "--log", tmp_path / "failed") == 3
    assert b"ana@example" not in (tmp_path / "failed" / "executions.jsonl").read_bytes()


def test_a_user_can_be_forgotten_in_the_log(
    workers: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for user in ("u1", "u2", "bob@example.com"):
        assert etude("run", "rules", ASKED, "--workers", workers, "--log", "log", "--user", user) == 0
    assert [e.user for e in executions(Path("log"))] == ["u1", "u2", pseudonym("bob@example.com")]
    store = open_store()
    try:
        assert registered_logs(store) == [tmp_path / "log"]
        assert forget_in_logs(registered_logs(store), ["bob@example.com", pseudonym("bob@example.com")]) == (1, {})
    finally:
        store.close()
    assert [e.user for e in executions(Path("log"))] == ["u1", "u2"]


def test_a_long_instruction_is_cut_on_the_screen(workers: Path, capsys: Captured) -> None:
    assert etude("run", "rules", f"{ASKED}. " + "word " * 100_000, "--workers", workers) == 0
    reported = capsys.readouterr().out
    assert "characters)" in reported
    assert len(reported) < 3_000


def test_a_file_that_cannot_be_written_is_named(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    assert etude("run", "rules", ASKED, "--workers", workers, "--svg", tmp_path / "no" / "plan.svg") not in (0, 3)
    assert f"{tmp_path}/no/plan.svg: cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_policy_that_is_not_there(workers: Path, capsys: Captured) -> None:
    reported = refused(capsys, "run", "runs/nowhere", ASKED, "--workers", workers)
    assert "runs/nowhere" in reported


# collect


def test_collecting_in_the_office_goes_on_where_it_stopped(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "logs"
    assert etude("collect", "--num-executions", "12", "--out", out) == 0
    reported = capsys.readouterr().out
    assert "carrying out 12 workflows, decided by rules, on simulated workers" in reported
    assert "success" in reported
    assert f"next: etude prepare --logs {out}" in reported
    assert etude("collect", "--num-executions", "20", "--out", out) == 0
    assert "12 of 20 workflows are in the log, carrying out the other 8, decided by rules" in capsys.readouterr().out
    assert etude("collect", "--num-executions", "20", "--out", out) == 0
    assert "20 of 20 workflows are in the log, nothing is left to carry out" in capsys.readouterr().out
    kept = executions(out)
    assert sorted(e.number or 0 for e in kept) == list(range(20))
    assert len({e.instruction for e in kept}) == 20
    assert not any(e.violations for e in kept)


def test_another_policy_does_not_log_in_the_same_folder(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "logs"
    assert etude("collect", "--num-executions", "4", "--out", out) == 0
    reported = refused(capsys, "collect", "--num-executions", "4", "--out", out, "--policy", "retry")
    assert (
        f"{out}: holds 4 workflows decided by 'rules', not by 'retry': choose another folder with --out, or log "
        "next to them with --append" in reported
    )
    assert len(executions(out)) == 4
    capsys.readouterr()
    for carried_out in ("carrying out 4 workflows", "4 of 4 workflows are in the log, nothing is left"):
        assert etude("collect", "--num-executions", "4", "--out", out, "--policy", "retry", "--append") == 0
        assert carried_out in capsys.readouterr().out
    assert sorted(e.policy for e in executions(out)) == ["retry"] * 4 + ["rules"] * 4


def test_other_instructions_do_not_resume_a_collection(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    asked, out = tmp_path / "asked.txt", tmp_path / "logs"
    asked.write_text("Count the words of ana@example.com\n")
    given = ("--workers", workers, "--instructions", asked, "--out", out, "--num-executions", "1")
    assert etude("collect", *given) == 0
    assert etude("collect", *given) == 0  # the same, although the log has it redacted
    asked.write_text(f"{ASKED}\n")
    reported = refused(capsys, "collect", *given)
    assert f"{out}: workflow 0 of its log is 'Count the words of [EMAIL_1]', not '{ASKED}'" in reported
    assert "choose another folder with --out" in reported
    assert len(executions(out)) == 1


def test_who_said_that_it_succeeded(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    own = "success is self-declared: no verifier of the whole workflow; configure `verify:` in workers.yaml or label"
    assert etude("run", "rules", ASKED, "--workers", workers, "--log", tmp_path / "log") == 0
    assert own in capsys.readouterr().out
    given = ("--workers", workers, "--num-executions", "2", "--out", tmp_path / "own")
    assert etude("collect", *given) == 0
    assert own in capsys.readouterr().out
    workers.write_text(WORKERS + "verify: {regex: '.'}\n")
    assert etude("run", "rules", ASKED, "--workers", workers, "--log", tmp_path / "log") == 0
    assert "a verifier said that it succeeded" in capsys.readouterr().out
    assert [e.success_by for e in executions(tmp_path / "log")] == ["self", "verifier"]
    assert etude("collect", "--num-executions", "12", "--out", tmp_path / "office") == 0
    reported = capsys.readouterr().out
    kept = executions(tmp_path / "office")
    yes, done = sum(e.success for e in kept), sum(e.ended == "done" and not e.success for e in kept)
    assert f"successes by who said so: a verifier {yes}" in reported
    (ended,) = [line for line in reported.splitlines() if line.startswith("how they ended")]
    assert f"success {yes}" in ended
    assert f"done without success {done}" in ended
    assert {e.success_by for e in executions(tmp_path / "office")} == {"verifier"}


def test_workflows_that_no_reachable_worker_can_do_are_not_logged(tmp_path: Path, capsys: Captured) -> None:
    file, asked, out = tmp_path / "workers.yaml", tmp_path / "asked.txt", tmp_path / "logs"
    file.write_text(WORKERS.replace("[echo, short]", "[no-such-program]"))
    asked.write_text(f"{ASKED}\nCount the words\n")
    given = ("--workers", file, "--instructions", asked, "--out", out)
    assert etude("collect", "--num-executions", "2", *given) == 0
    assert "1 workflows were refused and are not logged: 'summarise' is needed" in capsys.readouterr().err
    assert [e.number for e in executions(out)] == [1]
    file.write_text(WORKERS)
    assert etude("collect", "--num-executions", "2", *given) == 0
    assert sorted(e.number or 0 for e in executions(out)) == [0, 1]


def test_what_was_done_and_what_succeeded_are_two_numbers(tmp_path: Path, capsys: Captured) -> None:
    assert etude("collect", "--num-executions", "12", "--out", tmp_path / "logs") == 0
    reported = capsys.readouterr().out
    successes = sum(e.success for e in executions(tmp_path / "logs"))
    assert f"{successes} of them succeeded" in reported


def test_exploring_leaves_decisions_to_chance_with_their_propensity(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "logs"
    reported = json_output(capsys, "collect", "--num-executions", "15", "--out", out, "--explore", "0.5")
    assert reported["count"] == 15
    chances = [d.propensity for e in executions(out) for d in e.decisions]
    assert {e.policy for e in executions(out)} == {"rules+0.5"}
    assert all(chance is not None and 0 < chance <= 1 for chance in chances)
    assert len({chance for chance in chances if chance != 1.0}) > 5


def test_real_workers_collect_what_a_file_asks(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    asked = tmp_path / "asked.txt"
    asked.write_text(f"{ASKED}\nCount the words\n")
    out = tmp_path / "logs"
    given = ("--workers", workers, "--instructions", asked, "--out", out, "--concurrency", "2")
    assert json_output(capsys, "collect", "--num-executions", "3", *given)["success"]["mean"] == 1.0
    assert sorted(e.instruction for e in executions(out)) == ["Count the words", ASKED, ASKED]


def test_collecting_with_inputs_of_each_line_and_of_all(tmp_path: Path, capsys: Captured) -> None:
    file, asked, out = tmp_path / "workers.yaml", tmp_path / "asked.jsonl", tmp_path / "logs"
    file.write_text(NAMED)
    (tmp_path / "report.txt").write_text("one two three")
    asked.write_text('{"instruction": "Count the words", "inputs": {"report": "@report.txt"}}\nCount all words\n')
    given = ("--workers", file, "--instructions", asked, "--num-executions", "2")
    assert etude("collect", *given, "--out", out, "--input", "report=one two") == 0
    outputs = {e.number: e.execution_result.outputs for e in executions(out)}
    assert outputs == {0: {"0": "3"}, 1: {"0": "2"}}
    assert capsys.readouterr().err == ""
    assert etude("collect", *given, "--out", tmp_path / "lacking") == 0
    reported = capsys.readouterr().err
    assert "1 workflows failed before their first attempt: count: it needs an input" in reported
    assert sorted(e.ended for e in executions(tmp_path / "lacking")) == ["done", "failed"]


def test_ctrl_c_leaves_a_complete_log_and_says_how_to_go_on(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace("[echo, short]", "[sh, -c, 'touch begun; sleep 60']"))
    command = [sys.executable, "-m", "etude.cli", "collect", "--num-executions", "3", "--workers", str(file)]
    started = subprocess.Popen(
        [*command, "--out", "logs"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored where tests run
    )
    assert started.stdout is not None
    assert "carrying out 3 workflows" in started.stdout.readline()
    while not (tmp_path / "begun").exists():  # its workers are asleep then
        assert started.poll() is None
    started.send_signal(signal.SIGINT)
    reported, _ = started.communicate(timeout=240)
    assert started.returncode == 130
    assert "The same command resumes" in reported
    assert "etude collect --num-executions 3" in reported
    kept = executions(tmp_path / "logs")
    assert kept
    assert {e.ended for e in kept} == {"cancelled"}


# A language model as the planner


def saying(*nodes: tuple[str, str, list[int]], script: Sequence[Act] = ()) -> ChatServer:
    """A server that always answers with this plan."""
    named = ("id", "task_type", "worker", "after")
    plan = {"nodes": [dict(zip(named, (i, *node), strict=True)) for i, node in enumerate(nodes, 1)]}
    return ChatServer(script, answer=lambda request: json.dumps(plan))


def planned() -> ChatServer:
    return saying(("summarise", "writer", []), ("count", "counter", [1]))


def test_a_language_model_plans(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    workers.write_text(WORKERS + "llm: {usd_per_call: 0.25, attempts: 1}\n")
    with in_thread(planned()) as server:
        name = f"llm:{server.url}#small"
        assert etude("run", name, ASKED, "--workers", workers, "--log", tmp_path / "log") == 0
    reported = capsys.readouterr().out
    assert "● summarise writer" in reported
    assert "for 0.2500 USD" in reported
    (kept,) = executions(tmp_path / "log")
    assert (kept.success, kept.cost) == (True, 0.25)
    assert kept.policy == f"llm:small@{server.url.split('/')[2]}"
    assert kept.decisions[0].context["planning"]["repairs"] == {}


def test_a_plan_that_cannot_be_made_is_reported_and_logged(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    workers.write_text(WORKERS + "llm: {attempts: 1}\n")
    with in_thread(ChatServer([Act.ERROR])) as server:
        assert etude("run", f"llm:{server.url}#m", ASKED, "--workers", workers, "--log", tmp_path / "log") == 3
    assert "answered status 500" in capsys.readouterr().out
    (kept,) = executions(tmp_path / "log")
    assert (kept.ended, kept.planner_outputs) == ("failed", None)


def test_a_language_model_to_collect_from(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    log, data = tmp_path / "log", tmp_path / "data.json"
    with in_thread(planned()) as server:
        asked = ("collect", "--policy", f"llm:{server.url}#m", "--workers", workers, "--out", log)
        summary = json_output(capsys, *asked, "--num-executions", "3")
        version = f"llm:m@{server.url.split('/')[2]}"
        assert summary["planned_by"] == {version: 3}
        summary = json_output(capsys, *asked, "--num-executions", "5")
        assert (summary["planned_by"], server.requests) == ({version: 5}, 5)
        assert "cannot explore" in refused(capsys, *asked, "--explore", "0.1")
    assert etude("prepare", "--logs", log, "--out", data) == 0
    assert {tuple(one["targets"]["task_types"]) for one in json.loads(data.read_text())} == {("summarise", "count")}


def test_a_service_that_is_not_there_is_refused_before_anything_is_logged(
    workers: Path, tmp_path: Path, capsys: Captured
) -> None:
    with in_thread(planned()) as server:
        pass
    log = tmp_path / "log"
    assert etude("collect", "--policy", f"llm:{server.url}#m", "--workers", workers, "--out", log) == 2
    assert "no service listens at 127.0.0.1" in capsys.readouterr().err
    assert executions(log) == []


def test_a_language_models_plan_that_needs_an_unreachable_worker_is_refused(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace("[echo, short]", "[no-such-program]"))
    with in_thread(planned()) as server:
        assert etude("run", f"llm:{server.url}#m", ASKED, "--workers", file, "--log", tmp_path / "log") == 2
    assert "error: 'summarise' is needed, and no worker that can do it can be reached" in capsys.readouterr().err
    assert executions(tmp_path / "log") == []
    with in_thread(saying(("count", "counter", []))) as server:
        assert etude("run", f"llm:{server.url}#m", "Count the words", "--workers", file) == 0


def test_simulated_workers_and_a_language_model(tmp_path: Path, capsys: Captured) -> None:
    with in_thread(saying(("summarise", "unknown", []))) as server:
        assert etude("run", f"llm:{server.url}#m", "Summarise it", "--json") in (0, 3)
    reported = json.loads(capsys.readouterr().out)
    assert reported["decisions"][0]["context"]["planning"]["repairs"] == {"worker": 1}
    assert reported.get("ended", "done") in ("done", "aborted")


def test_the_share_that_a_fallback_planned(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Captured
) -> None:
    run, log = second_phase(tmp_path_factory), tmp_path / "log"
    with in_thread(saying(("summarise", "unknown", []))) as server:
        asked = ("collect", "--policy", run, "--fallback", f"llm:{server.url}#m", "--num-executions", "6")
        assert etude(*asked, "--out", log / "all", "--min-probability", "1") == 0
        assert f"llm:m@{server.url.split('/')[2]} 100.0%" in " ".join(capsys.readouterr().out.split())
        chances = sorted(kept.probability or 0.0 for kept in executions(log / "all"))
        middle = str((chances[0] + chances[-1]) / 2)
        summary = json_output(capsys, *asked, "--out", log / "some", "--min-probability", middle)
    shares = summary["planned_by"]
    assert sum(shares.values()) == 6
    assert len(shares) == 2
    for kept in executions(log / "some"):
        by_model = kept.decisions[0].policy.startswith("llm:")
        assert by_model == ((kept.probability or 0.0) < float(middle))


def test_names_of_language_models(workers: Path, capsys: Captured) -> None:
    assert "expected llm:URL#MODEL" in refused(capsys, "run", "llm:http://host/v1", ASKED, "--workers", workers)
    assert "llm:URL#MODEL" in refused(capsys, "run", "no-such-run", ASKED, "--workers", workers)
    asked = ("run", "rules", ASKED, "--workers", workers, "--fallback", "llm:http://host/v1#m")
    assert "a fallback is for a trained planner" in refused(capsys, *asked)
    workers.write_text(WORKERS + "llm: {usd_per_cal: 0.25}\n")
    reported = refused(capsys, "run", "llm:http://host/v1#m", ASKED, "--workers", workers)
    assert f"{workers}:8: llm.usd_per_cal: unknown key" in reported
    workers.write_text(WORKERS + "llm: {api_key_env: NO_SUCH_KEY}\n")
    reported = refused(capsys, "run", "llm:http://host/v1#m", ASKED, "--workers", workers)
    assert "the variable 'NO_SUCH_KEY' is not set" in reported
    assert etude("run", "rules", ASKED, "--workers", workers) == 0
