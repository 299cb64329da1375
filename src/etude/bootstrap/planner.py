"""The workflow planner: its parts from settings, and a run of either phase back to a planner."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

from etude.bootstrap.runs import CATALOGUE, find_root, read_settings, read_weights
from etude.contracts.errors import CheckpointError
from etude.learning.checkpoint import checkpoints, read_checkpoint, under
from etude.learning.runs import RunFolder
from etude.problems.workflow.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.encode import Known
from etude.problems.workflow.lesson import Reader
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlannerConfig, PlanPolicy
from etude.problems.workflow.problem import Beginning
from etude.serving.planner import Planner
from etude.settings.tree import Settings
from etude.text.encoders import make_encoder


def make_reader(config: PlannerConfig) -> Reader:
    if config.encoder == "minilm":
        from etude.text.minilm import MiniLM, tokenise

        return Reader(encoder=make_encoder("minilm"), tokenise=tokenise, network=MiniLM.pretrained)
    return Reader(encoder=make_encoder(config.encoder.removesuffix("-frozen")))


def make_plan_policy(settings: Settings, known: Known, reader: Reader) -> PlanPolicy:
    return PlanPolicy(
        settings.planner,
        text_width=reader.encoder.width,
        known_types=len(known.task_types),
        known_workers=len(known.workers),
        nodes=settings.limits.max_nodes,
        reader=reader.network and reader.network(settings.planner.dropout),
    )


def write_catalogue(out: Path, catalogue: Catalogue) -> None:
    (out / CATALOGUE).write_bytes(msgspec.json.format(msgspec.json.encode(catalogue), indent=1))


def read_beginning(path: Path) -> tuple[Beginning, Settings]:
    """What a planner's run has learned, for another to go on from, and its settings."""
    folder = RunFolder(find_root(path))
    settings = read_settings(folder, "workflow")
    tensors, meta = read_weights(path, folder, "workflow")
    if "router" in meta:
        raise CheckpointError(f"{path} chooses workers, it does not plan: give a run of `etude train workflow`")
    known = Known.of(read_catalogue(folder.path / CATALOGUE))
    began = checkpoints(folder.start)
    if began:  # a run of phase 2 remembers what phase 1 did
        first, told = read_checkpoint(began[-1], problem="workflow")
        known = Known(task_types=tuple(told["task_types"]), workers=tuple(told["workers"]))
        tensors |= {name: value for name, value in first.items() if name.startswith("memory.")}
    if "memory.weights" not in tensors:
        raise CheckpointError(f"{path} is a state of training, not a planner: give the folder of its run")
    memory = Memory.from_state(under("memory.", tensors), types=len(known.task_types))
    weights = under("policy.", tensors)
    return Beginning(known=known, weights=weights, memory=memory, step=meta["step"]), settings


def load_planner(path: Path) -> Planner:
    """The best planner of a run, with the catalogue it was trained on."""
    beginning, settings = read_beginning(path)
    reader = make_reader(settings.planner)
    policy = make_plan_policy(settings, beginning.known, reader)
    try:
        policy.load_state_dict(beginning.weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: its weights do not fit this version's network: train it anew ({error!s:.200})"
        ) from error
    return Planner(
        policy.eval(),
        reader=reader,
        known=beginning.known,
        memory=beginning.memory,
        catalogue=read_catalogue(find_root(path) / CATALOGUE),
        limits=settings.limits,
        beam=settings.training.phase1_supervised.beam,
        step=beginning.step,
        version=version_of(path, beginning),
    )


def version_of(path: Path, beginning: Beginning) -> str:
    """The run's name and what its weights are: another training, another version."""
    digest = sha256()
    for name, value in sorted(beginning.weights.items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return f"{find_root(path).resolve().name}@{digest.hexdigest()[:12]}"
