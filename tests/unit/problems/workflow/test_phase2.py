"""Phase 2 continues from a run, or from an artefact that was copied anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from etude.bootstrap.runs import start_run
from etude.learning.artefact import Artefact
from etude.learning.requests import LearnRequest
from etude.learning.run_folder import RunFolder
from etude.settings.tree import resolve_settings
from tests.office import PHASE_1, PHASE_2, SETTINGS


def test_an_artefact_that_lies_in_no_run_practises_in_the_office(tmp_path: Path) -> None:
    changed = SETTINGS | {f"training.phase1_supervised.{key}": value for key, value in PHASE_1.items()}
    changed |= {f"training.phase2_rl.{key}": value for key, value in PHASE_2.items()} | {"office.scenarios": "30"}
    assignments = [f"{key}={value}" for key, value in changed.items()]
    settings = resolve_settings("workflow", preset="office", assignments=assignments).settings
    first = LearnRequest(problem="workflow", method="imitate", settings=settings, out=tmp_path / "first")
    for _ in start_run(first).updates():
        pass
    version = RunFolder(first.out).policy().version
    copied = tmp_path / "elsewhere" / "planner"
    shutil.copytree(RunFolder(first.out).policy().path, copied)
    second = LearnRequest(
        problem="workflow", method="practise", settings=settings, out=tmp_path / "second", checkpoint=copied
    )
    run = start_run(second)
    assert run.about.parent == Artefact(run.folder.start).version == version
