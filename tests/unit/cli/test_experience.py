"""`etude ingest` and `etude experience` as a user runs them, together with `etude.task`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import etude as package
from etude.adapters.outbox import Outbox
from etude.bootstrap import clock
from etude.bootstrap import experience as wiring
from etude.contracts.errors import ConfigError
from etude.contracts.examples import EXAMPLES
from etude.contracts.subjects import TRAJECTORIES, encode
from etude.contracts.trajectory import Feedback, Trajectory
from etude.experience.cleaning_pool import MIN_POOL_BYTES
from etude.orchestrator.labels import Label, append_label
from tests.servers.nats import NatsServer
from tests.tiny import etude, json_output, refused
from tests.unit.orchestrator.lines import execution, write_log

NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
BASE: dict[str, Any] = json.loads(encode(EXAMPLES[Trajectory])) | {
    "time": "2026-11-15T08:00:00Z",
    "problem": "workflow",
}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clock, "_clock", lambda: NOW + timedelta(hours=1))
    yield
    for collector in wiring._collector.made.values():
        collector.bus.close()
    wiring._collector.made.clear()


@pytest.fixture
def _real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose events are made now."""
    monkeypatch.setattr(clock, "_clock", lambda: datetime.now(UTC))


def write(path: str, *records: Any) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    Path(path).write_text("\n".join(lines) + "\n", "utf-8")
    return Path(path)


def a_trajectory(number: int, **changes: Any) -> dict[str, Any]:
    return BASE | {"id": f"t-{number}", "user": f"u{number % 3}", "task": f"request {number % 4}"} | changes


def test_a_file_is_taken_in_once(capsys: pytest.CaptureFixture[str]) -> None:
    feedback = json.loads(encode(EXAMPLES[Feedback])) | {"trajectory_id": "t-1", "stars": 1, "thumbs": "down"}
    file = write("events.jsonl", *(a_trajectory(i) for i in range(20)), "nonsense", feedback)
    first = json_output(capsys, "ingest", file)
    assert (first["new"], first["dead_letters"]) == (21, 1)
    assert any("JSON" in reason for reason in first["reasons"])
    again = json_output(capsys, "ingest", file)
    assert again["duplicate"] == 21
    stats = json_output(capsys, "experience", "stats")
    assert (stats["trajectories"], stats["users"], stats["dead_letters"]) == (20, 3, 1)
    assert stats["rewards"] == 21  # one of them revised
    letters = json_output(capsys, "experience", "dead-letters")
    assert [letter["body"] for letter in letters] == ["nonsense"]


def test_what_stands_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    own = {"success": True, "success_by": "self"}
    file = write("events.jsonl", a_trajectory(1, outcome=own), a_trajectory(2, outcome={"success": False}), "[]")
    shown_by: list[tuple[tuple[str | Path, ...], tuple[str, ...]]] = [
        (("ingest", file), ("new", "dead letter", "experience dead-letters")),
        (
            ("experience", "stats"),
            ("2 trajectories", "success", "failure", "1 dead letters", "said so: self-declared 1"),
        ),
        (("experience", "list"), ("t-1", "t-2")),
        (("experience", "list", "--limit", "1"), ("more: --after",)),
        (("experience", "show", "t-1"), ("request 1", "propensity 0.62", "reward", "redacted", ", self-declared)")),
        (("experience", "dead-letters"), ("Expected `object`",)),
        (("experience", "stats", "--where", "user=nobody"), ("no trajectories where user=nobody",)),
        (("experience", "opt-out", "--user", "u2"), ("nothing is kept",)),
        (("experience", "expire", "--days", "0.5"), ("2 trajectories older",)),
    ]
    for command, shown in shown_by:
        capsys.readouterr()
        assert etude(*command) == 0
        out = capsys.readouterr().out
        for words in shown:
            assert words in out, (command, out)


def test_pages_lead_through_everything(capsys: pytest.CaptureFixture[str]) -> None:
    etude("ingest", write("events.jsonl", *(a_trajectory(i) for i in range(7))))
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = json_output(capsys, "experience", "list", "--limit", "3", *after)
        seen += [row["id"] for row in page["rows"]]
        if page["next"] is None:
            break
        after = ["--after", page["next"]]
    assert sorted(seen) == [f"t-{i}" for i in range(7)]


def test_what_is_exported_can_be_taken_in_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    etude("ingest", write("events.jsonl", *(a_trajectory(i) for i in range(6))))
    assert etude("experience", "export", "--where", "user=u1", "--out", "u1.jsonl") == 0
    monkeypatch.setenv("ETUDE_EXPERIENCE__FOLDER", "elsewhere")
    assert json_output(capsys, "ingest", "u1.jsonl")["new"] == 2
    assert {row["user"] for row in json_output(capsys, "experience", "list")["rows"]} == {"u1"}


def test_a_user_is_forgotten_everywhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    secret = "nobody else says quixotic-marmalade"
    etude("ingest", write("events.jsonl", *(a_trajectory(i) for i in range(30)), a_trajectory(99, task=secret)))
    assert etude("dataset", "create", "--problem", "workflow", "--out", "d") == 0
    with package.task(secret, user="u0"):
        ...
    result = json_output(capsys, "experience", "forget", "--user", "u0")
    assert result["trajectories"] == 12
    assert list(result["datasets"].values()) == [11]
    assert json_output(capsys, "experience", "stats")["users"] == 2
    for file in (*Path(".etude").rglob("*"), *Path("d").rglob("*")):
        if file.is_file():
            assert b"quixotic-marmalade" not in file.read_bytes(), file
    assert etude("dataset", "verify", "d") == 0
    assert json_output(capsys, "ingest", "events.jsonl")["forgotten"] == 11
    assert json_output(capsys, "experience", "forget", "--user", "u0")["trajectories"] == 0
    assert "forgotten on its user's request" in refused(capsys, "experience", "show", "t-99")


def test_forgetting_asks_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    etude("ingest", write("events.jsonl", a_trajectory(1)))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: (_ for _ in ()).throw(SystemExit(1)))
    assert etude("experience", "forget", "--user", "u1") == 1
    assert json_output(capsys, "experience", "stats")["trajectories"] == 1
    assert etude("experience", "forget", "--user", "u1", "--yes") == 0
    assert json_output(capsys, "experience", "stats")["trajectories"] == 0


def test_who_opted_out_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    etude("experience", "opt-out", "--user", "u1")
    with package.task("hello", user="u1") as task:
        assert task.decide("tone", options=["a", "b"]) in ("a", "b")
    assert not task.collected
    assert json_output(capsys, "ingest", write("events.jsonl", a_trajectory(1), a_trajectory(2)))["opted_out"] == 1
    assert json_output(capsys, "experience", "stats")["trajectories"] == 1
    etude("experience", "opt-out", "--user", "u1", "--undo")
    assert json_output(capsys, "ingest", "events.jsonl")["new"] == 1


def test_dead_letters_are_replayed_when_they_can_be_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = a_trajectory(1) | {"type": "agent.rl.trajectory.v2", "instruction": "tidy up"}
    result = json_output(capsys, "ingest", write("events.jsonl", newer))
    assert result["dead_letters"] == 1
    assert "upgrade it" in next(iter(result["reasons"]))
    again = json_output(capsys, "experience", "replay-dead-letters")
    assert again == {"replayed": 1, "dead_letter": 1}
    ahead = a_trajectory(2) | {"time": (NOW + timedelta(days=2)).isoformat()}
    json_output(capsys, "ingest", write("ahead.jsonl", ahead))
    monkeypatch.setattr(clock, "_clock", lambda: NOW + timedelta(days=2))
    assert json_output(capsys, "experience", "replay-dead-letters") == {"replayed": 2, "new": 1, "dead_letter": 1}


def test_the_hook_and_the_commands_meet(capsys: pytest.CaptureFixture[str]) -> None:
    with package.task("mail ana@example.com", user="u1", group="free") as task:
        choice = task.decide("tone", {"hour": 9}, options=["formal", "casual"])
        task.turn(observation="a draft", action=choice, result="sent")
    assert package.feedback(task.id, thumbs="up", stars=5)
    story = json_output(capsys, "experience", "show", task.id)
    assert story["trajectory"]["task"] == "mail [EMAIL_1]"
    assert story["trajectory"]["problem"] == "choice:tone"
    assert [reward.get("revision", 0) for reward in story["rewards"]] == [0, 1]
    assert json_output(capsys, "reward", "explain", task.id)["reward"]["trajectory_id"] == task.id


def test_a_rating_of_an_unknown_trajectory_is_kept_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert package.feedback("typo-id", stars=5)
    assert json_output(capsys, "experience", "stats")["waiting"] == 1
    assert etude("experience", "stats") == 0
    assert "ratings whose trajectory has not arrived: 1 " in capsys.readouterr().out
    with package.task("x", id="typo-id"):
        ...
    stats = json_output(capsys, "experience", "stats")
    assert (stats["waiting"], stats["feedback"]) == (0, 1)


def test_a_decision_of_your_own_may_have_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    with package.task("route it") as task:
        task.decide("model", options=["small", "large"])
    with package.task("nothing to decide"):
        ...
    found = json_output(capsys, "experience", "list")["rows"]
    assert sorted(row["problem"] for row in found) == ["choice:model", "task"]
    unset = pytest.raises(ConfigError, match=r"experience\.policies\.allocation is not set")
    with package.task("route it") as task, unset:
        task.decide("allocation")


def test_a_workflow_is_decided_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with package.task("Summarise the report and mail it to Bob") as task:
        plan = task.decide("workflow", {"instruction": "Summarise the report and mail it to Bob"})
        task.turn(action=plan, result="done")
    assert plan.policy == "rules"
    assert [set(node) for node in plan.action] == [{"task_type", "worker", "dependencies"}] * len(plan.action)
    story = json_output(capsys, "experience", "show", task.id)
    logged = story["trajectory"]["decisions"]
    assert len(logged) == len(plan.action) + 1  # and stop
    assert all(decision["propensity"] == 1.0 and decision["eligible"] for decision in logged)


def test_labels_override_the_outcome_of_a_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logs = write_log(tmp_path / "logs", *(execution(id=f"e{i}", success_by="self") for i in range(3)))
    labels = [Label(id="e0", success=True, time="t"), Label(id="e1", success=False, time="t")]
    for label in labels:
        append_label(logs / "labels.jsonl", label)
    counts = json_output(capsys, "ingest", logs / "executions.jsonl", logs / "labels.jsonl")
    assert (counts["new"], counts["dead_letters"]) == (3, 0)
    assert json_output(capsys, "experience", "stats")["successes_by"] == {"person": 1, "self": 1}
    outcome = json_output(capsys, "experience", "show", "e1")["trajectory"]["outcome"]
    assert (outcome["success"], outcome["success_by"]) == (False, "person")
    append_label(logs / "labels.jsonl", Label(id="elsewhere", success=True, time="t"))
    capsys.readouterr()
    assert etude("ingest", logs / "executions.jsonl") == 0
    assert "1 of 3 labels are of executions that are not in the log, such as 'elsewhere'" in capsys.readouterr().out


@pytest.mark.usefixtures("_real_time")
def test_execution_logs_are_trajectories(capsys: pytest.CaptureFixture[str]) -> None:
    assert etude("collect", "--num-executions", "8", "--explore", "0.2", "--out", "logs") == 0
    assert json_output(capsys, "ingest", "logs/executions.jsonl")["new"] == 8
    stats = json_output(capsys, "experience", "stats")
    assert stats["groups"][0]["policy"] == "rules+0.2"
    assert stats["decisions"] > 20
    assert {"verifier"} == set(stats["successes_by"])
    Path("logs/catalogue.json").unlink()
    assert "catalogue.json: does not exist" in refused(capsys, "ingest", "logs/executions.jsonl")


@pytest.mark.usefixtures("_real_time")
def test_a_run_is_a_trajectory_where_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    etude("run", "rules", "Summarise the report and mail it to Bob", "--experience")
    stats = json_output(capsys, "experience", "stats")
    assert (stats["trajectories"], stats["groups"][0]["policy"]) == (1, "rules")


def test_large_files_are_redacted_on_all_cores(capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own: those that it starts leave a tracker behind."""
    filling = "no harm in this. " * 12_000
    lines = [a_trajectory(i, task=f"mail person{i}@example.com {filling}") for i in range(60)]
    file = write("events.jsonl", *lines[:50], "nonsense", *lines[50:])
    assert file.stat().st_size > MIN_POOL_BYTES
    command = [sys.executable, "-m", "etude.cli", "ingest", str(file), "--json"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=240).stdout)
    assert (result["new"], result["dead_letters"]) == (60, 1)
    assert {json.loads(line)["task"][:14] for line in exported(capsys)} == {"mail [EMAIL_1]"}


def exported(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert etude("experience", "export", "--out", "all.jsonl") == 0
    return Path("all.jsonl").read_text().splitlines()


def test_mistakes_are_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no such file" in refused(capsys, "ingest", "nowhere.jsonl")
    assert "there is no trajectory 'x'" in refused(capsys, "experience", "show", "x")
    assert "did you mean 'problem='" in refused(capsys, "experience", "stats", "--where", "problm=a")
    assert "retention_days" in refused(capsys, "experience", "expire")
    for variable, value, message in [
        ("BUS", "kafka://x", "expected `embedded` or nats://"),
        ("STORE", "postgres://x", "expected `embedded` or"),
        ("KEEP_KINDS", "[shoe]", "expected some of"),
        ("MAX_AHEAD_S", "-1", "experience.max_ahead_s is -1"),
        ("BUSS", "x", "did you mean 'experience.bus'"),
    ]:
        with monkeypatch.context() as changed:
            changed.setenv(f"ETUDE_EXPERIENCE__{variable}", value)
            assert message in refused(capsys, "ingest", write("e.jsonl", a_trajectory(1))), variable


def test_three_lines_bring_it_to_a_broker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", sync=False)
    try:
        Path("etude.yaml").write_text(f"experience:\n  bus: {server.url}\n")
        file = write("events.jsonl", *(a_trajectory(i) for i in range(10)), "nonsense")
        assert json_output(capsys, "ingest", file)["sent"] == 11
        code = "import etude\nwith etude.task('hello', user='u9'):\n  ..."
        subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
        outbox = Outbox(Path(".etude/outbox.sqlite"))
        assert outbox.pending(TRAJECTORIES, "forward") == 0  # an agent that ends at once has sent it on
        outbox.close()
        worker = subprocess.Popen([sys.executable, "-m", "etude.cli", "experience", "work"], stderr=subprocess.DEVNULL)
        try:
            until(lambda: json_output(capsys, "experience", "stats")["trajectories"] == 11)
        finally:
            worker.terminate()
            worker.wait(timeout=240)
        assert [letter["body"] for letter in json_output(capsys, "experience", "dead-letters")] == ["nonsense"]
        result = json_output(capsys, "experience", "forget", "--user", "u9")
        assert (result["trajectories"], result["messages"]) == (1, 2)  # the trajectory and its reward
    finally:
        server.stop()


def until(holds: Any, *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_everything_that_is_written_is_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o022)
    try:
        file = write("events.jsonl", *(a_trajectory(i) for i in range(20)), "nonsense")
        there = set(tmp_path.rglob("*"))
        assert etude("ingest", file) == 0
        assert etude("experience", "export", "--out", "out.jsonl") == 0
        problem = "workflow"
        assert etude("dataset", "create", "--problem", problem, "--out", "datasets/a") == 0
    finally:
        os.umask(before)
    made = set(tmp_path.rglob("*")) - there
    assert {".etude/experience.sqlite", "out.jsonl", "datasets/a/manifest.json"} <= {
        str(path.relative_to(tmp_path)) for path in made
    }
    assert {path: oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o077} == {}


@pytest.mark.parametrize(
    "setting", ["bus: 'natz://me:s3cret@broker:4222'", "store: 'clickhose://me:s3cret@host/db'", "bus: 'me:s3cret@b'"]
)
def test_a_mistyped_url_does_not_show_its_password(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("etude.yaml").write_text(f"experience: {{{setting}}}")
    message = refused(capsys, "experience", "stats")
    assert "s3cret" not in message
    assert "expected `embedded` or" in message


def test_schemas_are_exported_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert etude("schemas", "export", tmp_path / "contracts") == 0
    assert etude("schemas", "export", tmp_path / "contracts", "--check") == 0
    (tmp_path / "contracts" / "topics.json").write_text("{}")
    message = refused(capsys, "schemas", "export", tmp_path / "contracts", "--check")
    assert "topics.json is not what the code says" in message


def test_forgetting_a_user_reaches_execution_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    for user in ("ana", "ben"):
        etude("run", "rules", "Summarise the report", "--log", logs, "--user", user)
        capsys.readouterr()
    assert json_output(capsys, "experience", "forget", "--user", "ana")["executions"] == 1
    lines = [json.loads(line) for line in (logs / "executions.jsonl").read_text().splitlines()]
    assert [line["user"] for line in lines] == ["ben"]
