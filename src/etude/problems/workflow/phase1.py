"""Phase 1: a planner learns from expert workflows, those of files or of the simulated office's experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from etude.contracts.errors import DataError
from etude.learning.compute import resolve_device
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Run, RunConfig
from etude.learning.run_folder import RunFolder
from etude.problems.catalogue import Catalogue, read_catalogue
from etude.problems.workflow import SPEC, data_files
from etude.problems.workflow.artefact import CATALOGUE, make_reader, planner_parts
from etude.problems.workflow.decisions import catalogue_id
from etude.problems.workflow.encode import TextReader
from etude.problems.workflow.examples import Example, read_examples, to_examples
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.imitation import ImitationLearner
from etude.problems.workflow.network import make_plan_policy
from etude.problems.workflow.office.problem import without_new_entries
from etude.problems.workflow.office.world import Tables
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.settings import WorkflowSettings
from etude.problems.workflow.training_set import ExampleSets, make_training_set, merge_sets, split

ExampleFile = tuple[Path, Path | None]
"""A file of examples, and its catalogue where that is not `catalogue.json` next to it."""


def imitate(request: LearnRequest) -> Run:
    settings, own = request.settings, request.settings.own(WorkflowSettings)
    sets, hashes = read_sets(data_files(request.inputs), max_nodes=own.limits.max_nodes)
    merged, config = merge_sets(sets or [office_experts(own, settings.run.seed)]), own.training.phase1_supervised
    reader, folder = make_reader(own.planner), RunFolder(request.out)
    about = About(
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
    )
    imitation = Imitation(about=about, merged=merged, reader=reader, own=own, folder=folder, run=settings.run)
    return Run(imitation.learner(), folder, trackers=settings.run.trackers, keep_checkpoints=2)


@dataclass(frozen=True, kw_only=True)
class Imitation:
    """Everything that phase 1 learns from and with."""

    about: About
    merged: ExampleSets
    reader: TextReader
    own: WorkflowSettings
    folder: RunFolder | None  # None: plans are not kept to be shown
    run: RunConfig

    def learner(self) -> ImitationLearner:
        return ImitationLearner(**self.parts())

    def planner(self, learner: ImitationLearner) -> Planner:
        """A planner with what a learner has learned so far."""
        policy = make_plan_policy(self.own.planner.without_dropout(), self.merged.known, self.reader, self.own.limits)
        policy.load_state_dict(learner.weights())
        return Planner(
            policy.eval(),
            reader=self.reader,
            known=self.merged.known,
            memory=learner.training_set.memory,
            catalogue=self.merged.catalogue,
            limits=self.own.limits,
        )

    def parts(self) -> dict[str, Any]:
        """What a learner is made of. Some examples are held out to judge epochs by."""
        config, merged, own = self.own.training.phase1_supervised, self.merged, self.own
        learn, held_out = split(merged, share=config.validation_share, size=config.train_data_size, seed=self.run.seed)
        make = partial(
            make_training_set,
            merged,
            reader=self.reader,
            limits=own.limits,
            augmentations=config.synthetic_augmentations,
            ridge=config.ridge,
            seed=self.run.seed,
        )
        torch.manual_seed(self.run.seed)
        return {
            "about": self.about,
            "policy": make_plan_policy(own.planner, merged.known, self.reader, own.limits),
            "training_set": make(learn, held_out),
            "whole": lambda: make(sorted(learn + held_out), held_out[:1]),
            "config": config,
            "folder": self.folder,
            "seed": self.run.seed,
            "device": resolve_device(self.run.device),
            "threads": self.run.threads,
            "parts": planner_parts(merged.catalogue, merged.known),
        }


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
