"""Phase 2 on plans of one's own: what is practised on, what a run keeps of it, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.catalogue import Catalogue, TaskType
from etude.problems.workflow.artefact import read_catalogue_of, read_pretrained
from etude.problems.workflow.examples import Example
from etude.problems.workflow.office.scenarios import Scenarios
from etude.problems.workflow.phase2 import read_office
from etude.problems.workflow.showcase import read_plans
from tests.language import CATALOGUE, WORDS, chain, examples, trained_run
from tests.office import PHASE_2, first_phase
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
TEXT = "Please fetch the letter, then mail it"
NO_WORKERS = Catalogue(task_types=CATALOGUE.task_types)


def practise(checkpoint: Path, out: Path, *more: str | Path, episodes: int = 40, **changed: str) -> list[str | Path]:
    """Arguments of `etude` for phase 2 from another run; `changed` has keys such as `office__held_out`."""
    settings = {f"training.phase2_rl.{key}": value for key, value in PHASE_2.items()}
    settings |= {"run.device": "cpu", "run.threads": "1", "run.checkpoint_every": "256"}
    settings |= {key.replace("__", "."): value for key, value in changed.items()}
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    given = ["--phase", "2", "--checkpoint", checkpoint, "--episodes", str(episodes), "--out", out]
    return ["train", "workflow", *given, *flags, *more]


def write(folder: Path, given: list[Example], catalogue: Catalogue = CATALOGUE) -> Path:
    """A training file with its catalogue next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plans.json").write_text(json.dumps(msgspec.to_builtins(given)))
    (folder / "catalogue.json").write_bytes(msgspec.json.encode(catalogue))
    return folder / "plans.json"


def distinct(count: int) -> list[Example]:
    return list({example.instruction: example for example in examples(4 * count, seed=5)}.values())[:count]


def plans(count: int = 40) -> list[Example]:
    """With one too many for the tests' limit of four nodes, and one that has a task type twice."""
    return [*distinct(count), chain("do all but mail", [0, 1, 2, 3, 4]), chain("mail it twice", [5, 5])]


def without_workers(given: list[Example]) -> list[Example]:
    return [
        msgspec.structs.replace(e, targets=msgspec.structs.replace(e.targets, model_selections=None)) for e in given
    ]


def catalogue_of(run: Path) -> Catalogue:
    return read_catalogue_of(find_policy(run))


def parts_of(run: Path) -> list[set[str]]:
    """Instructions to learn from, to choose by, to measure on."""
    problem, _ = read_office(run)
    texts, held = problem.scenarios.instructions, problem.config.held_out
    return [set(texts[: -2 * held]), set(texts[-2 * held : -held]), set(texts[-held:])]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("plans"), plans())


@pytest.fixture(scope="module")
def second(first: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "second"
    assert etude(*practise(first, out, "--data", data, "--quiet")) == 0
    return out


# What is practised on


def test_it_says_what_it_practises_on_and_what_was_left_out(
    first: Path, data: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "run"
    assert etude(*practise(first, out, "--data", data)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: training for up to 40 episodes on cpu"
    assert lines[1] == f"continuing from {first}"
    assert lines[2] == "practising on 40 of 42 examples: 32 to learn from, 4 to choose by, 4 to measure on"
    assert lines[3].startswith("left out: ")
    assert set(lines[3].removeprefix("left out: ").split(", ")) == {
        "1 with a task type twice",
        "1 with more than 4 subtasks",
    }
    assert lines[4].startswith("step ")


def test_it_says_when_the_planner_has_learned_from_the_same_file(first: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    assert etude(*practise(first, out, "--data", first.parent / "train.json")) == 0
    assert f"{first} learned from the same file, so it knows the held-out examples too" in capsys.readouterr().out


def test_a_tenth_chooses_another_measures_and_the_rest_teaches(second: Path, data: Path) -> None:
    parts = parts_of(second)
    assert [len(part) for part in parts] == [32, 4, 4]
    given = [example.instruction for example in plans()[:40]]
    assert set.union(*parts) == set(given)
    assert parts[2] != set(given[-4:])  # shuffled
    problem, policies = read_office(second)
    assert (problem.part, list(policies)) == ("measure", ["policy", "phase 1"])
    assert RunFolder(second).config()["office"]["held_out"] == 4


def test_the_seed_shuffles_and_held_out_counts(first: Path, data: Path, second: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = {"run__seed": "1", "office__held_out": "6"}
    assert etude(*practise(first, out, "--data", data, "--quiet", episodes=20, **more)) == 0
    assert [len(part) for part in parts_of(out)] == [28, 6, 6]
    assert set.union(*parts_of(out)) == set.union(*parts_of(second))
    assert not parts_of(second)[2] <= parts_of(out)[2]


def test_a_run_is_whole_without_its_data(first: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    own, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(data.parent, own)
    assert etude(*practise(first, out, "--data", own / data.name, "--quiet")) == 0
    shutil.rmtree(own)
    kept: Scenarios = read_office(out)[0].scenarios
    by_text = {example.instruction: example for example in plans()}
    for row, text in enumerate(kept.instructions):
        wanted = by_text[text].targets
        assert [node.task_type for node in kept.plan(row).nodes] == [list(WORDS)[t] for t in wanted.task_types]
        assert tuple(node.dependencies for node in kept.plan(row).nodes) == wanted.dependencies
    assert catalogue_of(out) == CATALOGUE
    result = json_output(capsys, "evaluate", out, "--episodes", "32")
    assert set(result["baselines"]) == {"phase 1", "random", "cheapest", "best_single", "greedy", "rules", "oracle"}
    assert result["baselines"]["oracle"]["success"] > 0.7
    shown = read_plans(RunFolder(out))
    assert {entry.instruction for entry in shown} == parts_of(out)[2]
    assert all(list(entry.plans) == ["phase 1", "phase 2", "best plan"] for entry in shown)
    page = tmp_path / "page.html"
    assert etude("runs", "plot", out, "--out", page, "--episodes", "8") == 0
    assert "phase 2 did not learn from them" in page.read_text("utf-8")
    assert etude("runs", "show", out) == 0
    assert json_output(capsys, "plan", out, TEXT)["instruction"] == TEXT


def test_without_workers_nothing_costs_and_none_is_chosen(first: Path, tmp_path: Path, capsys: Captured) -> None:
    out, given = tmp_path / "run", write(tmp_path / "data", without_workers(distinct(20)), NO_WORKERS)
    assert etude(*practise(first, out, "--data", given, "--quiet", episodes=20)) == 0
    assert etude("evaluate", out, "--episodes", "32") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["policy", "return", "95", "%", "interval", "success", "corrections"]
    assert {line.split()[0] for line in lines[3:8]} == {"policy", "phase", "rules", "random", "oracle"}
    assert all(node["worker"] is None for node in json_output(capsys, "plan", out, TEXT)["nodes"])


def test_what_the_planner_has_never_met_is_read(first: Path, tmp_path: Path, capsys: Captured) -> None:
    """A file with a task type of its own, and a planner of the office with a file of other types altogether."""
    more = CATALOGUE.added(TaskType(name="sing", description="sing it aloud"))
    given = write(tmp_path / "data", [*distinct(20), *(chain(f"sing song {i}", [6], [0]) for i in range(6))], more)
    out = tmp_path / "run"
    assert etude(*practise(first, out, "--data", given, "--quiet", episodes=20)) == 0
    assert read_pretrained(find_policy(out))[0].known == read_pretrained(find_policy(first))[0].known
    assert catalogue_of(out) == more
    assert json_output(capsys, "evaluate", out, "--episodes", "8", "--no-baselines")["policy"]["validity"] == 1


def test_a_planner_of_the_office_may_practise_on_plans_of_a_user(
    data: Path, tmp_path: Path, capsys: Captured, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path / "run"
    assert etude(*practise(first_phase(tmp_path_factory), out, "--data", data, "--quiet", episodes=20)) == 0
    made = json_output(capsys, "plan", out, TEXT)
    assert {node["task_type"] for node in made["nodes"]} <= set(WORDS)


def test_several_files_are_one_world(first: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    sing = Catalogue(task_types=(TaskType(name="sing"),), workers=CATALOGUE.workers[:1])
    other = write(tmp_path / "songs", [chain(f"sing song {i}", [0], [0]) for i in range(10)], sing)
    out = tmp_path / "run"
    assert etude(*practise(first, out, "--data", data, "--data", other, episodes=20)) == 0
    assert "practising on 50 of 52 examples: 40 to learn from, 5 to choose by" in capsys.readouterr().out
    assert {t.name for t in catalogue_of(out).task_types} == {*WORDS, "sing"}
    assert len(RunFolder(out).config()["data"]) == 2


# Continuing from it


def test_a_run_goes_on_with_the_scenarios_of_the_one_before(second: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    assert etude(*practise(second, out, "--shift", "degraded", episodes=20)) == 0
    stdout = capsys.readouterr().out
    assert "practising on 40 examples: 32 to learn from, 4 to choose by, 4 to measure on" in stdout
    assert "left out" not in stdout
    assert (out / "scenarios.json").read_bytes() == (second / "scenarios.json").read_bytes()
    assert parts_of(out) == parts_of(second)
    assert list(read_office(out)[1]) == ["policy", "before"]
    assert "held_out is 3, but" in refused(capsys, *practise(second, tmp_path / "other", office__held_out="3"))


def test_a_run_may_go_on_with_others(second: Path, tmp_path: Path, capsys: Captured) -> None:
    out, given = tmp_path / "run", write(tmp_path / "data", distinct(60)[40:])
    assert etude(*practise(second, out, "--data", given, episodes=20)) == 0
    assert "practising on 20 examples: 16 to learn from, 2 to choose by, 2 to measure on" in capsys.readouterr().out


# What is refused


def test_a_folder_is_for_the_same_data(first: Path, data: Path, second: Path, tmp_path: Path, capsys: Captured) -> None:
    other, out = write(tmp_path / "data", plans(39)), tmp_path / "run"
    shutil.copytree(second, out)
    assert "with other settings (data" in refused(capsys, *practise(first, out, "--data", other))
    other_parent = refused(capsys, *practise(second, out, "--data", data))
    assert "with other settings (" in other_parent
    assert "parent " in other_parent
    assert etude(*practise(first, out, "--data", data)) == 0
    assert "already finished" in capsys.readouterr().out
    (out / "scenarios.json").unlink()
    assert "scenarios.json: cannot be read" in refused(capsys, "evaluate", out)


def test_shifts_that_only_the_office_has(
    first: Path, data: Path, second: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "run"
    for shift in ("new_tool", "phrasings"):
        for given in (practise(first, out, "--data", data), practise(second, out)):
            message = refused(capsys, *given, "--shift", shift)
            assert f"office.shift is {shift!r}, which is made of the simulated office's own words" in message
    unstaffed = write(tmp_path / "data", without_workers(distinct(20)), NO_WORKERS)
    message = refused(capsys, *practise(first, out, "--data", unstaffed, "--shift", "degraded"))
    assert "office.shift is 'degraded', but the catalogue has no workers" in message
    assert not out.exists()


def test_what_no_world_can_be_made_of(first: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    out, few = tmp_path / "run", write(tmp_path / "few", plans(4))
    message = refused(capsys, *practise(first, out, "--data", few))
    assert "there are 4 examples to practise on" in message
    assert "at least 5 are needed, some are held out; give more examples" in message
    many = refused(capsys, *practise(first, out, "--data", data, office__held_out="20"))
    assert "office.held_out is 20, of 40 scenarios" in many
    steps = refused(capsys, *practise(first, out, "--data", data, training__phase2_rl__max_steps_per_episode="9"))
    assert "max_steps_per_episode is 9, but the limits allow a workflow 19 decisions: raise it" in steps
    assert "expected a training file" in refused(capsys, *practise(first, out, "--data", data.with_name("none.json")))
    assert "there are 1 data files and 2 catalogues" in refused(
        capsys, *practise(first, out, "--data", data, *["--catalogue", data.with_name("catalogue.json")] * 2)
    )
    assert not out.exists()


def test_without_data_the_remedy_is_named(first: Path, tmp_path: Path, capsys: Captured) -> None:
    message = refused(capsys, *practise(first, tmp_path / "run"))
    assert "task types that the simulated office does not have" in message
    assert "give data, the plans that it is to practise on" in message
