"""`etude choose`: the chosen option, what is expected of each, why others may not be chosen, and explanations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import etude as api
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
OPTIONS = [
    {"name": "solver", "description": "mathematics, step by step", "regions": ["eu"]},
    {"name": "poet", "description": "writes verses", "regions": ["us", "eu"]},
    {"name": "clerk [1]", "description": "cheap and quick"},
]
FILLERS = ("please", "kindly", "now", "today", "again")
FORMAL, POETIC = "please write the vector or the tensor", "please write the ballad or the sonnet"
COSTS = {"solver": 0.03, "poet": 0.02, "clerk [1]": 0.001}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choice")
    (folder / "options.json").write_text(json.dumps(OPTIONS))
    lines = []
    for i in range(300):
        formal = i % 2 == 0
        subjects = ("matrix", "vector", "tensor") if formal else ("sonnet", "ballad", "verses")
        text = f"{FILLERS[i % 5]} write the {subjects[i % 3]} or the {subjects[i // 3 % 3]}"
        right = {"solver": 0.9 if formal else 0.1, "poet": 0.1 if formal else 0.9, "clerk [1]": 0.5}
        outcomes = {
            name: {"score": share, "cost_usd": COSTS[name], "latency_ms": 100.0 + 50 * len(name)}
            for name, share in right.items()
        }
        context = {"text": text, "tier": "gold" if i % 5 else "basic"}
        lines.append(json.dumps({"context": context, "outcomes": outcomes}))
    (folder / "train.jsonl").write_text("\n".join(lines))
    out = folder / "run"
    given = ("train", "choice", "--replay", folder / "train.jsonl", "--encoder", "ngrams", "--out", out, "--quiet")
    assert etude(*given) == 0
    return out


def choose(capsys: Captured, *args: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json_output(capsys, "choose", *args)
    return found


def test_the_best_option_is_chosen_and_all_are_shown(run: Path, capsys: Captured) -> None:
    found = choose(capsys, run, FORMAL)
    assert found["chosen"] == "solver"
    assert found["probability"] == 1
    assert set(found["options"]) == set(COSTS)
    solver = found["options"]["solver"]
    assert solver["probability"] == 1
    assert solver["cost_usd"] == pytest.approx(0.03, rel=0.2)
    assert "explanation" not in found
    assert choose(capsys, run, POETIC)["chosen"] == "poet"

    assert etude("choose", run, FORMAL) == 0
    first, _, head, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == ["solver", "with", "probability", "100", "%"]
    assert head.split() == ["option", "score", "USD", "ms", "utility", "probability", "effective", "outcomes"]
    assert rows[0].startswith("solver")
    assert "±" in rows[0]
    assert any("clerk [1]" in row for row in rows)


def test_preferences_and_limits_say_what_is_not_eligible(run: Path, capsys: Captured) -> None:
    assert choose(capsys, run, FORMAL, "--quality-weight", "0")["chosen"] == "clerk [1]"
    cheap = choose(capsys, run, FORMAL, "--max-cost", "0.025")
    assert cheap["chosen"] != "solver"
    assert "is above 0.025" in cheap["options"]["solver"]["masked"]
    quick = choose(capsys, run, POETIC, "--max-latency", "350")
    assert "ms are above 350" in quick["options"]["solver"]["masked"]
    assert "without 'us'" in choose(capsys, run, FORMAL, "--region", "us")["options"]["solver"]["masked"]
    only = choose(capsys, run, FORMAL, "--allow", "poet", "--allow", "clerk [1]")
    assert only["chosen"] != "solver"

    assert etude("choose", run, FORMAL, "--max-cost", "0.025") == 0
    shown = capsys.readouterr().out
    assert "not eligible because" in shown
    assert shown.splitlines()[-1].startswith("solver")


def test_contexts_are_texts_mappings_or_both(run: Path, capsys: Captured) -> None:
    text, context = POETIC, {"text": POETIC, "tier": "gold"}
    whole = choose(capsys, run, "--context", json.dumps(context))
    both = choose(capsys, run, text, "--context", '{"tier": "gold"}')
    assert whole["options"] == both["options"]
    assert etude("choose", run, "", "--context", '"write the sonnet"') == 2
    done = subprocess.run(
        [sys.executable, "-m", "etude.cli", "choose", run, "-", "--json"], input=text, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["options"] == choose(capsys, run, text)["options"]


def test_new_options_are_read_by_their_descriptions(run: Path, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    file.write_text(
        json.dumps({"options": ["clerk [1]", {"name": "sage", "description": "mathematics, step by step"}]})
    )
    found = choose(capsys, run, FORMAL, "--options", file)
    assert set(found["options"]) == {"clerk [1]", "sage"}
    assert found["options"]["sage"].get("decisions", 0) == 0


def test_exploring_samples_with_the_probabilities_that_it_shows(run: Path, capsys: Captured) -> None:
    given = (run, "please write the vector or the ballad", "--explore", "softmax", "--seed")
    seen = [choose(capsys, *given, str(seed)) for seed in range(12)]
    assert len({found["chosen"] for found in seen}) > 1
    for found in seen:
        assert 0 < found["probability"] < 1
        assert found["probability"] == found["options"][found["chosen"]]["probability"]
    assert seen[0]["policy"].endswith("+sampled")
    assert choose(capsys, *given, "3") == seen[3]


def test_an_explanation_names_words_and_past_decisions(run: Path, capsys: Captured) -> None:
    why = choose(capsys, run, FORMAL, "--explain")["explanation"]
    assert why["chosen"] == "solver"
    assert why["words_for"]["effects"]["vector"] > 0
    assert why["similar"][0]["source"].startswith("line ")
    assert why["similar"][0]["outcomes"]["solver"]["score"] == pytest.approx(0.9)
    assert why["mean"]["source"] == "50 most similar"

    assert etude("choose", run, FORMAL, "--explain") == 0
    shown = capsys.readouterr().out
    assert f"solver and not {why['runner_up']}" in shown
    assert "words for it: " in shown
    assert "vector (+" in shown
    assert why["similar"][0]["source"] in shown
    assert "50 most similar" in shown
    assert choose(capsys, run, FORMAL, "--explain", "--allow", "poet")["explanation"] is None
    assert etude("choose", run, FORMAL, "--explain", "--allow", "poet") == 0
    assert "no other option may be chosen than poet" in capsys.readouterr().out


def test_an_explanation_says_when_a_category_decides(tmp_path: Path, capsys: Captured) -> None:
    rows = [
        {"context": {"kind": kind, "size": i}, "outcomes": {"a": int(kind == "x"), "b": int(kind == "y")}}
        for i in range(60)
        for kind in "xy"
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ("--replay", tmp_path / "rows.jsonl", "--encoder", "ngrams", "--out", tmp_path / "run", "--quiet")
    assert etude("train", "choice", *given) == 0
    for kind, chosen in (("x", "a"), ("y", "b")):
        context = json.dumps({"kind": kind, "size": 3})
        why = choose(capsys, tmp_path / "run", "--context", context, "--explain")["explanation"]
        assert why["chosen"] == chosen
        effect = why["entries"][f"kind: {kind}"]
        assert effect > 0.5 > abs(why["entries"].get("size: 3", 0))
        assert etude("choose", tmp_path / "run", "--context", context, "--explain") == 0
        shown = capsys.readouterr().out
        assert f"categories and numbers: kind: {kind} (+{effect:.4f}" in shown
        decides = f", without it {why['runner_up']})" in shown
        assert decides == (effect > why["difference"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give a TEXT, or --context JSON"),
        (("a", "--context", "{"), "--context is '{'"),
        (("a", "--context", '{"text": "b"}'), "leave TEXT out"),
        (("--context", "[1]"), "expected a text, a number, or a mapping of these"),
        (("a", "--quality-weight", "2"), "--quality-weight is 2.0: expected a number from 0 to 1"),
        (("a", "--max-cost", "-1"), "--max-cost is -1.0: expected 0 or more"),
        (("a", "--allow", "poets"), "--allow 'poets' names none of the options: did you mean 'poet'?"),
        (("a", "--explore", "always"), "--explore is 'always': expected one of none, epsilon"),
        (("a", "--max-cost", "0"), "no option of 'choice' may be chosen"),
        (("a", "--options", "missing.json"), "missing.json: cannot be read"),
        (("a", "--options", "text.json"), "expected a JSON list of options"),
    ],
)
def test_errors_say_what_to_do(
    run: Path, capsys: Captured, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    (tmp_path / "text.json").write_text('"a"')
    assert message in refused(capsys, "choose", run, *args)


def test_a_run_of_another_problem_is_refused(finished: Path, capsys: Captured) -> None:
    assert "holds no choice: train one with `etude train choice`" in refused(capsys, "choose", finished, "a")


def test_choosing_and_loading_need_no_torch(run: Path) -> None:
    code = f"""
import sys
import etude
from etude.cli import main
assert etude.load({str(run)!r}).choose({FORMAL!r}).action == "solver"
try:
    main(["choose", {str(run)!r}, {FORMAL!r}, "--explain"])
except SystemExit as left:
    assert not left.code, left.code
print([name for name in ("torch", "scipy", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_api_chooses_as_the_command_does(run: Path, capsys: Captured) -> None:
    decision = api.load(run).choose(POETIC)
    found = choose(capsys, run, POETIC)
    assert decision.action == found["chosen"]
    assert decision.expected["poet"].utility == pytest.approx(found["options"]["poet"]["utility"])
