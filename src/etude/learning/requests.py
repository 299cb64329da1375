"""Requests to learners and evaluations, and the result of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.contracts.ports import LoggedDataset
from etude.learning.settings import LearningSettings


@dataclass(frozen=True, kw_only=True)
class LearnRequest:
    """The inputs of a learner."""

    problem: str
    method: str
    settings: LearningSettings
    out: Path  # the run's folder
    inputs: Mapping[str, Any] = field(default_factory=dict)  # given inputs by flag name without dashes
    dataset: LoggedDataset | None = None  # opened, where one was given
    checkpoint: Path | None = None  # the run or artefact to continue from


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """The inputs of an evaluation."""

    run: Path  # a run's folder, or an artefact
    inputs: Mapping[str, Any] = field(default_factory=dict)  # given inputs by option name without dashes
    dataset: LoggedDataset | None = None  # opened, where one was given
    episodes: int = 200
    seed: int = 2_000_003  # not the episodes by which training chose its best policy: there it would look too good
    sampled: bool = False  # sample actions as in training instead of taking the most probable
    baselines: bool = True
    device: str = "auto"
    status: Callable[[str], None] = lambda text: None  # called with the current activity


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Result of an evaluation: numbers for programs, a table and sentences for people."""

    title: str
    json: Mapping[str, Any]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sentences: tuple[str, ...] = ()
