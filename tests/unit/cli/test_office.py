"""Both phases in the simulated office by commands: what they say, leave behind and refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import etude as package
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import checkpoints, read_checkpoint
from etude.learning.practise import Practice
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.artefact import read_catalogue_of, read_pretrained
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.office import phrases
from etude.problems.workflow.office.problem import without_new_entries
from etude.problems.workflow.office.scenarios import generate
from etude.problems.workflow.phase1 import office_experts
from etude.problems.workflow.phase2 import read_office
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.settings import WorkflowSettings
from etude.problems.workflow.showcase import read_plans
from etude.settings.tree import resolve_settings
from tests.language import command, write_data
from tests.office import PHASE_2, SETTINGS, first_phase, go_on, imitate, second_phase
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
TEXT = "Summarise the report, then mail it to Ana."
SCENARIOS = generate(0, 100)
BASELINES = {"random", "cheapest", "best_single", "greedy", "rules", "oracle"}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_phase(tmp_path_factory)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return second_phase(tmp_path_factory)


def output(capsys: Captured, *args: str | Path) -> str:
    capsys.readouterr()
    assert etude(*args) == 0
    return capsys.readouterr().out


def files(run: Path) -> dict[Path, bytes]:
    return {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def newest(folder: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(checkpoints(folder)[-1])[0]


def catalogue_of(run: Path) -> Catalogue:
    return read_catalogue_of(find_policy(run))


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


# Phase 1


def test_phase_1_imitates_the_office_s_experts_without_data(tmp_path: Path, capsys: Captured) -> None:
    lines = output(capsys, *imitate(tmp_path / "run")).splitlines()
    assert "learning from 57 examples, 3 held out, on cpu" in lines[0]
    assert catalogue_of(tmp_path / "run") == without_new_entries(SCENARIOS)
    config = RunFolder(tmp_path / "run").config()
    assert (config["phase"], config["data"], config["office"]["scenarios"]) == (1, [], 60)
    assert (config["limits"]["max_nodes"], config["limits"]["max_corrections"]) == (10, 3)  # of the preset


def test_experts_show_plans_for_none_of_the_held_out_instructions() -> None:
    given = [f"{key}={value}" for key, value in SETTINGS.items()]
    settings = resolve_settings("workflow", preset="office", assignments=given).settings
    catalogue, examples = office_experts(settings.own(WorkflowSettings), settings.run.seed)
    assert tuple(example.instruction for example in examples) == SCENARIOS.instructions[:60]
    assert not set(phrases.NEW_ENTRIES) & {entry.name for entry in (*catalogue.task_types, *catalogue.workers)}
    spoilt = sum(len(e.targets.task_types) != int(n) for e, n in zip(examples, SCENARIOS.length, strict=False))
    assert 0 < spoilt < 15  # `office.expert_noise`


# Phase 2


def test_phase_2_reports_its_evaluations_and_how_it_ended(first: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    assert etude(*go_on(first, out, "--json", episodes=40)) == 0
    captured = capsys.readouterr()
    lines, ended = captured.err.splitlines(), json.loads(captured.out)
    assert lines[:2] == [f"{out}: training for up to 40 episodes on cpu", f"continuing from {first}"]
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["256", f"{ended['step']}"]
    assert any(line.startswith(f"stopped after {ended['step']:,} steps") for line in lines)
    assert f'next: etude evaluate {out}   etude runs plot {out}   etude run {out} "…"' == lines[-1]
    assert (ended["run"], ended["resumed"], ended["stopped"]) == (str(out), False, "budget")
    assert 40 <= ended["episodes"] < 40 + 8 * 16


def test_phase_2_continues_from_the_weights_and_the_memory_of_phase_1(first: Path, second: Path) -> None:
    began, before = Artefact(second / "start"), find_policy(first)
    assert began.version == before.version
    assert differing(began.tensors(), before.tensors()) == []
    assert find_policy(second).manifest.parent == before.version
    (after, _), (start, _) = read_pretrained(find_policy(second)), read_pretrained(before)
    assert differing(dict(after.memory.state_dict()), dict(start.memory.state_dict())) == []
    assert after.known == start.known
    assert after.step > 0
    assert differing(dict(after.weights), dict(start.weights)) != []
    config = RunFolder(second).config()
    assert (config["planner"], config["limits"]) == tuple(RunFolder(first).config()[k] for k in ("planner", "limits"))
    assert catalogue_of(second) == catalogue_of(first)


def test_a_finished_run_says_so_and_changes_nothing(
    first: Path, second: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "run"
    shutil.copytree(second, out)
    before = files(out)
    stdout = output(capsys, *go_on(first, out))
    assert "already finished; to train on, raise the limit that stopped it, or choose another folder" in stdout
    assert "continuing from" not in stdout
    assert files(out) == before


def test_a_folder_is_for_one_set_of_settings_and_one_beginning(
    first: Path, second: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "run"
    shutil.copytree(second, out)
    before = files(out)
    assert "num_episodes 100 → 101" in refused(capsys, *go_on(first, out, episodes=101))
    assert "office.shift 'none' → 'degraded'" in refused(capsys, *go_on(first, out, "--shift", "degraded"))
    version = find_policy(first).version
    assert f"parent '{version}' → '{find_policy(second).version}'" in refused(capsys, *go_on(second, out))
    assert "phase 1 → 2" in refused(capsys, *go_on(first, first))
    assert files(out) == before


def test_an_interrupted_training_says_how_to_go_on_and_ends_as_if_it_had_not_been(
    first: Path, second: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = Practice.advance, tmp_path / "run"

    def interrupted(learner: Practice, report: Callable[[float], None]) -> dict[str, float]:
        if learner.step == 384:
            raise KeyboardInterrupt
        return whole(learner, report)

    monkeypatch.setattr(Practice, "advance", interrupted)
    assert etude(*go_on(first, out)) == 130
    assert "interrupted at step 384. The same command resumes at step 256" in capsys.readouterr().out
    monkeypatch.undo()
    stdout = output(capsys, *go_on(first, out))
    assert f"{out}: resuming after 256 steps, budget 100 workflows" in stdout
    assert differing(newest(out / "checkpoints"), newest(second / "checkpoints")) == []
    assert find_policy(out).version == find_policy(second).version
    assert (out / "plans.json").read_bytes() == (second / "plans.json").read_bytes()


def test_phase_2_continues_from_any_checkpoint(first: Path, tmp_path: Path) -> None:
    state, out = max((first / "checkpoints").iterdir()), tmp_path / "run"
    assert etude(*go_on(state, out, "--quiet", episodes=20)) == 0
    assert find_policy(out).manifest.parent == find_policy(state).version


def test_a_new_tool_is_in_the_catalogue_and_known_by_its_description_alone(
    first: Path, second: Path, tmp_path: Path, capsys: Captured
) -> None:
    plain, shifted = tmp_path / "plain", tmp_path / "shifted"
    output(capsys, *go_on(second, plain, episodes=20))
    output(capsys, *go_on(second, shifted, "--shift", "new_tool", episodes=20))
    assert catalogue_of(shifted) == phrases.CATALOGUE
    assert catalogue_of(plain) == catalogue_of(first)
    wanted = {node.task_type for entry in read_plans(RunFolder(shifted)) for node in entry.plans["best plan"].nodes}
    assert "transcribe_audio" in wanted
    for run in (plain, shifted):
        assert Artefact(run / "start").version == find_policy(second).version
        assert read_pretrained(find_policy(run))[0].known == read_pretrained(find_policy(first))[0].known
        assert json_output(capsys, "plan", run, TEXT)["instruction"] == TEXT
    result = json_output(capsys, "evaluate", shifted, "--episodes", "64")
    assert result["baselines"]["oracle"]["success"] > 0.8
    assert output(capsys, *go_on(second, shifted, "--shift", "new_tool", episodes=20)).count("finished") == 1


# Its outcomes


def test_json_compares_the_policy_with_phase_1_and_the_baselines(second: Path, capsys: Captured) -> None:
    result = json_output(capsys, "evaluate", second, "--episodes", "64")
    assert (result["run"], result["seed"]) == (str(second), 2_000_003)
    assert set(result["baselines"]) == {"phase 1"} | BASELINES
    oracle = result["baselines"]["oracle"]
    for score in (result["policy"], *result["baselines"].values()):
        assert score["episodes"] == 64
        assert score["return_ci95"][0] <= score["mean_return"] <= score["return_ci95"][1]
        assert 0 <= score["success"] <= oracle["success"] <= 1
        assert score["mean_return"] <= oracle["mean_return"]
        assert score["validity"] == 1
    assert oracle["success"] > 0.9
    assert result["policy"] != result["baselines"]["phase 1"]


def test_the_table_says_the_same(second: Path, capsys: Captured) -> None:
    result = json_output(capsys, "evaluate", second, "--episodes", "16")
    shown = output(capsys, "evaluate", second, "--episodes", "16")
    assert "16 episodes each" in shown
    for name, score in (("policy", result["policy"]), *result["baselines"].items()):
        line = next(line for line in shown.splitlines() if line.startswith(f"{name} ") and "…" in line)
        assert f" {score['mean_return']:.2f} " in line
        assert f" {score['success']:.1%} " in line
    assert "of what an oracle that knows everything returns" in shown


def test_it_is_measured_on_what_neither_phase_saw(second: Path) -> None:
    problem, policies = read_office(second)
    assert problem.rows == range(80, 100)
    assert list(policies) == ["policy", "phase 1"]


def test_the_policy_alone_by_another_seed_or_sampled(second: Path, capsys: Captured) -> None:
    args = ("evaluate", second, "--episodes", "16", "--no-baselines")
    once, again, other, drawn = (
        json_output(capsys, *args, *more) for more in ((), (), ("--seed", "5"), ("--stochastic",))
    )
    assert once["baselines"] == {}
    assert once == again
    assert len({message["policy"]["mean_return"] for message in (once, other, drawn)}) == 3


def test_plans_of_phase_2_compared_with_those_of_experts(second: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "test.json").write_text(json.dumps(expert_examples(SCENARIOS, source="gold")[-6:]))
    result = json_output(capsys, "evaluate", second, "--data", tmp_path / "test.json")
    assert (result["examples"], result["validity"]) == (6, 1.0)


def test_a_plan(second: Path, capsys: Captured) -> None:
    made = package.load(second).plan(TEXT)
    made.check(without_new_entries(SCENARIOS), Limits(max_nodes=10))
    result = json_output(capsys, "plan", second, TEXT)
    assert [node["task_type"] for node in result["nodes"]] == [node.task_type for node in made.nodes]


# Runs


def test_list_and_show(first: Path, second: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    lines = {line.split()[0]: line for line in output(capsys, "runs", "list", second.parent).splitlines()}
    assert all(words in lines[str(first)] for words in ("workflow phase 1", "finished: budget"))
    assert all(words in lines[str(second)] for words in ("workflow phase 2", "100 workflows", "finished: budget"))
    shown = output(capsys, "runs", "show", second)
    rows = RunFolder(second).read_metrics()
    assert f"workflow phase 2: {rows[-1]['step']:,.0f} steps of 100 workflows" in shown
    assert "best return" in shown
    settings = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if "." in line.split(" ")[0]}
    assert settings["training.phase2_rl.envs"] == ["8", "512"]
    assert settings["office.held_out"] == ["20", "1000"]
    table = [line.split() for line in shown.splitlines()]
    assert ["step", "return", "success"] in table
    for row in rows:
        if "eval_return" in row:
            line = next(line for line in table if line[:1] == [f"{row['step']:,.0f}"])
            assert [line[1], line[-1]] == [f"{row['eval_return']:.2f}", f"{row['eval_success']:.1%}"]


def test_plot(first: Path, second: Path, tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "page.html"
    assert output(capsys, "runs", "plot", second, "--out", page, "--episodes", "16").strip() == str(page)
    compared = page.read_text("utf-8")
    assert all(f">{name}<" in compared for name in ("policy", "phase 1", *BASELINES))
    shown = read_plans(RunFolder(second))
    assert len(shown) == 12
    assert {entry.instruction for entry in shown} <= set(SCENARIOS.instructions[80:])
    for entry in shown:
        assert list(entry.plans) == ["phase 1", "phase 2", "best plan"]
        assert entry.plans["best plan"] == SCENARIOS.plan(SCENARIOS.instructions.index(entry.instruction))
    texts = [entry.instruction for entry in shown]
    for name, run in (("phase 1", first), ("phase 2", second)):
        assert [entry.plans[name] for entry in shown] == package.load(run).plans(texts)
    assert all(compared.count(f"<h3>{name}</h3>") == 12 for name in ("phase 1", "phase 2", "best plan"))
    assert compared.count("data-node") == sum(len(plan.nodes) for entry in shown for plan in entry.plans.values())
    output(capsys, "runs", "plot", second, "--out", page, "--episodes", "0")
    assert "oracle" not in page.read_text("utf-8")


# What is refused


def test_phase_2_needs_something_to_continue_from(first: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    alone = refused(capsys, "train", "workflow", "--phase", "2", "--out", out)
    assert "phase 2 needs a checkpoint, the planner to continue from" in alone
    data, _ = write_data(tmp_path / "data")
    recorded = refused(capsys, *go_on(first, out, "--data", data, "--replay", data))
    assert "use `etude train choice --replay FILE`" in recorded
    assert "none does not exist" in refused(capsys, *go_on(tmp_path / "none", out))
    assert "is not a run" in refused(capsys, *go_on(tmp_path / "data", out))
    assert not out.exists()


def test_what_cannot_plan_cannot_be_continued_from(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    out, choice, other = (tmp_path / name for name in ("run", "choice", "other"))
    assert "is a policy of 'allocation' that does not plan" in refused(capsys, *go_on(finished, out))

    line = {"outcomes": {"small": {"score": 1.0, "cost_usd": 0.1}, "large": {"score": 0.0}}}
    lines = [json.dumps({"context": f"sum {i}", **line}) for i in range(8)]
    (tmp_path / "outcomes.jsonl").write_text("\n".join(lines))
    outcomes = ["--replay", tmp_path / "outcomes.jsonl", "--encoder", "ngrams", "--out", choice]
    assert etude("train", "choice", *outcomes, "--quiet") == 0
    assert "does not plan" in refused(capsys, *go_on(choice, out))

    data, _ = write_data(tmp_path / "data", 10)
    more = ("--set", "limits.max_nodes=10", "--quiet")
    assert etude(*command(data, other, *more, num_epochs="1", final_epochs="0")) == 0
    message = refused(capsys, *go_on(other, out))
    assert "plans with task types that the simulated office does not have, such as 'count'" in message
    assert "give data, the plans that it is to practise on" in message
    assert not out.exists()


def test_wrong_values_are_named(first: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    wrong = refused(capsys, *go_on(first, out, "--shift", "nonsense"))
    assert "office.shift is 'nonsense' (--shift): expected one of none, degraded, new_tool, phrasings" in wrong
    none = refused(capsys, *go_on(first, out, episodes=0))
    assert "training.phase2_rl.num_episodes is 0 (--episodes): expected an integer of 1 or more" in none
    short = refused(capsys, *go_on(first, out, training__phase2_rl__max_steps_per_episode="25"))
    assert "max_steps_per_episode is 25, but the limits allow a workflow 26 decisions: raise it, or lower" in short
    assert not out.exists()


def test_a_planner_of_phase_1_is_measured_on_data(first: Path, capsys: Captured) -> None:
    message = refused(capsys, "evaluate", first)
    assert "did not learn in a simulated world: measure a planner on data, expert workflows" in message


def test_phase_2_takes_over_what_phase_1_was_trained_with(first: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    wider = refused(capsys, *go_on(first, out, planner__width="32"))
    assert f"planner.width is 32, but {first} was trained with 16: phase 2 takes that over; leave it out" in wider
    assert "office.scenarios is 61" in refused(capsys, *go_on(first, out, office__scenarios="61"))
    assert "limits.max_nodes is 8" in refused(capsys, *go_on(first, out, limits__max_nodes="8"))
    assert not out.exists()
    short = [f"training.phase2_rl.{key}={value}" for key, value in PHASE_2.items()]
    flags = [part for assignment in (*short, "office.skill_seed=3") for part in ("--set", assignment)]
    plain = ["train", "workflow", "--phase", "2", "--checkpoint", first, "--out", out, "--episodes", "20", *flags]
    assert etude(*plain, "--quiet") == 0
    kept = RunFolder(out).config()
    assert (kept["planner"]["width"], kept["office"]["scenarios"], kept["office"]["skill_seed"]) == (16, 60, 3)
    assert kept["run"]["eval_episodes"] == 8


def test_what_a_shift_began_with_is_not_called_phase_1(second: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    assert etude(*go_on(second, out, "--shift", "degraded", "--quiet", episodes=20)) == 0
    assert list(read_office(out)[1]) == ["policy", "before"]
    assert all(list(shown.plans) == ["before", "after", "best plan"] for shown in read_plans(RunFolder(out)))


def test_only_the_office_shifts(tmp_path: Path, capsys: Captured) -> None:
    message = refused(capsys, *imitate(tmp_path / "run", "--shift", "new_tool"))
    assert "shift is for phase 2 in the simulated office" in message


def test_weights_of_another_network_are_refused(first: Path, tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "run"
    shutil.copytree(first, run)
    file = find_policy(run).path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["settings"]["planner"]["width"] = 32
    file.write_text(json.dumps(manifest))
    message = refused(capsys, "plan", run, TEXT)
    assert "its weights do not fit the network that its settings describe" in message
    assert "train it again" in message
