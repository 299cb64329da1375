"""Plans that the planner is unsure of: refused, planned by the rules or chosen by a person, by flag or setting."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from etude.orchestrator.labels import Label, append_label
from etude.orchestrator.log import LABELS_FILE, read_log
from etude.orchestrator.record import Execution
from etude.problems.workflow.artefact import load_planner
from tests.chat_server import ChatServer, in_thread
from tests.language import WORDS, trained_run
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
TEXT = "Please fetch the letter, then mail it"
HARD = "draw, count, fetch, mail, translate and summarise"
UNCLEAR = "mail, then draw and count"
"""Its plan is right with a probability of about 0.3."""
"""More subtasks than any example has."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory)


@pytest.fixture
def workers(tmp_path: Path) -> Path:
    file = tmp_path / "workers.yaml"
    tool = {"kind": "command", "task_types": list(WORDS), "command": ["echo", "done"]}
    file.write_text(json.dumps({"task_types": WORDS, "workers": {"tool": tool}}))
    return file


def carried_out(capsys: Captured, run: Path, workers: Path, *flags: str) -> dict[str, Any]:
    found: dict[str, Any] = json_output(capsys, "run", run, TEXT, "--workers", workers, *flags)
    return found


def test_a_plan_is_shown_with_its_probability_doubts_and_alternatives(run: Path, capsys: Captured) -> None:
    found = json_output(capsys, "plan", run, TEXT, "--alternatives", "2")
    made = load_planner(run).propose(TEXT, count=2)
    wanted = json.loads(msgspec.json.encode(made))
    assert found == wanted.pop("plan") | wanted
    assert found["calibrated"]
    assert len(found["alternatives"]) == 2

    assert etude("plan", run, TEXT) == 0
    shown = capsys.readouterr().out
    assert f"the right subtasks: {made.probability:.2f}; and these links: {made.probability_with_links:.2f}\n" in shown
    assert "next best plans:" in shown
    other = made.alternatives[0]
    assert f"  1  {other.probability:.2f}  {' → '.join(node.task_type for node in other.plan.nodes)}" in shown
    assert etude("plan", run, TEXT, "--alternatives", "0") == 0
    assert "next best" not in capsys.readouterr().out


def test_the_probability_is_recorded_with_the_execution(
    run: Path, workers: Path, tmp_path: Path, capsys: Captured
) -> None:
    found = carried_out(capsys, run, workers, "--log", str(tmp_path / "log"))
    (kept,) = (line for line in read_log(tmp_path / "log") if isinstance(line, Execution))
    assert kept.probability == found["probability"]
    assert 0 < found["probability"] < 1
    assert "probability" not in json_output(capsys, "run", "rules", TEXT, "--workers", workers)


def test_an_unsure_plan_is_refused_and_not_logged(run: Path, workers: Path, tmp_path: Path, capsys: Captured) -> None:
    unsure = ("--min-probability", "1", "--when-unsure", "refuse")
    message = refused(capsys, "run", run, TEXT, "--workers", workers, "--log", tmp_path / "log", *unsure)
    assert "is right with probability 0." in message
    assert "min_probability is 1: say it in other words, or lower min_probability" in message
    assert list(read_log(tmp_path / "log")) == []
    sure = carried_out(capsys, run, workers, "--min-probability", "0.0001", "--when-unsure", "refuse")
    assert sure["success"]


def test_the_rules_plan_what_the_planner_is_unsure_of(run: Path, workers: Path, capsys: Captured) -> None:
    found = carried_out(capsys, run, workers, "--min-probability", "1", "--when-unsure", "fallback")
    alone = json_output(capsys, "run", "rules", TEXT, "--workers", workers)
    assert found["planner_outputs"] == alone["planner_outputs"]
    assert {decision["policy"] for decision in found["decisions"]} == {"rules"}
    assert found["policy"] == load_planner(run).version
    assert 0 < found["probability"] < 1


def test_a_language_model_plans_what_the_planner_is_unsure_of(run: Path, workers: Path, capsys: Captured) -> None:
    plan = {"nodes": [{"id": 1, "task_type": "draw", "worker": "tool", "after": []}]}
    with in_thread(ChatServer(answer=lambda request: json.dumps(plan))) as server:
        found = carried_out(capsys, run, workers, "--min-probability", "1", "--fallback", f"llm:{server.url}#m")
    assert found["planner_outputs"]["task_types"] == [list(WORDS).index("draw")]
    assert found["decisions"][0]["policy"] == f"llm:m@{server.url.split('/')[2]}"
    assert found["policy"] == load_planner(run).version
    assert 0 < found["probability"] < 1


@pytest.mark.parametrize("task_type", ["draw", "mail"])
def test_what_the_fallback_plans_must_be_reachable(run: Path, task_type: str, tmp_path: Path, capsys: Captured) -> None:
    words = list(WORDS)
    tool = {"kind": "command", "task_types": words, "command": ["echo", "done"]}
    absent = {"kind": "command", "task_types": ["mail"], "command": ["no-such-program"]}
    given = {"tool": tool | {"task_types": [name for name in words if name != "mail"]}, "absent": absent}
    workers = tmp_path / "workers.yaml"
    workers.write_text(json.dumps({"task_types": WORDS, "workers": given}))
    plan = {"nodes": [{"id": 1, "task_type": task_type, "worker": "tool", "after": []}]}
    with in_thread(ChatServer(answer=lambda request: json.dumps(plan))) as server:
        asked = ("run", run, TEXT, "--workers", workers, "--min-probability", "1", "--fallback", f"llm:{server.url}#m")
        assert etude(*asked) == (0 if task_type == "draw" else 2)
    said = "'mail' is needed, and no worker that can do it can be reached"
    assert (said in capsys.readouterr().err) == (task_type == "mail")


@pytest.mark.parametrize(("text", "unsure"), [(TEXT, False), (HARD, True)])
def test_a_fallback_alone_plans_below_one_half(
    run: Path, workers: Path, text: str, unsure: bool, capsys: Captured
) -> None:
    found = json_output(capsys, "run", run, text, "--workers", workers, "--fallback", "rules")
    assert (found["probability"] < 0.5) == unsure
    planned_by = "rules" if unsure else load_planner(run).version
    assert {decision["policy"] for decision in found["decisions"]} == {planned_by}


def test_a_minimum_that_is_set_counts_for_the_fallback(
    run: Path, workers: Path, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "etude.yaml").write_text("orchestrator:\n  min_probability: 1\n  when_unsure: refuse\n")
    found = carried_out(capsys, run, workers, "--fallback", "rules")
    assert {decision["policy"] for decision in found["decisions"]} == {"rules"}
    (tmp_path / "etude.yaml").write_text("orchestrator:\n  min_probability: 0\n")
    message = refused(capsys, "run", run, TEXT, "--workers", workers, "--fallback", "rules")
    assert "when_unsure is 'fallback', and min_probability is 0" in message


def test_a_fallback_that_never_plans_is_refused(run: Path, workers: Path, tmp_path: Path, capsys: Captured) -> None:
    given = ("--workers", workers, "--fallback", "rules")
    message = refused(capsys, "run", run, TEXT, *given, "--when-unsure", "ask")
    assert "when_unsure is 'ask', and the fallback is 'rules'" in message
    message = refused(capsys, "collect", "--policy", run, *given, "--explore", "1", "--out", tmp_path / "log")
    assert "a fallback is for a trained planner that does not explore" in message


def test_without_a_terminal_no_one_is_asked_and_the_plan_is_refused(run: Path, workers: Path, capsys: Captured) -> None:
    assert "is right with probability" in refused(
        capsys, "run", run, TEXT, "--workers", workers, "--min-probability", "1"
    )


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A person at a terminal who gives this answer."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", lambda prompt: answer)


@pytest.mark.parametrize("number", [0, 1])
def test_a_person_chooses_the_plan(
    run: Path, workers: Path, number: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = load_planner(run)
    answering(monkeypatch, str(number))
    found = carried_out(capsys, run, workers, "--min-probability", "1", "--when-unsure", "ask")
    names = list(WORDS)
    chosen = [names[i] for i in found["planner_outputs"]["task_types"]]
    made = planner.under(planner.catalogue.withdrawn("quick", "careful")).propose(TEXT)
    plans = [made.plan, *(other.plan for other in made.alternatives)]
    assert chosen == [node.task_type for node in plans[number].nodes]
    assert found["success"]
    assert bool(found.get("decisions")) == (number == 0)  # a person's choice has no propensity


@pytest.mark.parametrize("answer", ["", "no", "99", "-1"])
def test_a_person_who_wants_none_of_them_ends_it(
    run: Path, workers: Path, answer: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, answer)
    assert etude("run", run, TEXT, "--workers", workers, "--min-probability", "1") == 2
    captured = capsys.readouterr()
    assert "The planner is unsure of its plan" in captured.out
    assert "is right with probability" in captured.err


def test_settings_say_it_and_flags_win(
    run: Path, workers: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etude.yaml").write_text("orchestrator:\n  min_probability: 1\n  when_unsure: refuse\n")
    assert "min_probability is 1" in refused(capsys, "run", run, TEXT, "--workers", workers)
    assert carried_out(capsys, run, workers, "--min-probability", "0")["success"]
    monkeypatch.setenv("ETUDE_ORCHESTRATOR__MIN_PROBABILITY", "0")
    assert carried_out(capsys, run, workers)["success"]
    monkeypatch.delenv("ETUDE_ORCHESTRATOR__MIN_PROBABILITY")
    (tmp_path / "etude.yaml").write_text("orchestrator: {min_probability: 2}\n")
    assert "orchestrator.min_probability is 2 (etude.yaml, line 1)" in refused(
        capsys, "run", run, TEXT, "--workers", workers
    )


def test_what_to_do_without_a_threshold_is_refused(run: Path, workers: Path, capsys: Captured) -> None:
    message = refused(capsys, "run", run, TEXT, "--workers", workers, "--when-unsure", "fallback")
    assert "when_unsure is 'fallback', and min_probability is 0" in message


def test_a_collection_reports_what_it_refused(run: Path, workers: Path, tmp_path: Path, capsys: Captured) -> None:
    asked = tmp_path / "asked.txt"
    asked.write_text(f"{TEXT}\n")
    given = ("--workers", workers, "--policy", run, "--instructions", asked, "--num-executions", "2")
    assert etude("collect", *given, "--out", tmp_path / "none", "--min-probability", "1") == 0
    assert "2 workflows were refused and are not logged: the plan (" in " ".join(capsys.readouterr().err.split())
    assert (
        etude("collect", *given, "--out", tmp_path / "rules", "--min-probability", "1", "--when-unsure", "fallback")
        == 0
    )
    kept = [line for line in read_log(tmp_path / "rules") if isinstance(line, Execution)]
    assert len(kept) == 2
    assert {decision.policy for line in kept for decision in line.decisions} == {"rules"}


# Takeover: the minimum probability follows how often the fallback is right


@pytest.fixture
def judged(workers: Path) -> Path:
    """Workers, and a verifier of whole workflows that is never content."""
    workers.write_text(json.dumps({**json.loads(workers.read_text()), "verify": {"regex": "never"}}))
    return workers


def collecting(run: Path, workers: Path, out: Path, count: int) -> list[str | Path]:
    """Arguments for a collection of one workflow after the other, all of the same request."""
    asked = out.parent / "asked.txt"
    asked.write_text("".join(f"{UNCLEAR}\n" for _ in range(20)))
    given = ["--workers", workers, "--policy", run, "--instructions", asked, "--fallback", "rules"]
    return ["collect", *given, "--out", out, "--num-executions", str(count), "--concurrency", "1"]


def kept(out: Path) -> list[Execution]:
    return [line for line in read_log(out) if isinstance(line, Execution)]


def thresholds(out: Path) -> list[tuple[float | None, str | None]]:
    return [(line.min_probability, line.fallback) for line in kept(out)]


def test_a_collection_that_resumes_goes_on_with_what_its_log_shows(
    run: Path, judged: Path, tmp_path: Path, capsys: Captured
) -> None:
    whole = json_output(capsys, *collecting(run, judged, tmp_path / "whole", 20))
    json_output(capsys, *collecting(run, judged, tmp_path / "parts", 1))
    parts = json_output(capsys, *collecting(run, judged, tmp_path / "parts", 20))
    assert thresholds(tmp_path / "parts") == thresholds(tmp_path / "whole")
    assert parts["fallback"] == whole["fallback"]
    wrong = whole["planned_by"]["rules"]
    assert whole["fallback"] == {
        "policy": "rules",
        "min_probability": pytest.approx(1 / (2 + wrong)),
        "right": 0,
        "wrong": wrong,
    }
    assert thresholds(tmp_path / "whole")[:2] == [(1 / 2, "rules"), (1 / 3, "rules")]


def test_a_collection_shows_how_shares_moved_and_the_minimum(
    run: Path, judged: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    summary = json_output(capsys, *collecting(run, judged, tmp_path / "log", 20))
    version, (first, second) = load_planner(run).version, summary["planned_by_half"]
    assert sum(first.values()) == sum(second.values()) == 10
    assert first["rules"] > second.get("rules", 0)  # the planner takes over
    assert etude(*collecting(run, judged, tmp_path / "log", 20)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"in the first half {version} {first[version] / 10:.1%}, rules {first['rules'] / 10:.1%}" in shown
    assert f"in the second half {version} {second[version] / 10:.1%}" in shown
    wrong = summary["planned_by"]["rules"]
    assert (
        f"fallback rules: right in 0 of {wrong} judged workflows; it plans where the planner's probability "
        f"is below {1 / (2 + wrong):.2f}" in shown
    )


def test_a_persons_label_counts_as_a_verdict(run: Path, workers: Path, tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "log"
    found = json_output(capsys, *collecting(run, workers, log, 2))
    assert found["fallback"]["min_probability"] == 0.5  # self-declared success shows nothing
    append_label(log / LABELS_FILE, Label(id=kept(log)[0].id, success=False, time="2026-01-01T00:00:00Z"))
    found = json_output(capsys, *collecting(run, workers, log, 3))
    assert found["fallback"] == {"policy": "rules", "min_probability": pytest.approx(1 / 3), "right": 0, "wrong": 1}
    assert kept(log)[-1].min_probability == pytest.approx(1 / 3)


def test_one_workflow_starts_from_its_log_and_a_minimum_that_is_set_stays(
    run: Path, judged: Path, tmp_path: Path, capsys: Captured
) -> None:
    log = tmp_path / "log"
    asked = ("run", run, HARD, "--workers", judged, "--fallback", "rules", "--log", log)
    for _ in range(2):
        assert etude(*asked) == 3
    assert etude(*asked, "--min-probability", "0.4") == 3
    assert [line.min_probability for line in kept(log)] == pytest.approx([1 / 2, 1 / 3, 0.4])
    capsys.readouterr()


def test_the_language_model_of_the_workers_file_is_the_fallback(run: Path, workers: Path, capsys: Captured) -> None:
    plan = {"nodes": [{"id": 1, "task_type": "draw", "worker": "tool", "after": []}]}
    with in_thread(ChatServer(answer=lambda request: json.dumps(plan))) as server:
        model = {"llm": {"url": server.url, "model": "m"}}
        workers.write_text(json.dumps({**json.loads(workers.read_text()), **model}))
        found = json_output(capsys, "run", run, HARD, "--workers", workers, "--fallback", "llm")
        assert json_output(capsys, "run", "llm", HARD, "--workers", workers)["policy"] == found["fallback"]
    assert found["fallback"] == found["decisions"][0]["policy"] == f"llm:m@{server.url.split('/')[2]}"
