"""`etude train workflow`, `evaluate` and `plan` on a made-up language: what they say, leave and refuse."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.artefact import read_catalogue_of
from etude.problems.workflow.imitation import ImitationLearner
from tests.language import CATALOGUE, WORDS, command, trained_run, write_data
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
REVERSED = Catalogue(task_types=CATALOGUE.task_types[::-1], workers=CATALOGUE.workers)
TEXT = "Please fetch the letter, then mail it"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory)


@pytest.fixture(scope="module")
def test_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), 10, seed=8)[0]


# Training


def test_training_reports_every_epoch_and_how_it_ended(tmp_path: Path, capsys: Captured) -> None:
    data, _ = write_data(tmp_path)
    assert etude(*command(data, tmp_path / "run", num_epochs="2", final_epochs="1")) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert "learning from 74 examples, 6 held out, on cpu" in lines[0]
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == ["1", "2", "3"]
    assert all(word in lines[1] for word in ("loss", "node F1", "link F1", "accuracy", "★"))
    assert "on all examples" in lines[3]
    assert "stopped after 3 epochs" in lines[4]
    assert "the budget is used up" in lines[4]
    assert lines[5].startswith("best validation score: ")
    assert lines[-1].startswith(f"next: etude evaluate {tmp_path}/run --data test.json   etude runs plot ")
    assert lines[-1].endswith(f'etude plan {tmp_path}/run "…"')
    assert captured.err == ""


def test_json_goes_to_stdout_and_the_rest_to_stderr(tmp_path: Path, capsys: Captured) -> None:
    data, _ = write_data(tmp_path, 10)
    settings = {"num_epochs": "1", "final_epochs": "0", "synthetic_augmentations": "0"}
    assert etude(*command(data, tmp_path / "run", "--json", **settings)) == 0
    captured = capsys.readouterr()
    ended = json.loads(captured.out)
    assert (ended["stopped"], ended["epochs"], ended["resumed"]) == ("budget", 1, False)
    assert (ended["best_epoch"], ended["validation_score"]) == (1, ended["best_score"])
    assert ended["run"] == str(tmp_path / "run")
    assert "node F1" in captured.err


def test_several_files_each_with_its_catalogue(tmp_path: Path) -> None:
    first, catalogue = write_data(tmp_path / "one", 10)
    second, _ = write_data(tmp_path / "two", 10, seed=1)
    other = tmp_path / "other.json"
    renamed = Catalogue(
        task_types=tuple(msgspec.structs.replace(t, name=f"{t.name} more") for t in CATALOGUE.task_types),
        workers=tuple(msgspec.structs.replace(w, task_types=None) for w in CATALOGUE.workers),
    )
    other.write_bytes(msgspec.json.encode(renamed))
    more = ("--data", second, "--catalogue", catalogue, "--catalogue", other, "--quiet")
    assert etude(*command(first, tmp_path / "run", *more, num_epochs="1", final_epochs="0")) == 0
    kept = read_catalogue_of(find_policy(tmp_path / "run"))
    assert {t.name for t in kept.task_types} == {*WORDS, *(f"{name} more" for name in WORDS)}


def test_a_finished_run_says_how_it_ended_and_changes_nothing(run: Path, capsys: Captured) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = json_output(capsys, *command(run.parent / "train.json", run))
    assert (result["resumed"], result["epochs"], result["stopped"]) == (True, 14, "budget")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_folder_is_for_one_set_of_settings_data_and_catalogues(run: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    shutil.copytree(run, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    data, catalogue = write_data(tmp_path)
    assert "num_epochs 12 → 7" in refused(capsys, *command(data, out, num_epochs="7"))
    other, _ = write_data(tmp_path / "other", seed=1)
    assert "with other settings (data" in refused(capsys, *command(other, out))
    catalogue.write_bytes(msgspec.json.encode(REVERSED))
    assert "with other settings" in refused(capsys, *command(data, out))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_what_training_cannot_begin_with(tmp_path: Path, capsys: Captured) -> None:
    data, catalogue = write_data(tmp_path)
    out = tmp_path / "run"
    both = refused(capsys, *command(data, out, "--catalogue", catalogue, "--catalogue", catalogue))
    assert "there are 1 data files and 2 catalogues" in both
    assert "none.json: cannot be read" in refused(capsys, *command(tmp_path / "none.json", out))
    assert "none.json: cannot be read" in refused(capsys, *command(tmp_path / "elsewhere" / "none.json", out))
    assert "unknown encoder 'ngram'" in refused(capsys, *command(data, out, "--encoder", "ngram"))
    assert "ngrams" in refused(capsys, *command(data, out, "--encoder", "ngram"))
    assert "num_epochs is 0" in refused(capsys, *command(data, out, num_epochs="0"))
    assert not out.exists()


def test_bad_files_are_named_with_what_is_wrong(tmp_path: Path, capsys: Captured) -> None:
    data, catalogue = write_data(tmp_path)
    out, good = tmp_path / "run", json.loads(data.read_text())
    good[3]["targets"]["task_types"][0] = 17
    data.write_text(json.dumps(good))
    assert f"{data}, record 3: task type 17 does not exist" in refused(capsys, *command(data, out))
    data.write_bytes(bytes(range(256)))
    assert "not valid JSON" in refused(capsys, *command(data, out))
    data.write_text(json.dumps(good[:3]))
    assert "3 examples to learn from: at least 5" in refused(capsys, *command(data, out))
    catalogue.write_text('{"task_types": []}')
    assert "there are none" in refused(capsys, *command(data, out))
    catalogue.write_text('{"task_types": [{"name": ""}]}')
    assert "task_types[0] has no name" in refused(capsys, *command(data, out))
    catalogue.unlink()
    assert "catalogue.json: cannot be read" in refused(capsys, *command(data, out))
    assert not out.exists()


# Evaluation


def test_evaluation_compared_with_the_experts(run: Path, test_data: Path, capsys: Captured) -> None:
    result = json_output(capsys, "evaluate", run, "--data", test_data)
    assert {"run", "data", "examples", "node_f1", "link_f1", "accuracy", "validity", "latency_ms"} <= result.keys()
    assert result["examples"] == 10
    assert result["validity"] == 1.0
    assert 0.5 < result["node_f1"] <= 1
    for name in ("node_f1", "link_f1", "accuracy"):
        low, high = result[f"{name}_ci95"]
        assert low <= result[name] <= high
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"]
    assert etude("evaluate", run, "--data", test_data) == 0
    shown = capsys.readouterr().out
    assert "10 instructions" in shown
    assert f"{result['node_f1']:.3f}" in shown
    assert "validity" in shown


def test_evaluation_by_another_catalogue(run: Path, test_data: Path, tmp_path: Path, capsys: Captured) -> None:
    before = json_output(capsys, "evaluate", run, "--data", test_data)
    (tmp_path / "reversed.json").write_bytes(msgspec.json.encode(REVERSED))
    records = json.loads(test_data.read_text())
    for record in records:
        record["targets"]["task_types"] = [5 - i for i in record["targets"]["task_types"]]
    data = tmp_path / "data.json"
    data.write_text(json.dumps(records))
    after = json_output(capsys, "evaluate", run, "--data", data, "--catalogue", tmp_path / "reversed.json")
    assert [after[name] for name in ("node_f1", "link_f1")] == [before[name] for name in ("node_f1", "link_f1")]


def test_what_cannot_be_evaluated(run: Path, tmp_path: Path, capsys: Captured) -> None:
    alone = refused(capsys, "evaluate", run)
    assert "did not learn in a simulated world: measure a planner on data, expert workflows, or on a dataset" in alone
    assert "cannot be read" in refused(capsys, "evaluate", run, "--data", tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('[{"instruction": "x"}]')
    assert "record 0" in refused(capsys, "evaluate", run, "--data", tmp_path / "bad.json")


# Plans


def test_a_plan_as_json_as_a_table_and_drawn(run: Path, tmp_path: Path, capsys: Captured) -> None:
    plan = json_output(capsys, "plan", run, TEXT)
    assert plan["instruction"] == TEXT
    kinds = [node["task_type"] for node in plan["nodes"]]
    assert set(kinds) <= set(WORDS)
    assert {node["worker"] for node in plan["nodes"]} <= {"quick", "careful"}

    assert etude("plan", run, TEXT, "--svg", tmp_path / "plan.svg") == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()[1 : len(kinds) + 1]]
    assert [row[:2] for row in rows] == [[str(i), kind] for i, kind in enumerate(kinds)]
    assert [row[-1] for row in rows] == [node["worker"] for node in plan["nodes"]]
    assert "drawn in" in shown
    drawn = (tmp_path / "plan.svg").read_text()
    assert drawn.startswith("<svg")
    assert all(kind in drawn for kind in kinds)

    again = json_output(capsys, "plan", run, TEXT, "--svg", tmp_path / "again.svg")
    assert again == plan
    assert (tmp_path / "again.svg").read_text() == drawn


def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def test_an_instruction_from_stdin(run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json_output(capsys, "plan", run, TEXT)
    stdin(monkeypatch, TEXT.encode())
    assert json_output(capsys, "plan", run, "-") == expected


def test_a_plan_under_another_catalogue(run: Path, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "now.json"
    file.write_bytes(msgspec.json.encode(CATALOGUE.withdrawn("mail", "quick")))
    plan = json_output(capsys, "plan", run, "Please translate the letter, then mail it", "--catalogue", file)
    assert {node["worker"] for node in plan["nodes"]} == {"careful"}
    assert "mail" not in [node["task_type"] for node in plan["nodes"]]


@pytest.mark.parametrize("instruction", ["总结这份报告", "🙂", "x" * 100_000, "[red]mail[/] it", "\udcff mail"])
def test_odd_instructions_are_planned_too(run: Path, instruction: str, tmp_path: Path, capsys: Captured) -> None:
    assert json_output(capsys, "plan", run, instruction)["instruction"] == instruction
    assert etude("plan", run, instruction, "--svg", tmp_path / "plan.svg") == 0


def test_bytes_that_are_no_text_are_planned_or_refused(
    run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(monkeypatch, b"\xff\xfe\x00 mail \x80")
    code = etude("plan", run, "-", "--json")
    captured = capsys.readouterr()
    assert code in (0, 2), captured.err
    assert "unexpected" not in captured.err


def test_what_cannot_be_planned(run: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the instruction is empty" in refused(capsys, "plan", run, " ")
    stdin(monkeypatch, b"")
    assert "the instruction is empty" in refused(capsys, "plan", run, "-")
    assert "does not exist" in refused(capsys, "plan", tmp_path / "none", TEXT)
    assert "is not a run" in refused(capsys, "plan", tmp_path, TEXT)
    (tmp_path / "bad.json").write_text('{"task_types": 3}')
    assert "bad.json" in refused(capsys, "plan", run, TEXT, "--catalogue", tmp_path / "bad.json")
    (tmp_path / "none.json").write_text('{"task_types": []}')
    assert "no task types" in refused(capsys, "plan", run, TEXT, "--catalogue", tmp_path / "none.json")


def test_a_run_of_another_problem_makes_no_plans(finished: Path, capsys: Captured) -> None:
    message = refused(capsys, "plan", finished, TEXT)
    assert "is a policy of 'allocation' that does not plan: give a run of `etude train workflow`" in message


def test_a_checkpoint_and_an_artefact_anywhere_plan_too(run: Path, tmp_path: Path, capsys: Captured) -> None:
    assert json_output(capsys, "plan", max((run / "checkpoints").iterdir()), TEXT)["instruction"] == TEXT
    shutil.copytree(find_policy(run).path, tmp_path / "anywhere")
    assert json_output(capsys, "plan", tmp_path / "anywhere", TEXT) == json_output(capsys, "plan", run, TEXT)


def test_only_choices_on_outcomes_are_drawn(run: Path, finished: Path, test_data: Path, capsys: Captured) -> None:
    for flags in ([run, "--data", test_data], [run], [finished]):
        assert "--plot goes with --replay" in refused(capsys, "evaluate", *flags, "--plot", "curve.html")
    message = refused(capsys, "evaluate", finished, "--replay", test_data, "--plot", "curve.html")
    assert "is a policy of 'allocation', which is not measured on replay" in message
    assert not Path("curve.html").exists()


def test_outcomes_are_learned_from_by_choices(run: Path, tmp_path: Path, capsys: Captured) -> None:
    data, _ = write_data(tmp_path / "data")
    out = tmp_path / "run"
    for more in (["--phase", "2"], ["--data", data], ["--method", "practise"], ["--checkpoint", run]):
        message = refused(capsys, "train", "workflow", "--replay", data, "--out", out, *more)
        assert "use `etude train choice --replay FILE`" in message
    assert "is a policy of 'workflow', which is not measured on replay" in refused(
        capsys, "evaluate", run, "--replay", data
    )
    assert not out.exists()


def test_flags_of_the_other_phase_are_refused(run: Path, tmp_path: Path, capsys: Captured) -> None:
    data, _ = write_data(tmp_path / "data")
    out = tmp_path / "run"
    assert "leave the checkpoint out" in refused(capsys, *command(data, out, "--checkpoint", run))
    assert "phase is 3: expected 1, learning from experts, or 2" in refused(capsys, "train", "workflow", "--phase", "3")
    assert not out.exists()


METHODS = [
    (["--method", "sarsa"], "does not learn by 'sarsa': expected one of imitate, practise, from-logs"),
    (
        ["--method", "imitate", "--phase", "2", "--checkpoint", "x"],
        "the method is 'imitate', but the other options are of",
    ),
    (["--method", "from-logs"], "the method is 'from-logs', but the other options are of 'imitate'"),
    (["--method", "practise"], "needs a checkpoint"),
]


@pytest.mark.parametrize(("flags", "message"), METHODS)
def test_a_method_and_the_other_options_agree(flags: list[str], message: str, capsys: Captured) -> None:
    assert message in refused(capsys, "train", "workflow", *flags)


def test_the_document_preset_reaches_the_run(tmp_path: Path) -> None:
    data, _ = write_data(tmp_path, 10)
    short = {"synthetic_augmentations": "0", "final_epochs": "0"}
    more = ("--preset", "document", "--epochs", "1", "--quiet")
    flags = [part for part in command(data, tmp_path / "run", *more, **short) if "learning_rate" not in str(part)]
    flags = [part for i, part in enumerate(flags) if part != "--set" or flags[i + 1 : i + 2] != ["--set"]]
    assert etude(*flags) == 0
    phases = RunFolder(tmp_path / "run").config()["training"]
    assert (phases["phase1_supervised"]["learning_rate"], phases["phase1_supervised"]["train_data_size"]) == (1e-4, 300)
    assert (phases["phase2_rl"]["num_episodes"], phases["phase2_rl"]["learning_rate"]) == (1000, 3e-5)


def test_an_interrupted_training_says_how_to_go_on(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = write_data(tmp_path)
    whole = ImitationLearner.advance

    def interrupted(learner: ImitationLearner, report: Any) -> dict[str, float]:
        if learner.step == 2:
            raise KeyboardInterrupt
        return whole(learner, report)

    monkeypatch.setattr(ImitationLearner, "advance", interrupted)
    assert etude(*command(data, tmp_path / "run")) == 130
    assert "The same command resumes at step 2" in capsys.readouterr().out
    monkeypatch.undo()
    assert etude(*command(data, tmp_path / "run")) == 0
    assert "resuming after 2 epochs" in capsys.readouterr().out
    assert etude(*command(data, tmp_path / "run")) == 0
    assert "already finished" in capsys.readouterr().out
