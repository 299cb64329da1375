"""Phase 1 of the workflow planner: files of expert workflows, or the office's experts, to a training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from etude.bootstrap.planner import make_plan_policy, make_reader, write_catalogue
from etude.bootstrap.runs import CATALOGUE
from etude.contracts.errors import DataError
from etude.learning.imitation import ImitationTraining
from etude.learning.runs import RunFolder
from etude.learning.train import resolve_device
from etude.problems.workflow.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.examples import Example, read_examples, to_examples
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.lesson import make_course, make_lesson, split
from etude.problems.workflow.problem import without_newcomers
from etude.problems.workflow.world import Tables
from etude.settings.tree import Settings


def make_imitation(settings: Settings, out: Path, data: Sequence[tuple[Path, Path | None]]) -> ImitationTraining:
    """Phase 1 of the workflow planner in `out`: from files of examples, else from the simulated office's experts."""
    import torch

    config, limits = settings.training.phase1_supervised, settings.limits
    sets, hashes = read_sets(data, max_nodes=limits.max_nodes)
    course = make_course(sets or [office_experts(settings)])
    seed, reader = settings.run.seed, make_reader(settings.planner)
    learn, aside = split(course, share=config.validation_share, size=config.train_data_size, seed=seed)
    lesson = partial(
        make_lesson,
        course,
        reader=reader,
        limits=limits,
        augmentations=config.synthetic_augmentations,
        ridge=config.ridge,
        seed=seed,
    )
    torch.manual_seed(seed)
    training = ImitationTraining(
        make_plan_policy(settings, course.known, reader),
        lesson(learn, aside),
        lambda: lesson(sorted(learn + aside), aside[:1]),
        config,
        RunFolder(out),
        {
            "problem": "workflow",
            "phase": 1,
            "data": hashes,
            **settings.model_dump(mode="json", include={"limits", "planner", "training", "run", "office"}),
        },
        seed=seed,
        trackers=settings.run.trackers,
        device=resolve_device(settings.run.device),
        threads=settings.run.threads,
    )
    write_catalogue(out, course.catalogue)
    return training


def read_sets(
    data: Sequence[tuple[Path, Path | None]], *, max_nodes: int
) -> tuple[list[tuple[Catalogue, list[Example]]], list[str]]:
    """Files of examples, each with its catalogue or the one beside it, and what tells them from others."""
    sets, hashes = [], []
    for file, own in data:
        if not file.exists():  # told before its catalogue, which would stand beside it
            raise DataError(f"{file}: cannot be read (no such file): expected a training file")
        catalogue_file = own or file.with_name(CATALOGUE)
        catalogue = read_catalogue(catalogue_file)
        sets.append((catalogue, read_examples(file, catalogue, max_nodes=max_nodes)))
        hashes.append(sha256(file.read_bytes() + catalogue_file.read_bytes()).hexdigest())
    return sets, hashes


def office_experts(settings: Settings) -> tuple[Catalogue, list[Example]]:
    """Experts' plans for the office's instructions; for those kept aside nobody's."""
    office, limits = settings.office, settings.limits
    scenarios = Tables(settings.training.phase2_rl.world(office, limits), None, "cpu").scenarios
    records = expert_examples(scenarios, source="gold", noise=office.expert_noise, seed=settings.run.seed)
    catalogue, learned = without_newcomers(scenarios), records[: office.scenarios]
    return catalogue, to_examples(learned, catalogue, max_nodes=limits.max_nodes, source="the office's experts")
