"""The run of a policy that continues from logged decisions, for any problem that reads its logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from etude.contracts.errors import ConfigError
from etude.learning.artefact import Artefact
from etude.learning.compute import resolve_device
from etude.learning.from_logs import FromLogs, Keep, LogReader, check_dataset
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Run
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.spec import ProblemSpec


def learn_from_logs(
    request: LearnRequest,
    spec: ProblemSpec,
    read: Callable[[Artefact, Mapping[str, Any], torch.device], LogReader],
    *,
    keep: Keep = Keep.ALWAYS,
    remarks: tuple[str, ...] = (),
) -> Run:
    """A run that continues a policy from its checkpoint on a dataset of logged decisions."""
    dataset, settings, run = request.dataset, request.settings, request.settings.run
    if dataset is None or request.checkpoint is None:
        raise ConfigError("learning from logs needs a dataset and the policy to continue from, its checkpoint")
    check_dataset(dataset, spec.name, "train", "validation")
    parent, device = find_policy(request.checkpoint), resolve_device(run.device)
    reader, algorithm = read(parent, request.inputs, device), request.inputs.get("algorithm") or "ppo"
    manifest, folder = parent.manifest, RunFolder(request.out)
    about = About(
        problem=spec.name,
        method=request.method,
        title=f"{spec.name} {algorithm} from logs",
        unit="passes",
        budget="",
        score="estimate",
        settings={**manifest.settings, **settings.sections("run", "from_logs")},
        policy_sections=tuple(manifest.settings),
        encoder=manifest.encoder,
        catalogue=manifest.catalogue,
        data=(dataset.content,),
        parent=parent.version,
        extra={"algorithm": algorithm, "dataset": dict(dataset.facts)},
        remarks=remarks,
    )
    learner = FromLogs(
        about,
        reader,
        settings.from_logs,
        lambda: dataset.examples("train"),
        lambda: dataset.examples("validation"),
        algorithm=algorithm,
        device=device,
        seed=run.seed,
        threads=run.threads,
        keep=keep,
    )
    made = Run(learner, folder, trackers=run.trackers, keep_checkpoints=2)
    folder.keep_start(parent)
    return made
