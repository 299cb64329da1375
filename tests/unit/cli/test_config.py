"""`etude config`: what is in force, where it came from, what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.problems.table import specs
from etude.settings.tree import Settings, tree_of
from tests.tiny import etude, refused

Captured = pytest.CaptureFixture[str]


def rows(capsys: Captured, *args: str) -> dict[str, str]:
    assert etude("config", "show", *args) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}


def test_show_names_the_origin_of_every_value(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etude.yaml").write_text("run:\n  seed: 7\n")
    monkeypatch.setenv("ETUDE_PPO__LR", "1e-3")
    shown = rows(capsys, "--preset", "document", "--set", "ppo.clip_coef=null")
    assert set(shown) == {field.key for field in tree_of(None).fields}
    assert shown["run.seed"] == "7 etude.yaml, line 2"
    assert shown["ppo.lr"] == "0.001 ETUDE_PPO__LR"
    assert shown["ppo.clip_coef"] == "null --set ppo.clip_coef"
    assert shown["network.hidden"] == "[256, 256, 128] preset document"
    assert shown["ppo.gamma"] == "0.99 default"
    assert shown["curriculum"] == "[] default"


def test_show_masks_passwords(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "etude.yaml").write_text("experience: {bus: 'nats://me:s3cret@broker:4222'}")
    assert rows(capsys)["experience.bus"].startswith("nats://…@broker:4222 ")


def test_show_takes_another_file(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "etude.yaml").write_text("run: {seed: 1}")
    (tmp_path / "other.yaml").write_text("run: {seed: 2}")
    assert rows(capsys, "--config", "other.yaml")["run.seed"] == "2 other.yaml, line 1"


def test_show_refuses_what_training_would_refuse(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "etude.yaml").write_text("ppo:\n  lrr: 1\n")
    assert etude("config", "show") == 2
    assert "unknown setting 'ppo.lrr' (etude.yaml, line 2): did you mean 'ppo.lr'?" in capsys.readouterr().err


def test_show_has_the_sections_of_every_problem(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "etude.yaml").write_text("office: {scenarios: 7}\nallocation: {agents: 3}\n")
    shown = rows(capsys)
    sections = {key.partition(".")[0] for key in shown}
    assert sections == {*Settings.model_fields, *(name for spec in specs().values() for name in spec.sections)}
    assert shown["office.scenarios"] == "7 etude.yaml, line 1"
    assert shown["allocation.agents"] == "3 etude.yaml, line 2"


def test_show_refuses_an_unknown_preset_and_a_section_of_no_problem(tmp_path: Path, capsys: Captured) -> None:
    message = refused(capsys, "config", "show", "--preset", "documnt")
    assert (
        "the preset is 'documnt': did you mean 'document'? "
        "expected one of 'tasks', 'document', 'office', 'quick', 'wide'" in message
    )
    (tmp_path / "etude.yaml").write_text("offise: {scenarios: 7}\n")
    assert "unknown setting 'offise.scenarios' (etude.yaml, line 1): did you mean" in refused(capsys, "config", "show")


def test_explain_tells_type_default_and_meaning(capsys: Captured) -> None:
    assert etude("config", "explain", "ppo.lr") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "ppo.lr (a number above 0; default 0.002)"
    assert second.strip() == "Adam's step size at the start."


def test_explain_of_a_section_and_of_everything(capsys: Captured) -> None:
    assert etude("config", "explain", "network") == 0
    keys = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert keys == [field.key for field in tree_of(None).fields if field.key.startswith("network.")]
    assert etude("config", "explain") == 0
    stdout = capsys.readouterr().out
    assert [field.key for field in tree_of(None).fields if f"{field.key} (" not in stdout] == []


def test_explain_refuses_an_unknown_key_with_a_guess(capsys: Captured) -> None:
    assert etude("config", "explain", "ppo.lrr") == 2
    assert "did you mean 'ppo.lr'?" in capsys.readouterr().err


def test_markdown_has_a_row_for_every_setting(capsys: Captured) -> None:
    assert etude("config", "explain", "--markdown") == 0
    page = capsys.readouterr().out
    table = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(table) == len(tree_of(None).fields)
    assert {line.count(" | ") for line in table} == {3}
    heads = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert len(heads) == len(set(heads))
    assert {"ppo", "run", "office", "training.phase2_rl", "allocation", "network"} <= set(heads)
