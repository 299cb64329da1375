"""`etude gates run`: on a run folder, with exit codes by verdict, JSON and a page; and on a registered version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import etude as api
from etude.bootstrap.gates import ACTIONS
from etude.bootstrap.release import open_registry
from etude.cli.gates import EXITS
from etude.contracts.release import State
from etude.evidence.overlap import Verdict
from etude.learning.run_folder import find_policy
from etude.problems.choice.demo_data import described, make_rows
from etude.release.gates.gate import REPORT, GateReport
from tests.tiny import etude, refused

QUICK = ("--gate", "approval", "--gate", "choice_limits")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gates")
    names = [option["name"] for option in described()]
    lines = [json.dumps(query.row(*names)) for query in make_rows(150, 1)]
    (folder / "outcomes.jsonl").write_text("\n".join(lines), "utf-8")
    (folder / "options.json").write_text(json.dumps(described()), "utf-8")
    api.train("choice", replay=folder / "outcomes.jsonl", encoder="ngrams", out=folder / "run")
    return folder / "run"


def test_a_run_is_judged_and_its_report_kept(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    capsys.readouterr()
    code = etude("gates", "run", run, "--json", "--html", tmp_path / "page.html")
    found = json.loads(capsys.readouterr().out)
    verdicts = {one["name"]: one["verdict"] for one in found["results"]}
    assert code == EXITS[found["verdict"]] != 0
    assert verdicts["off_policy"] == verdicts["held_out"] == "cannot tell"  # there are no logs
    assert {verdicts[name] for name in ("red_team", "choice_limits", "memory")} == {"pass"}
    assert json.loads((run / REPORT).read_text("utf-8")) == found
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "choice_limits" in page
    assert "cannot tell" in page


def test_some_gates_as_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / REPORT).unlink(missing_ok=True)
    capsys.readouterr()
    assert etude("gates", "run", run, *QUICK) == 0
    said = capsys.readouterr().out
    assert "choice_limits" in said
    assert "safety" not in said
    assert not (run / REPORT).exists()  # it is not the whole report


def test_an_unknown_gate_or_version_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no gate 'safty'" in refused(capsys, "gates", "run", run, "--gate", "safty")
    assert "no version begins with it" in refused(capsys, "gates", "run", "abc123")
    assert "no folder of a run" in refused(capsys, "gates", "run", "../somewhere")


def test_a_registered_version_changes_its_state(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = open_registry()
    version = registry.register(find_policy(run), "choice:model", actor="test")
    capsys.readouterr()
    code = etude("gates", "run", version[:8], "--json")
    found = json.loads(capsys.readouterr().out)
    assert code == EXITS[found["verdict"]] != 0
    assert (found["version"], found["slot"]) == (version, "choice:model")
    head = open_registry().head("choice:model")
    assert head is not None
    assert head.action is ACTIONS[Verdict(found["verdict"])]
    assert head.states[version] in (State.REGISTERED, State.REFUSED)
    kept = registry.attached(version, REPORT)
    assert kept is not None
    assert GateReport.from_json(kept).to_json() == found
