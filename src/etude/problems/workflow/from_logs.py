"""Planners that learn from logged workflows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from etude.contracts.errors import ConfigError
from etude.learning.artefact import Artefact
from etude.learning.logs_run import learn_from_logs
from etude.learning.requests import LearnRequest
from etude.learning.run import Run
from etude.problems.catalogue import read_catalogue
from etude.problems.workflow import SPEC
from etude.problems.workflow.artefact import (
    make_plan_policy,
    make_reader,
    planner_parts,
    read_catalogue_of,
    read_pretrained,
)
from etude.problems.workflow.shards import WorkflowLogs


def from_logs(request: LearnRequest) -> Run:
    return learn_from_logs(request, SPEC, read_logs)


def read_logs(artefact: Artefact, inputs: Mapping[str, Any], device: torch.device) -> WorkflowLogs:
    """With the planner's own catalogue, or the one that the logs were made with."""
    named = inputs.get("catalogue") or []
    files: list[Path] = named if isinstance(named, list) else [named]
    if len(files) > 1:
        raise ConfigError(f"there are {len(files)} catalogues: a dataset was logged with one")
    pretrained, own = read_pretrained(artefact)
    reader = make_reader(own.planner)
    policy = make_plan_policy(replace(own, planner=own.planner.without_dropout()), pretrained.known, reader)
    policy.load_state_dict(pretrained.weights)
    catalogue = read_catalogue(files[0]) if files else read_catalogue_of(artefact)
    return WorkflowLogs(
        policy=policy.to(device),
        parts=planner_parts(catalogue, pretrained.known, pretrained.memory.state_dict()),
        catalogue=catalogue,
        limits=own.limits,
        reader=reader,
        known=pretrained.known,
        memory=pretrained.memory,
    )
