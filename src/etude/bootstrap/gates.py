"""Wires gates: a registered version or a run, its incumbent and its dataset in, the context of its gates out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Any

from etude.bootstrap.datasets import OpenedDataset, open_dataset
from etude.bootstrap.experience import existing_store
from etude.bootstrap.release import ReleaseSettings, open_registry, settings_here, settings_in_force
from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import ConfigError, EtudeError, ReleaseError
from etude.contracts.ports import Decider, LoggedDataset
from etude.contracts.release import Action
from etude.contracts.trajectory import Trajectory
from etude.evidence.overlap import Verdict
from etude.experience.definitions import find_definition
from etude.files.durable import write_json
from etude.learning.artefact import Artefact
from etude.learning.run_folder import CONFIG, RunFolder, find_policy
from etude.problems.spec import ProblemSpec, resolve
from etude.problems.table import spec_of
from etude.release.gates.gate import REPORT, Contender, GateConfig, GateContext, GateReport
from etude.release.gates.red_team import read_instructions
from etude.release.gates.run import Progress, run_gates
from etude.release.registry import Registry

REQUESTS = 600
"""Requests that gates ask with, and those of the training data that they are compared with."""
ACTIONS = {
    Verdict.PASS: Action.GATES_PASSED,
    Verdict.FAIL: Action.GATES_FAILED,
    Verdict.CANNOT_TELL: Action.GATES_UNDECIDED,
}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What gates are run on."""

    artefact: Artefact
    slot: str
    incumbent: Artefact | None = None
    trained_on: OpenedDataset | None = None
    """The dataset that it learned from, where it can be found."""
    run: RunFolder | None = None
    registry: Registry | None = None
    approved: bool = False


def find_judged(what: str, settings: ReleaseSettings, *, slot: str | None = None, config: Path | None = None) -> Judged:
    """A run or an artefact by its folder, else a registered version by its first digits."""
    path = Path(what)
    if path.exists():
        artefact = find_policy(path)
        run = RunFolder(path) if (path / CONFIG).is_file() else None
        learned = learned_from(artefact, run, config)
        own = slot or (artefact.manifest.problem if learned is None else learned.problem)
        incumbent = _serving(artefact, own, settings)
        return Judged(artefact=artefact, slot=own, run=run, incumbent=incumbent, trained_on=learned)
    registry = open_registry(settings)
    try:
        version = registry.find(what)
    except ReleaseError as error:
        raise ConfigError(f"{what!r} is no folder of a run, and {error}") from error
    own = slot or registry.slot_of(version)
    serving = registry.serving(own).incumbent
    artefact = registry.artefact(version)
    return Judged(
        artefact=artefact,
        slot=own,
        incumbent=registry.artefact(serving) if serving not in (None, version) else None,
        trained_on=learned_from(artefact, None, config),
        registry=registry,
        approved=registry.approved(own, version) is not None,
    )


def _serving(artefact: Artefact, slot: str, settings: ReleaseSettings) -> Artefact | None:
    """The policy that serves the slot of a run, if one does; an error if it was tampered with."""
    registry = open_registry(settings)
    version = registry.serving(slot).incumbent
    return registry.artefact(version) if version not in (None, artefact.version) else None


def judge(
    what: str,
    *,
    dataset: str | LoggedDataset | None = None,
    against: str | None = None,
    slot: str | None = None,
    only: Collection[str] = (),
    config: Path | None = None,
    gates: GateConfig | None = None,
    seed: int = 0,
    actor: str = "gates",
    keep: bool = True,
    progress: Progress | None = None,
) -> GateReport:
    """Run the gates on a version or run, and keep the report with it; a registered version changes its state, unless
    only some gates were run. `against` is another incumbent, a run or a version."""
    settings = settings_here(config)
    judged = find_judged(what, settings, slot=slot, config=config)
    if against is not None:
        judged = replace(judged, incumbent=find_judged(against, settings).artefact)
    context = make_context(
        judged, settings, dataset=dataset, config=config, gates=gates or gate_config(settings), seed=seed
    )
    report = run_gates(context, only=only, progress=progress)
    if keep and not only:
        store_report(judged, report, actor=actor)
    return report


def judge_again(
    version: str, *, slot: str, dataset: LoggedDataset | None, config: Path | None = None, actor: str = "gates"
) -> GateReport:
    """As `judge`, for a registered version; gates that passed it before, next to the same incumbent, are not run again:
    only gates that could not tell have new evidence."""
    settings = settings_here(config)
    judged = find_judged(version, settings, slot=slot, config=config)
    before = _undecided(judged)
    if before is None:
        return judge(version, slot=slot, dataset=dataset, config=config, actor=actor)
    open_gates = [result.name for result in before.results if result.verdict is not Verdict.PASS]
    found = judge(version, slot=slot, dataset=dataset, config=config, only=open_gates)
    new = {result.name: result for result in found.results}
    report = replace(found, results=tuple(new.get(result.name, result) for result in before.results))
    store_report(judged, report, actor=actor)
    return report


def _undecided(judged: Judged) -> GateReport | None:
    """The last report of a version, if its gates could not tell, and it was compared with what serves now."""
    assert judged.registry is not None
    data = judged.registry.attached(judged.artefact.version, REPORT)
    report = None if data is None else GateReport.from_json(data)
    serving = None if judged.incumbent is None else judged.incumbent.version
    if report is None or report.verdict is not Verdict.CANNOT_TELL or report.incumbent != serving:
        return None
    return report


def gate_config(settings: ReleaseSettings) -> GateConfig:
    """The gates' own section of the settings, with the approval that releases need."""
    own = settings.release.gates
    return replace(own, require_approval=own.require_approval or settings.release.require_approval)


def make_context(
    judged: Judged,
    settings: ReleaseSettings,
    *,
    dataset: str | LoggedDataset | None = None,
    config: Path | None = None,
    gates: GateConfig | None = None,
    seed: int = 0,
) -> GateContext:
    """Without a dataset, the one that the policy learned from is used: its test split."""
    spec = spec_of(judged.artefact.path, judged.artefact.manifest.problem)
    trained_on = judged.trained_on
    given = open_dataset(dataset, config) if isinstance(dataset, str) else dataset
    tested = given or trained_on
    version, instructions = read_instructions()
    return GateContext(
        slot=judged.slot,
        spec=spec,
        candidate=contender(judged.artefact, spec, judged.slot, settings),
        incumbent=None if judged.incumbent is None else contender(judged.incumbent, spec, judged.slot, settings),
        requests=_requests(spec, judged.artefact, tested, "test", seed),
        dataset=tested,
        trained_on=trained_on if trained_on is not tested else None,
        reference=() if trained_on is None else _requests(spec, judged.artefact, trained_on, "train", seed),
        reward_range=_reward_range(tested, config),
        instructions=instructions,
        instructions_version=version,
        config=gates or gate_config(settings),
        seed=seed,
        approved=judged.approved,
    )


def contender(artefact: Artefact, spec: ProblemSpec, slot: str, settings: ReleaseSettings) -> Contender:
    """A policy as it serves: named after its slot, exploring where the settings say so, and with those in force."""
    artefact = artefact.under(settings_in_force(spec))

    def load() -> Decider:
        policy: Any = resolve(spec.load)(artefact)
        if settings.experience.explore and hasattr(policy, "sampled"):
            policy = policy.sampled()
        found: Decider = policy.named(slot) if hasattr(policy, "named") and ":" in slot else policy
        return found

    return Contender(artefact=artefact, load=load, explores=settings.experience.explore > 0)


def learned_from(artefact: Artefact, run: RunFolder | None, config: Path | None) -> OpenedDataset | None:
    """The dataset that a policy learned from, by its run's own record or by the store's; None if it cannot be found."""
    places = []
    if run is not None:
        facts = run.config().get("dataset")
        places += [facts["url"]] if facts else []
    places += _registered_places(artefact, config)
    for place in places:
        try:
            found = open_dataset(place, config)
        except EtudeError:  # moved or deleted since
            continue
        if found.content in artefact.manifest.data:
            return found
    return None


def _registered_places(artefact: Artefact, config: Path | None) -> list[str]:
    from etude.experience.datasets import registered

    with existing_store(config) as store:
        known = registered(store) if store is not None else {}
    return [manifest.url for manifest in known.values() if manifest.content in artefact.manifest.data]


def _requests(
    spec: ProblemSpec, artefact: Artefact, dataset: LoggedDataset | None, split: str, seed: int
) -> list[DecisionRequest]:
    if spec.requests is None:
        return []
    found: list[DecisionRequest] = resolve(spec.requests)(artefact, _newest(dataset, split), REQUESTS, seed)
    return found


def _newest(dataset: LoggedDataset | None, split: str) -> Iterator[Trajectory]:
    """At most REQUESTS trajectories of a split, the newest ones: those of now, and those at the end of training. What
    changed before that, such as the options that are offered, the policy has learned."""
    if dataset is None or not dataset.splits.get(split):
        return iter(())
    every = (example.trajectory for part in dataset.examples(split) for example in part)
    return iter(nlargest(REQUESTS, every, key=lambda trajectory: (trajectory.time, trajectory.id))[::-1])


def _reward_range(dataset: LoggedDataset | None, config: Path | None) -> tuple[float, float] | None:
    """Declared bounds of a dataset's reward."""
    if dataset is None:
        return (0.0, 1.0)
    with existing_store(config) as store:
        if store is None:
            return None
        return find_definition(store, int(dict(dataset.facts)["reward"])).range


def store_report(judged: Judged, report: GateReport, *, actor: str) -> None:
    """Keep the report with the version, and in the ledger of its slot what it says."""
    if judged.registry is None:
        if judged.run is not None:
            write_json(judged.run.path / REPORT, report.to_json())
        return
    judged.registry.attach(report.version, REPORT, json.dumps(report.to_json(), indent=1).encode())
    said = [*report.reasons(Verdict.FAIL), *report.reasons(Verdict.CANNOT_TELL)]
    judged.registry.record(
        judged.slot,
        ACTIONS[report.verdict],
        report.version,
        actor=actor,
        reason="; ".join(said)[:500] or f"{len(report.results)} gates passed",
        evidence={"verdict": str(report.verdict), "gates": {r.name: str(r.verdict) for r in report.results}},
    )
