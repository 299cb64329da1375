"""Phase 1: a planner learns from expert workflows, those of files or of the simulated office's experts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch

from etude.contracts.errors import DataError
from etude.learning.compute import resolve_device
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Run
from etude.learning.run_folder import RunFolder
from etude.problems.catalogue import Catalogue, read_catalogue
from etude.problems.workflow import SPEC, data_files
from etude.problems.workflow.artefact import CATALOGUE, make_reader, planner_parts
from etude.problems.workflow.decisions import catalogue_id
from etude.problems.workflow.examples import Example, read_examples, to_examples
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.imitation import ImitationLearner
from etude.problems.workflow.network import make_plan_policy
from etude.problems.workflow.office.problem import without_new_entries
from etude.problems.workflow.office.world import Tables
from etude.problems.workflow.settings import WorkflowSettings
from etude.problems.workflow.training_set import make_training_set, merge_sets, split

ExampleFile = tuple[Path, Path | None]
"""A file of examples, and its catalogue where that is not `catalogue.json` next to it."""


def imitate(request: LearnRequest) -> Run:
    settings, own = request.settings, request.settings.own(WorkflowSettings)
    config, limits, seed = own.training.phase1_supervised, own.limits, settings.run.seed
    sets, hashes = read_sets(data_files(request.inputs), max_nodes=limits.max_nodes)
    merged = merge_sets(sets or [office_experts(own, seed)])
    reader, device = make_reader(own.planner), resolve_device(settings.run.device)
    learn, held_out = split(merged, share=config.validation_share, size=config.train_data_size, seed=seed)
    make = partial(
        make_training_set,
        merged,
        reader=reader,
        limits=limits,
        augmentations=config.synthetic_augmentations,
        ridge=config.ridge,
        seed=seed,
    )
    torch.manual_seed(seed)
    folder = RunFolder(request.out)
    learner = ImitationLearner(
        About(
            problem=SPEC.name,
            method=request.method,
            title=f"{SPEC.name} phase 1",
            unit="epochs",
            budget=f"{config.num_epochs + config.final_epochs:,}",
            score="validation score",
            settings=settings.sections(*SPEC.sections, "run"),
            policy_sections=SPEC.sections,
            encoder=reader.encoder.name,
            catalogue=catalogue_id(merged.catalogue),
            data=tuple(hashes),
            extra={"phase": 1},
        ),
        make_plan_policy(own.planner, merged.known, reader, limits),
        make(learn, held_out),
        lambda: make(sorted(learn + held_out), held_out[:1]),
        config,
        folder,
        seed=seed,
        device=device,
        threads=settings.run.threads,
        parts=planner_parts(merged.catalogue, merged.known),
    )
    return Run(learner, folder, trackers=settings.run.trackers, keep_checkpoints=2)


def read_sets(
    files: Sequence[ExampleFile], *, max_nodes: int
) -> tuple[list[tuple[Catalogue, list[Example]]], list[str]]:
    """Files of examples, each with its catalogue, and their hashes."""
    sets, hashes = [], []
    for file, own in files:
        if not file.exists():  # reported before its catalogue, which would lie next to it
            raise DataError(f"{file}: cannot be read (no such file): expected a training file")
        catalogue_file = own or file.with_name(CATALOGUE)
        catalogue = read_catalogue(catalogue_file)
        sets.append((catalogue, read_examples(file, catalogue, max_nodes=max_nodes)))
        hashes.append(sha256(file.read_bytes() + catalogue_file.read_bytes()).hexdigest())
    return sets, hashes


def office_experts(own: WorkflowSettings, seed: int) -> tuple[Catalogue, list[Example]]:
    """Experts' plans for the office's instructions, except the held-out ones."""
    office, limits = own.office, own.limits
    scenarios = Tables(own.training.phase2_rl.world(office, limits), None, "cpu").scenarios
    records = expert_examples(scenarios, source="gold", noise=office.expert_noise, seed=seed)
    catalogue, learned = without_new_entries(scenarios), records[: office.scenarios]
    return catalogue, to_examples(learned, catalogue, max_nodes=limits.max_nodes, source="the office's experts")
