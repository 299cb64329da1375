"""All settings in one tree: those of every learner, of experience, and the sections of each problem.

Later sources win: defaults, a variant's defaults, a preset, etude.yaml, ETUDE_… variables, command-line flags. For one
problem only its own sections are imported; those of other problems are known by name and ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import create_model

from etude.contracts.errors import ConfigError
from etude.contracts.suggestions import did_you_mean
from etude.experience.config import ExperienceConfig
from etude.learning.settings import LearningSettings
from etude.loop.config import LoopConfig
from etude.orchestrator.config import OrchestratorConfig
from etude.problems.spec import ProblemSpec, resolve
from etude.problems.table import find_spec, specs
from etude.release.config import ReleaseConfig
from etude.serving.config import ServingConfig
from etude.serving.routing.config import RoutingConfig
from etude.settings.sources import Assignment, Resolved, Tree

FLAGS = {"--seed": "run.seed", "--device": "run.device", "--tracker": "run.trackers"}
"""Command-line flags that all problems have; `--set key=value` reaches the rest."""


class Settings(LearningSettings):
    """Settings that every problem has; `tree_of` adds the sections of problems."""

    experience: ExperienceConfig = ExperienceConfig()
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    release: ReleaseConfig = ReleaseConfig()
    loop: LoopConfig = LoopConfig()
    serving: ServingConfig = ServingConfig()
    routing: RoutingConfig = RoutingConfig()


@cache
def tree_of(problem: str | None) -> Tree[Settings]:
    """The settings of one problem, or of all problems."""
    chosen = specs().values() if problem is None else [find_spec(problem)]
    sections: dict[str, Any] = {}
    for spec in chosen:
        kind = resolve(spec.settings)
        types = get_type_hints(kind, include_extras=True)
        if (found := {field.name for field in fields(kind)}) != set(spec.sections):
            raise ConfigError(f"the problem {spec.name!r} names the sections {spec.sections}, and has {sorted(found)}")
        for field in fields(kind):
            if field.name in sections or field.name in Settings.model_fields:
                raise ConfigError(f"the problem {spec.name!r} has a section {field.name!r}, a name that is taken")
            sections[field.name] = (types[field.name], getattr(kind(), field.name))
    return Tree(create_model("Settings", __base__=Settings, **sections))


def resolve_settings(
    problem: str | None = None,
    *,
    preset: str | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> Resolved[Settings]:
    """Settings from all sources, the later ones winning; ConfigError for the first source with something wrong.

    `config` is a file that must exist; `flags` maps flags to values, None for those not given; `assignments` are the
    texts after `--set`.
    """
    tree = tree_of(problem)
    for_all = [*(tree.from_file(config) if config else ()), *tree.from_environment(environ or {})]
    chosen = [
        *_without_others(problem, for_all),
        *_from_flags(problem, flags or {}),
        *(assignment for text in assignments for assignment in tree.from_assignment(text)),
    ]
    _check_sections(problem, chosen)
    if preset is not None:
        chosen = [*_from_preset(tree, problem, preset), *chosen]
    return tree.build([*_from_variants(tree, problem, chosen), *chosen])


def _without_others(problem: str | None, assignments: Sequence[Assignment]) -> list[Assignment]:
    """Assignments without the sections of other problems, since a file and the environment are shared by all."""
    others = _owners().keys() - _sections(problem)
    return [assignment for assignment in assignments if _section(assignment) not in others]


def _check_sections(problem: str | None, assignments: Sequence[Assignment]) -> None:
    """ConfigError for a section of another problem or an unknown section."""
    for assignment in assignments:
        section, owners = _section(assignment), _owners()
        if section in _sections(problem):
            continue
        if section not in owners:
            tree_of(None).check_key(assignment)
        raise ConfigError(
            f"{assignment.key!r} ({assignment.origin}) is a setting of the problem {owners[section]!r}, and this is "
            f"{problem!r}: leave it out"
        )


def _section(assignment: Assignment) -> str:
    return assignment.key.partition(".")[0]


def _owners() -> dict[str, str]:
    """Section → its problem."""
    return {section: spec.name for spec in specs().values() for section in spec.sections}


def _sections(problem: str | None) -> set[str]:
    return {*Settings.model_fields, *(section for spec in _chosen(problem) for section in spec.sections)}


def presets(problem: str | None = None) -> dict[str, dict[str, Any]]:
    """Named groups of settings, of one problem or of all problems."""
    found: dict[str, dict[str, Any]] = {}
    for spec in _chosen(problem):
        for name, tree in spec.presets.items():
            found[name] = {**found.get(name, {}), **tree}
    return found


def _chosen(problem: str | None) -> list[ProblemSpec]:
    return list(specs().values()) if problem is None else [find_spec(problem)]


def _from_preset(tree: Tree[Settings], problem: str | None, name: str) -> Iterator[Assignment]:
    known = presets(problem)
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"the preset is {name!r}: {hint}expected one of {', '.join(map(repr, known)) or 'none'}")
    for key, value in tree.flatten(known[name]):
        yield Assignment(key, value, f"preset {name}")


def _from_variants(tree: Tree[Settings], problem: str | None, chosen: Sequence[Assignment]) -> Iterator[Assignment]:
    """Defaults that depend on another setting."""
    for spec in _chosen(problem):
        if spec.variants is not None:
            setting, defaults = spec.variants
            variant = next((a.value for a in reversed(chosen) if a.key == setting), None)
            for key, value in tree.flatten(defaults.get(variant, {}) if isinstance(variant, str) else {}):
                yield Assignment(key, value, f"default for {variant}")


def _from_flags(problem: str | None, flags: Mapping[str, Any]) -> Iterator[Assignment]:
    own = {flag.name: flag.setting for spec in _chosen(problem) for flag in spec.flags if flag.setting}
    for flag, value in flags.items():
        if value is not None:
            yield Assignment((FLAGS | own)[flag], value, flag)
