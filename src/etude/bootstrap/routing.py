"""Who answers which query: recorded outcomes to a router, and a run folder back to it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from etude.bootstrap.planner import make_reader
from etude.bootstrap.runs import CATALOGUE, find_root, read_settings, read_weights
from etude.contracts.errors import CheckpointError
from etude.learning.checkpoint import under, write_checkpoint
from etude.learning.runs import RunFolder
from etude.problems.workflow.catalogue import read_catalogue
from etude.problems.workflow.replay import read_outcomes
from etude.problems.workflow.routing import Router, fit_router
from etude.settings.tree import Settings


def make_router(settings: Settings, out: Path, outcomes: Path, catalogue_file: Path | None) -> Router:
    """Phase 2 on recorded outcomes: who answers which query, fitted in `out`."""
    source = catalogue_file or outcomes.with_name(CATALOGUE)
    replay = read_outcomes(outcomes, read_catalogue(source))
    folder = RunFolder(out)
    folder.open(
        {
            "problem": "workflow",
            "phase": 2,
            "data": [sha256(outcomes.read_bytes() + source.read_bytes()).hexdigest()],
            **settings.model_dump(mode="json", include={"limits", "planner", "run"}),
        }
    )
    router, _ = fit_router(replay, make_reader(settings.planner).encoder)
    (out / CATALOGUE).write_bytes(source.read_bytes())
    tensors = {f"router.{name}": value for name, value in router.state_dict().items()}
    meta = {"problem": "workflow", "router": router.to_json()}
    write_checkpoint(folder.best, step=len(replay), tensors=tensors, meta=meta, keep=1)
    folder.finish({"stopped": "fitted", "queries": len(replay), "best_single": router.best_single})
    return router


def load_router(path: Path) -> Router:
    root = find_root(path)
    folder = RunFolder(root)
    settings = read_settings(folder, "workflow")
    tensors, meta = read_weights(path, folder, "workflow")
    if "router" not in meta:
        raise CheckpointError(f"{path} was trained on expert workflows: --replay is for a run of --phase 2 --replay")
    return Router.from_state(under("router.", tensors), meta["router"], make_reader(settings.planner).encoder)
