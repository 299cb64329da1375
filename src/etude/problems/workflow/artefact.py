"""Planners as artefacts: weights, the memory of past queries and the catalogue, and back to a planner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from etude.contracts.errors import CheckpointError
from etude.learning.artefact import Artefact, load_weights
from etude.learning.checkpoint import prefixed, under
from etude.learning.run import PolicyParts
from etude.learning.run_folder import find_policy
from etude.learning.settings import read_own
from etude.problems.catalogue import Catalogue, parse_catalogue
from etude.problems.workflow import SPEC
from etude.problems.workflow.doubt import CALIBRATION, Calibration
from etude.problems.workflow.encode import KnownNames, TextReader
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlannerConfig, make_plan_policy
from etude.problems.workflow.office.problem import PretrainedPlanner
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.settings import WorkflowSettings
from etude.problems.workflow.worker_model import WorkerModel
from etude.text.encoders import make_encoder

CATALOGUE = "catalogue.json"
WORKERS = "worker_model."
CORRECTS, SEES_LIVE = "corrects", "sees_live"
"""Names, among the details of a policy, of what its network has learned."""


def make_reader(config: PlannerConfig) -> TextReader:
    if config.encoder == "minilm":
        from etude.text.minilm import MiniLM, tokenise

        return TextReader(encoder=make_encoder("minilm"), tokenise=tokenise, network=MiniLM.pretrained)
    return TextReader(encoder=make_encoder(config.encoder.removesuffix("-frozen")))


def planner_parts(
    catalogue: Catalogue,
    known: KnownNames,
    memory: Mapping[str, Tensor] | None = None,
    workers: WorkerModel | None = None,
    calibration: Calibration | None = None,
    *,
    corrects: bool = False,
    sees_live: bool = False,
) -> PolicyParts:
    """What a planner's artefact holds besides its weights; a learner that fits a memory adds that itself.

    The network has learned to correct failures, and with workers' numbers that change, where these flags say so.
    """
    model = {} if workers is None else {name: torch.from_numpy(x) for name, x in workers.tensors().items()}
    return PolicyParts(
        tensors=prefixed("memory.", memory or {}) | prefixed(WORKERS, model),
        files={CATALOGUE: msgspec.json.format(msgspec.json.encode(catalogue), indent=1)},
        details={"task_types": list(known.task_types), "workers": list(known.workers)}
        | ({} if workers is None else {"worker_model": workers.to_json()})
        | ({} if calibration is None else {CALIBRATION: msgspec.to_builtins(calibration)})
        | {name: True for name, has in ((CORRECTS, corrects), (SEES_LIVE, sees_live)) if has},
    )


def parts_of(planner: Planner, workers: WorkerModel | None) -> PolicyParts:
    """A planner as it is, with this worker model."""
    memory, calibration = planner.memory.state_dict(), planner.calibration
    parts = planner_parts(
        planner.catalogue,
        planner.known,
        memory,
        workers,
        calibration,
        corrects=planner.corrects,
        sees_live=planner.policy.sees_live,
    )
    return parts.with_weights(planner.policy.state_dict())


def read_pretrained(artefact: Artefact) -> tuple[PretrainedPlanner, WorkflowSettings]:
    """What a planner has learned, for a run that continues from it, and its settings."""
    manifest = artefact.manifest
    if manifest.problem != SPEC.name or "task_types" not in manifest.details:
        raise CheckpointError(
            f"{artefact.path} is a policy of {manifest.problem!r} that does not plan: give a run of "
            f"`etude train {SPEC.name}`"
        )
    tensors = artefact.tensors()
    known = KnownNames(task_types=tuple(manifest.details["task_types"]), workers=tuple(manifest.details["workers"]))
    return (
        PretrainedPlanner(
            known=known,
            weights=under("policy.", tensors),
            memory=Memory.from_state(under("memory.", tensors), types=len(known.task_types)),
            step=manifest.step,
        ),
        read_own(WorkflowSettings, manifest.settings, source=artefact.path),
    )


def read_catalogue_of(artefact: Artefact) -> Catalogue:
    """The task types and workers that a planner was trained with."""
    return parse_catalogue(artefact.file(CATALOGUE), source=artefact.path / CATALOGUE)


def read_calibration(artefact: Artefact) -> Calibration | None:
    """The calibration of a planner's probabilities; None where it has none."""
    kept = artefact.manifest.details.get(CALIBRATION)
    return None if kept is None else msgspec.convert(kept, Calibration)


def load(artefact: Artefact) -> Planner:
    """The planner of an artefact, with the catalogue it was trained on; it has no dropout, so that it can practise."""
    pretrained, own = read_pretrained(artefact)
    reader = make_reader(own.planner)
    policy = make_plan_policy(own.planner.without_dropout(), pretrained.known, reader, own.limits)
    load_weights(policy, artefact)
    policy.sees_live = bool(artefact.manifest.details.get(SEES_LIVE))
    return Planner(
        policy.eval(),
        reader=reader,
        known=pretrained.known,
        memory=pretrained.memory,
        catalogue=read_catalogue_of(artefact),
        limits=own.limits,
        beam=own.training.phase1_supervised.beam,
        workers=_worker_model(artefact, own),
        corrects=bool(artefact.manifest.details.get(CORRECTS)),
        step=pretrained.step,
        version=artefact.version,
        calibration=read_calibration(artefact),
    )


def _worker_model(artefact: Artefact, own: WorkflowSettings) -> WorkerModel | None:
    about = artefact.manifest.details.get("worker_model")
    tensors = {name: value.numpy() for name, value in under(WORKERS, artefact.tensors()).items()}
    return None if about is None else WorkerModel.from_state(tensors, about, own.worker_model)


def load_planner(path: Path) -> Planner:
    """The planner of a run, or of an artefact."""
    return load(find_policy(path))
