"""`etude train choice` and `evaluate` on recorded outcomes: what they say, leave and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.learning.run_folder import RunFolder, find_policy
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
WORKERS = {"workers": [{"name": "small", "usd_per_call": 0.001}, {"name": "large", "usd_per_call": 0.01}]}


def write_outcomes(folder: Path, count: int = 60) -> Path:
    """Sums are done as well by the small one, proofs by the large one alone."""
    folder.mkdir(exist_ok=True)
    (folder / "catalogue.json").write_text(json.dumps({"task_types": [{"name": "sum"}, {"name": "prove"}], **WORKERS}))
    lines = []
    for i in range(count):
        kind, small = ("sum", 1.0) if i % 2 else ("prove", 0.0)
        outcomes = {"small": {"score": small, "cost_usd": 0.001}, "large": {"score": 1.0, "cost_usd": 0.01}}
        lines.append(json.dumps({"instruction": f"{kind} of {i}", "task_type": kind, "outcomes": outcomes}))
    (folder / "outcomes.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "outcomes.jsonl"


def train(outcomes: Path, out: Path, *more: str | Path) -> list[str | Path]:
    return ["train", "choice", "--replay", outcomes, "--encoder", "ngrams", "--out", out, *more]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_outcomes(tmp_path_factory.mktemp("outcomes"))


@pytest.fixture(scope="module")
def run(outcomes: Path) -> Path:
    out = outcomes.parent / "<run>"
    assert etude(*train(outcomes, out, "--quiet")) == 0
    return out


def test_training_says_what_it_learned_and_what_to_do_next(outcomes: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    assert etude(*train(outcomes, out)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "learning what to expect of each option from past outcomes" in captured.out
    assert "60 rows, 2 options; alone, large would be best" in captured.out
    assert "cross-validated, its choices score 1.0000, the best single option 1.0000" in captured.out
    assert "not used" not in captured.out
    assert captured.out.splitlines()[-1].startswith(
        f'next: etude choose {out} "…"   etude evaluate {out} --replay FILE   etude runs plot {out}'
    )
    assert etude("runs", "show", out) == 0
    shown = capsys.readouterr().out
    assert "finished: budget" in shown
    assert "best score 1.00" in shown
    assert "ngrams" in shown


def test_data_that_nothing_can_be_learned_from_leaves_no_run(tmp_path: Path, capsys: Captured) -> None:
    rows = [{"context": f"text {n}", "outcomes": {"small": {"score": 1.0}}} for n in range(5)]
    bad = tmp_path / "one_option.jsonl"
    bad.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "there is one option" in refused(capsys, *train(bad, tmp_path / "run", "--quiet"))
    assert not (tmp_path / "run").exists()


def test_without_an_algorithm_outcomes_are_learned_as_the_help_says(capsys: Captured) -> None:
    assert etude("train", "choice", "--help") == 0
    assert "[default: (none, the outcomes of options are learned)]" in " ".join(
        capsys.readouterr().out.replace("│", " ").split()
    )


def test_a_finished_run_says_so_again_and_changes_nothing(run: Path, outcomes: Path, capsys: Captured) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    ended = json_output(capsys, *train(outcomes, run))
    assert (ended["run"], ended["resumed"], ended["stopped"]) == (str(run), True, "budget")
    assert (ended["best_single"], ended["rows"], ended["options"]) == ("large", 60, ["large", "small"])
    assert (ended["cross_validated_score"], ended["best_single_score"], ended["unused"]) == (1.0, 1.0, {})
    assert ended["unit_usd"] == pytest.approx(0.01)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_an_interrupted_fit_is_made_again(outcomes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.problems.choice import learn

    def interrupted(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    out, whole = tmp_path / "run", tmp_path / "whole"
    with monkeypatch.context() as patched:
        patched.setattr(learn, "fit_choice", interrupted)
        assert etude(*train(outcomes, out, "--quiet")) == 130
    assert etude(*train(outcomes, out, "--quiet")) == 0
    assert etude(*train(outcomes, whole, "--quiet")) == 0
    assert find_policy(out).version == find_policy(whole).version


def test_a_folder_is_for_one_file_and_its_settings(run: Path, outcomes: Path, tmp_path: Path, capsys: Captured) -> None:
    assert "with other settings" in refused(capsys, *train(write_outcomes(tmp_path, 40), run))
    assert "half_life_rows" in refused(capsys, *train(outcomes, run, "--half-life", "7"))
    assert find_policy(run).manifest.settings["choice"]["half_life_rows"] is None


def test_choices_are_compared_with_simpler_ones(run: Path, outcomes: Path, capsys: Captured) -> None:
    found = json_output(capsys, "evaluate", run, "--replay", outcomes)
    others = found["baselines"]
    assert (found["rows"], found["unused"], found["best_single_option"]) == (60, {}, "large")
    assert found["score"] == others["oracle"]["score"] == others["best_single"]["score"] == 1.0
    assert others["cheapest"]["score"] == pytest.approx(0.5)
    assert 0.3 < others["random"]["score"] < 1
    assert [others[name]["cost_usd"] for name in ("best_single", "cheapest")] == pytest.approx([0.01, 0.001])
    at_single = found["at_best_single"]
    assert at_single["score"] == 1.0
    assert at_single["cost_share"] == pytest.approx(0.55)  # half of them at a tenth of the price
    assert 0 < at_single["quality_weight"] < 1
    costs, scores = zip(*found["curve"], strict=True)
    assert (costs[0], costs[-1]) == pytest.approx((0.01, 0.001))
    assert (scores[0], scores[-1]) == pytest.approx((1.0, 0.5))
    # from 0.001 to 0.01 USD: 0.5 up to 0.0055 USD, then 1
    assert found["aiq"] == pytest.approx(0.75, abs=0.01)

    assert etude("evaluate", run, "--replay", outcomes) == 0
    shown = capsys.readouterr().out
    assert "policy at best_single's score" in shown
    assert f"best_single is large; AIQ {found['aiq']:.4f}" in shown


def test_an_interval_is_of_the_difference_to_the_best_single(run: Path, outcomes: Path, capsys: Captured) -> None:
    found = json_output(capsys, "evaluate", run, "--replay", outcomes)["baselines"]["cheapest"]
    low, high = found["to_best_single_ci95"]
    assert low < -0.5 < high < 0
    assert (low + high) / 2 == pytest.approx(-0.5, abs=0.02)
    low, high = found["score_ci95"]
    assert low < 0.5 < high


def test_what_each_score_costs_is_drawn(run: Path, outcomes: Path, tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "new" / "curve.html"
    assert etude("evaluate", run, "--replay", outcomes, "--plot", page) == 0
    assert f"drawn in {page}" in capsys.readouterr().out
    drawn = page.read_text("utf-8")
    result = json_output(capsys, "evaluate", run, "--replay", outcomes, "--plot", page)  # JSON alone on stdout
    assert page.read_text("utf-8") == drawn
    assert "<title>Choices of &lt;run&gt;</title>" in drawn
    assert "<run>" not in drawn
    assert f"{result['aiq']:.3f}" in drawn
    assert all(name in drawn for name in ("policy", "best_single", "cheapest", "random", "oracle"))
    for wrong in (tmp_path / "curve.svg", tmp_path / "curve", tmp_path):
        assert "expected the name of a page" in refused(capsys, "evaluate", run, "--replay", outcomes, "--plot", wrong)
    assert "--plot goes with --replay" in refused(capsys, "evaluate", run, "--plot", page)


def test_rows_that_cannot_be_used_are_counted(outcomes: Path, tmp_path: Path, capsys: Captured) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        '{"context": 1\n' + outcomes.read_text() + '{"context": "x", "outcomes": {"small": -1, "tiny": 1}}\n'
    )
    (tmp_path / "options.json").write_text(json.dumps(WORKERS))
    assert etude(*train(bad, tmp_path / "run")) == 0
    shown = capsys.readouterr().out
    assert "1 row is not used: " in shown
    assert "line 1: " in shown
    assert "line 62: outcomes has 'tiny', which was not offered" in " ".join(shown.split())
    ended = json_output(capsys, *train(bad, tmp_path / "run"))
    assert (ended["rows"], ended["unused"]) == (60, {"no JSON": 1, "option that was not offered": 1})
    found = json_output(capsys, "evaluate", tmp_path / "run", "--replay", bad)
    assert (found["rows"], found["unused"]) == (60, {"no JSON": 1, "option that was not offered": 1})


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_without_costs_none_are_shown(outcomes: Path, tmp_path: Path, capsys: Captured) -> None:
    rows = [
        row | {"outcomes": {name: {"score": o["score"]} for name, o in row["outcomes"].items()}}
        for row in read_rows(outcomes)
    ]
    file, run = write_rows(tmp_path / "scores.jsonl", rows), tmp_path / "run"
    assert etude(*train(file, run, "--quiet")) == 0
    assert etude("evaluate", run, "--replay", file) == 0
    shown = capsys.readouterr().out
    assert "nan" not in shown
    assert "best_single is large; no costs are known" in shown
    assert next(line for line in shown.splitlines() if line.startswith("oracle")).split()[-2:] == ["–", "–"]
    assert etude("evaluate", run, "--replay", file, "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)
    assert (found["cost_usd"], found["cost_share"], found["aiq"]) == (None, None, None)
    assert found["baselines"]["cheapest"]["cost_share"] is None
    assert etude(*train(file, tmp_path / "next", "--checkpoint", run, "--json")) == 0
    ended = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)
    assert (ended["cross_validated_score"], ended["remarks"]) == (None, [])


def test_a_single_row_is_not_called_cross_validated(outcomes: Path, tmp_path: Path, capsys: Captured) -> None:
    file = write_rows(tmp_path / "one.jsonl", read_rows(outcomes)[:1])
    assert etude(*train(file, tmp_path / "run")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 row, 2 options" in shown
    assert "cannot be judged by cross-validation: that needs at least 10 rows" in shown
    assert "choices score" not in shown


def test_rows_that_say_nothing_about_the_policy_are_left_out(
    run: Path, outcomes: Path, tmp_path: Path, capsys: Captured
) -> None:
    """Ten rows are about other options, and the rest has one outcome each, without a propensity."""
    rows = read_rows(outcomes)
    for i, row in enumerate(rows):
        name = "large" if i % 2 else "small"
        row["outcomes"] = {"new": {"score": 1.0}} if i < 10 else {name: row["outcomes"][name]}
    file = write_rows(tmp_path / "later.jsonl", rows)
    found = json_output(capsys, "evaluate", run, "--replay", file)
    assert found["rows"] == 50
    assert "oracle" not in found["baselines"]
    left_out, partial = found["remarks"]
    assert left_out.startswith(
        "10 rows are left out, without an outcome of an option that the policy knows: line 1 has"
    )
    assert "Not every option has an outcome in every row (large: 50.0%), and the rows have no propensities" in partial
    page = tmp_path / "page.html"
    assert etude("evaluate", run, "--replay", file, "--plot", page) == 0
    shown = capsys.readouterr().out
    assert left_out in shown
    assert partial in " ".join(shown.split())
    assert page.exists()


def test_options_are_described_by_a_file(outcomes: Path, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "described.json"
    file.write_text('["large", {"name": "small", "description": "quick and cheap"}, "never tried"]')
    assert etude(*train(outcomes, tmp_path / "run", "--options", file, "--quiet")) == 0
    about = find_policy(tmp_path / "run").manifest.details["choice"]["table"]["options"]
    assert [(option["name"], option["description"]) for option in about] == [
        ("large", ""),
        ("small", "quick and cheap"),
    ]
    file.write_text('["large"]')
    message = refused(capsys, *train(outcomes, tmp_path / "other", "--options", file, "--quiet"))
    assert "no row can be learned from" in message
    assert "'small', which was not offered" in message


def test_a_choice_is_continued_with_later_rows(run: Path, tmp_path: Path, capsys: Captured) -> None:
    later = write_outcomes(tmp_path, 40)
    out = tmp_path / "run"
    ended = json_output(capsys, *train(later, out, "--checkpoint", run))
    assert (ended["rows"], ended["best_score"]) == (40, None)
    config = RunFolder(out).config()
    assert config["parent"] == find_policy(run).version
    chosen = json_output(capsys, "choose", out, "prove of 7")["options"]
    assert chosen["large"]["decisions"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "a choice learns from replay, a file of outcomes, or from a dataset of logged decisions"),
        (["--method", "replay"], "a choice learns from replay, a file of outcomes, or from a dataset"),
        (["--replay", "x", "--dataset", "y"], "dataset and replay: logged decisions or recorded outcomes"),
        (["--replay", "none.jsonl"], "'none.jsonl' cannot be read (No such file or directory)"),
        (["--replay", "one.jsonl"], "there is one option, 'a': a choice needs at least two"),
        (["--replay", "empty.jsonl"], "empty.jsonl: no row can be learned from: it is empty"),
        (["--replay", "one.jsonl", "--options", "none.json"], "none.json: cannot be read"),
        (["--replay", "one.jsonl", "--encoder", "ngram"], "unknown encoder 'ngram'"),
        (["--replay", "one.jsonl", "--half-life", "0"], "half_life_rows is 0 (--half-life)"),
        (["--replay", "one.jsonl", "--set", "choice.explore=often"], "choice.explore is 'often'"),
    ],
)
def test_what_training_cannot_begin_with(flags: list[str], message: str, capsys: Captured) -> None:
    Path("one.jsonl").write_text('{"context": "x", "outcomes": {"a": 1}}\n')
    Path("empty.jsonl").write_text("\n")
    assert message in refused(capsys, "train", "choice", *flags, "--out", "run", "--quiet")


def test_a_choice_is_measured_on_outcomes_and_makes_no_plans(run: Path, tmp_path: Path, capsys: Captured) -> None:
    assert "'choice' has no world to evaluate in: give replay or dataset" in refused(capsys, "evaluate", run)
    assert "is a policy of 'choice' that does not plan" in refused(capsys, "plan", run, "x")
    other = tmp_path / "other.jsonl"
    other.write_text('{"context": "x", "outcomes": {"a": 1, "b": 0}}\n')
    message = refused(capsys, "evaluate", run, "--replay", other)
    assert "no row has an outcome of an option that the policy knows" in message
