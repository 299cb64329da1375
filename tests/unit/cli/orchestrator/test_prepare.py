"""`etude prepare`, and summaries of executions as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from etude.cli.orchestrator.execution_display import summary_tables
from etude.cli.orchestrator.prepare import prepare
from etude.contracts.errors import DataError, LogError
from etude.orchestrator.metrics import Summary, summarise
from etude.problems.catalogue import read_catalogue
from etude.problems.workflow.examples import read_examples
from tests.unit.orchestrator.lines import CATALOGUE, attempt, corrected, execution, node, numbered, write_log

app = typer.Typer()
app.command()(prepare)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_logs_become_a_training_file(tmp_path: Path) -> None:
    logs = write_log(tmp_path / "logs", *numbered(3), execution("bad", success=False), b"{[bold]}\n")
    reported = run("--logs", logs)
    assert reported.exit_code == 0, reported.output
    lines = reported.stdout.splitlines()
    assert lines[0].startswith("no experts are mixed in: --experts FILE names their training file")
    assert lines[1] == f"{logs}: 5 executions read, 3 kept, 2 dropped"
    damaged, failed = (line.rstrip().split(maxsplit=3) for line in lines[3:5])
    assert damaged[:3] == ["damaged", "line", "1"]
    assert damaged[3].startswith(f"{logs}/executions.jsonl:5 (JSON is malformed")
    assert failed == ["not", "successful", "1", f"{logs}/executions.jsonl:4"]
    assert lines[-3:] == [
        "3 examples written to training_data.json",
        "next, judged against the planner that logged: etude train workflow --data training_data.json --dataset D "
        "--checkpoint RUN",
        "or from nothing: etude train workflow --data training_data.json --phase 1 --out runs/p1",
    ]
    catalogue = read_catalogue(Path("catalogue.json"))
    assert len(read_examples(Path("training_data.json"), catalogue, max_nodes=2)) == 3


def test_nothing_dropped_is_not_made_a_table(tmp_path: Path) -> None:
    reported = run("--logs", write_log(tmp_path / "logs", *numbered(2)), "--out", "here/train.json")
    assert len(reported.stdout.splitlines()) == 5
    assert "--data here/train.json" in reported.stdout
    assert Path("here/catalogue.json").exists()


def test_json_goes_to_stdout_alone(tmp_path: Path) -> None:
    logs = write_log(tmp_path / "logs", *numbered(1), execution("large", nodes=(node(0), node(1), node(2))))
    reported = run("--logs", logs, "--max-nodes", "2", "--json")
    assert json.loads(reported.stdout) == {
        "out": "training_data.json",
        "experts_file": None,
        "read": 2,
        "kept": 1,
        "experts": 0,
        "labelled": 0,
        "self_declared": 0,
        "workers": {},
        "dropped": {"more than max_nodes": {"count": 1, "places": [f"{logs}/executions.jsonl:2"]}},
        "changes": [],
        "warnings": [],
    }
    assert "2 executions read" in reported.stderr
    assert run("--logs", logs, "--max-nodes", "0").exit_code == 2


def test_what_was_dropped_is_reported_even_where_nothing_is_left(tmp_path: Path) -> None:
    reported = run("--logs", write_log(tmp_path / "logs", execution(success=False)))
    assert isinstance(reported.exception, DataError)
    assert "not successful" in reported.stdout
    assert "next:" not in reported.stdout
    assert not Path("training_data.json").exists()


def test_logs_that_are_not_there(tmp_path: Path) -> None:
    reported = run("--logs", tmp_path / "missing")
    assert isinstance(reported.exception, LogError)
    assert "missing: does not exist" in str(reported.exception)


OWN = {"success_by": "self", "reward": 9.0}


def write_experts(file: Path, *plans: tuple[str, list[str]]) -> Path:
    """A training file with names, each plan a chain by the large worker."""
    records = [
        {
            "instruction": text,
            "targets": {
                "task_types": kinds,
                "dependencies": [[i - 1] if i else [] for i in range(len(kinds))],
                "model_selections": ["large"] * len(kinds),
            },
        }
        for text, kinds in plans
    ]
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(records))
    return file


def test_experts_are_mixed_in_and_self_declared_successes_choose_only_workers(tmp_path: Path) -> None:
    experts = write_experts(
        tmp_path / "experts.json",
        ("Draft it and send it", ["draft", "send"]),
        ("Draft, review, send", ["draft", "review", "send"]),
        ("Review it", ["review"]),
    )
    logs = write_log(
        tmp_path / "logs",
        execution("Draft it and send it", **OWN),  # as the expert, by the small worker
        execution("Draft, review, send", **OWN),  # leaves out the review
        execution("Something else", **OWN),  # of which no expert knows anything
    )
    reported = run("--logs", logs, "--experts", experts)
    assert reported.exit_code == 0, reported.output
    lines = reported.stdout.splitlines()
    assert lines[0] == f"experts: 3 examples of {experts}"
    assert "1 self-declared successes give their workers to plans of known subtasks" in lines
    shown = {line.split("  ")[0]: line for line in lines}
    assert f"{logs}/executions.jsonl:2 (review)" in shown["leaves out what was asked"]
    assert f"{logs}/executions.jsonl:3" in shown["self-declared success"]
    changed = shown["Draft, review, send"]
    assert "draft by small, send by small" in changed
    assert "draft by large, review by large, send by large" in changed
    assert "did better than the expert's" in shown["Draft it and send it"]
    assert "configure `verify:` in workers.yaml, label with `etude label`, or name experts" in reported.stdout
    assert "1 examples and 2 of the experts written to training_data.json" in lines
    made = {e.instruction: e.targets for e in read_examples(Path("training_data.json"), CATALOGUE, max_nodes=3)}
    assert made["Draft it and send it"].model_selections == (0, 0)
    assert made["Draft, review, send"].task_types == (0, 1, 2)
    assert made["Review it"].model_selections == (1,)
    assert "Something else" not in made


def test_the_experts_own_file_is_not_overwritten(tmp_path: Path) -> None:
    experts = write_experts(tmp_path / "experts.json", ("Draft it", ["draft"]))
    before = experts.read_bytes()
    reported = run("--logs", write_log(tmp_path / "logs", execution()), "--experts", experts, "--out", experts)
    assert isinstance(reported.exception, DataError)
    assert "is the experts' own file" in str(reported.exception)
    assert experts.read_bytes() == before


def test_experts_with_unknown_names_are_refused(tmp_path: Path) -> None:
    experts = write_experts(tmp_path / "experts.json", ("Draft it", ["draft", "sned"]))
    reported = run("--logs", write_log(tmp_path / "logs", execution()), "--experts", experts)
    assert isinstance(reported.exception, DataError)
    said = f"{experts}, record 0, node 1: the task type 'sned' is not in the catalogue: did you mean 'send'?"
    assert str(reported.exception) == said


def test_only_self_declared_successes_leave_nothing_to_learn(tmp_path: Path) -> None:
    reported = run("--logs", write_log(tmp_path / "logs", execution(**OWN)))
    assert isinstance(reported.exception, DataError)
    assert "label some with `etude label`" in str(reported.exception)
    assert run("--logs", tmp_path / "logs", "--trust-self-declared").exit_code == 0


def test_ids_are_written_on_request(tmp_path: Path) -> None:
    assert run("--logs", write_log(tmp_path / "logs", execution()), "--ids").exit_code == 0
    assert json.loads(Path("training_data.json").read_text())[0]["targets"]["task_types"] == [0, 2]


def test_it_needs_no_torch(tmp_path: Path) -> None:
    logs = write_log(tmp_path / "logs", *numbered(1))
    code = "import sys; from pathlib import Path; from etude.cli.orchestrator.prepare import prepare\n"
    code += "prepare(Path(sys.argv[1])); print({'torch', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, str(logs)], capture_output=True, text=True, timeout=240)
    assert done.stdout.endswith("set()\n"), done.stderr


def shown(summary: Summary) -> str:
    screen = Console(width=200, highlight=False)
    with screen.capture() as taken:
        for part in summary_tables(summary):
            screen.print(part)
    return taken.get()


def test_a_summary_as_tables() -> None:
    failed = node(2, 0, attempts=(attempt(0, "rate_limit"), attempt(1, latency_ms=2500.0)))
    lines = shown(
        summarise([execution(), execution(nodes=(node(0), failed), decisions=(corrected(1, "switch"),))], CATALOGUE)
    ).splitlines()
    cells = {line.split("  ")[0].strip(): line for line in lines}
    assert cells["workflows"].split() == ["workflows", "2", "2", "of", "them", "succeeded"]
    assert cells["how they ended"].split() == ["how", "they", "ended", "success", "2"]
    assert cells["success"].split() == ["success", "100.0%", "34.2%", "–", "100.0%"]
    assert cells["cost, USD"].split()[2:] == ["0.02", "0.02", "–", "0.02"]
    assert cells["violations"].split() == ["violations", "0"]
    assert cells["corrections per workflow"].split()[3] == "0.5"
    assert cells["small"].split() == ["small", "4", "75.0%", "(30.1%", "–", "95.4%)", "0.01", "100", "rate_limit", "1"]
    assert "2,500" in cells["large"]
    assert cells["send"].split()[1:3] == ["3", "66.7%"]
    assert cells["rate_limit"].split()[1:5] == ["1", "switch", "1", "100.0%"]


def test_a_summary_of_nothing_has_no_numbers() -> None:
    reported = shown(summarise([], CATALOGUE))
    assert "nan" not in reported
    assert "worker" not in reported
    assert reported.count("–") == 7
