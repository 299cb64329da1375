"""What a problem tells the rest of Etude: one `ProblemSpec`, exported as SPEC by its package.

Everything heavy is named as "module:attribute" and imported when it is needed, so that reading all specs brings no
torch. The commands, the settings, the loop and the server find what they need here and name no problem.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import msgspec

from etude.contracts.errors import ConfigError

Reference = str
"""`package.module:attribute`."""

PRACTISE, FROM_LOGS, IMITATE = "practise", "from-logs", "imitate"
"""How policies learn: in a world, from logged decisions, from expert examples."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option of `etude train PROBLEM` besides those that all problems have."""

    name: str  # such as --variant
    help: str
    type: type = str  # str, int, float or Path
    setting: str | None = None  # the dotted key that it sets; None: an input of the learner, under the flag's name
    multiple: bool = False
    metavar: str | None = None
    default: str = ""  # what is shown as the default


class Metric(NamedTuple):
    """A number per episode: its label, what it means, and how it is written."""

    label: str
    about: str
    kind: Literal["share", "usd", "ms", "number"] = "share"


@dataclass(frozen=True, kw_only=True)
class ProblemSpec:
    """One kind of decision."""

    name: str
    summary: str
    """One line for the help."""
    settings: Reference
    """A dataclass whose fields are the problem's sections of etude.yaml, each a config dataclass."""
    sections: tuple[str, ...]
    """The names of those fields: known without importing them."""
    learners: Mapping[str, Reference]
    """Method → function from a LearnRequest to a Run."""
    load: Reference
    """Function from an Artefact to the policy that users hold; a `Decider`, too, where it decides for `etude.task`."""
    problem: Reference | None = None
    """Function from the problem's settings to the Problem that `practise` learns in, where there is a world."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """What is reported of episodes besides their return."""
    in_force: tuple[str, ...] = ()
    """Keys of the settings that hold for policies that serve as soon as they are set, such as a budget; the others are
    those that a policy learned with."""
    compare: Reference | None = None
    """Function from an EvaluateRequest to a Comparison of the policy with others in its world; None: the general one,
    which needs `problem`."""
    record: Reference | None = None
    """Function from an Actor to one that records what it does: its `notes()` reach the report."""
    decider: Reference | None = None
    """Function from (policy name or run folder, experience settings) to a Decider; None: `load` gives one."""
    rules: Reference | None = None
    """Function that gives the Decider for where no policy decides; None: `decider` without a name, if there is one."""
    read_logs: Reference | None = None
    """Function from (Artefact, inputs, device) to the LogReader that `from-logs` and `evaluate --dataset` use."""
    continues: bool = True
    """Whether learning from logs continues the policy that logged them; else it starts from the beginning,
    unless a checkpoint is given."""
    evaluations: Mapping[str, Reference] = field(default_factory=dict)
    """Input, such as `data` or `replay` → function from an EvaluateRequest to a Measurement."""
    session: Reference | None = None
    """Function from an Artefact, or None, to a `contracts.session.Session`: a policy that learns while a caller asks
    it, over the routes of the source document. One problem has it."""
    requests: Reference | None = None
    """Function from (Artefact, trajectories, number, seed) to the DecisionRequests that gates ask a policy: those of
    the trajectories, or typical ones where there are none; None: it answers no requests."""
    gates: Mapping[str, Reference] = field(default_factory=dict)
    """Name → function from a `learning.gate.GateContext` to a GateResult: gates of its own, besides the general ones
    of `release/gates/`."""
    report: Reference | None = None
    """Function from a `reports.run.RunContext` to a `Contribution`: the problem's own part of a run's page."""
    flags: tuple[Flag, ...] = ()
    method: Reference | None = None
    """Function from the inputs of `etude train` to the method; None: from-logs with a dataset, else practise."""
    preset: Reference | None = None
    """Function from the method and the inputs to the preset that is used unless the user names one."""
    finish: Reference | None = None
    """Function called with a Run that has ended: what else its folder keeps for the report."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named groups of settings; `document` has those of the source document."""
    variants: tuple[str, Mapping[str, Mapping[str, Any]]] | None = None
    """A setting whose value changes other defaults: its key, and by value the defaults."""
    next_commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Method → commands that a user may want after training, RUN for the folder; else `evaluate` and `runs plot`."""
    environments: Reference | None = None
    """Function that makes the problem's environments known to Gymnasium; called when `etude` is imported."""
    commands: Mapping[str, Reference] = field(default_factory=dict)
    """Commands of its own in place of the general ones, such as `demo`."""

    def check_method(self, method: str) -> None:
        if method not in self.learners:
            raise ConfigError(
                f"the problem {self.name!r} does not learn by {method!r}: expected one of {', '.join(self.learners)}"
            )

    def learner(self, method: str) -> Any:
        self.check_method(method)
        return resolve(self.learners[method])


def resolve(reference: Reference) -> Any:
    """What "module:attribute" names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


class YamlFile(Mapping[str, Any]):
    """The content of a YAML file in a package, read when it is first asked for."""

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name

    @cached_property
    def _content(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.yaml.decode(files(self._package).joinpath(self._name).read_bytes())
        return found

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)
