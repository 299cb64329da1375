"""The tutorial as a reader follows it: from `etude init` to a planner that does more of the work right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.tiny import etude

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "15-your-own-tools.md"
README = ROOT / "README.md"
INIT_README = ROOT / "src" / "etude" / "cli" / "orchestrator" / "init_files" / "README.md"
SMALL = {"ETUDE_TRAINING__PHASE1_SUPERVISED__SYNTHETIC_AUGMENTATIONS": "300"}
"""A quicker first training; the commands are those of the page."""


def commands(page: Path) -> list[str]:
    """The lines of a page's shell blocks that are about the tools."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    return [line for block in blocks if page != README or "etude init" in block for line in block.splitlines()]


def test_all_pages_have_the_same_commands() -> None:
    assert commands(TUTORIAL)[:2] == ["etude init tools", "cd tools"]
    assert commands(README) == commands(TUTORIAL)
    assert commands(INIT_README) == commands(TUTORIAL)[2:]


def test_the_tutorial_leads_to_a_better_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, printed = tmp_path, dict[str, str]()
    for name, value in (SMALL | {"COLUMNS": "120"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    for line in commands(TUTORIAL):
        program, *args = shlex.split(line)
        if program == "cd":
            folder /= args[0]
            monkeypatch.chdir(folder)
            continue
        code, said = etude(*args), capsys.readouterr()
        # The planner from experts gives the note to the tool that is wrong about it.
        assert code == (3 if args[:2] == ["run", "runs/p1"] else 0), said.out + said.err
        printed[line] = said.out
    *_, learned, compared, again = printed.values()
    assert "Verdict: better" in learned
    assert "first_sentence: first-full-stop → sentence-splitter" in learned
    assert "runs/p2 is better than runs/p1" in compared
    found = re.search(r"success +([\d.]+)\s?% +([\d.]+)\s?%", compared)
    assert found is not None
    assert float(found[1]) >= 90 > 80 >= float(found[2])
    assert "DR. LUND MOVED THE VISITS TO THURSDAY." in again
