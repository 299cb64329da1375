"""`etude demo`: the whole loop in two minutes. A policy serves, a better one is promoted, a harmful one rolled back.

Users and outcomes are simulated, and days pass in seconds. All else is real: decisions with their propensities,
rewards, the coordinator with its job, the gates, the canary with its default error probabilities, the signed record.
The folder of the demo is a project of its own: etude.yaml, .etude/ with experience and registry, runs/, datasets/,
report.html.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from etude.bootstrap.clock import set_clock
from etude.bootstrap.experience import config_here, make_collector, open_place
from etude.bootstrap.gates import judge
from etude.bootstrap.loop import open_loop
from etude.bootstrap.release import Release, open_registry
from etude.bootstrap.release_pages import release_facts
from etude.bootstrap.releases import RegistryReleases
from etude.bootstrap.runs import finish_run, make_request, start_run
from etude.cli.demo import OUT, first_free, print_ending
from etude.cli.demo_traffic import (
    GOOD_SCORE,
    MODELS,
    PATIENCE_MS,
    QUERIES_PER_DAY,
    Application,
    SimulatedClock,
    offered,
    queries,
)
from etude.cli.display import console, table
from etude.cli.progress import Display, follow, interruptible
from etude.contracts.errors import ReleaseError
from etude.contracts.formats import percent, plural, signed, whole
from etude.contracts.jobs import Job
from etude.contracts.query import Where
from etude.contracts.release import Action, Entry
from etude.evidence.overlap import Verdict
from etude.experience.datasets import DatasetConfig, create
from etude.experience.definitions import add_definition, read_definition
from etude.experience.rewards import rescore
from etude.learning.run_folder import RunFolder, find_policy
from etude.loop.coordinator import Coordinator
from etude.problems.choice.demo_data import Query
from etude.release.gates.gate import GateReport
from etude.reports import blocks
from etude.reports.blocks import Section, Tile, code
from etude.reports.page import Page
from etude.reports.release import ReleaseFacts, release_sections
from etude.settings.sources import FILE, PREFIX

SLOT = "choice:model"
PERSON = "demo"
FIRST, HARMFUL = "runs/first", "runs/harmful"
GRADED, GRADED_KINDS = 40, ("maths", "code")
"""Queries that the first policy learns from, by their scores alone."""
STEP = 50
"""Queries between two ticks of the coordinator."""
MAX_QUERIES = 20_000
"""Queries of one release, after which the demo gives up."""
EXPLORE = ("choice.explore=softmax", "choice.temperature=0.4")
"""How the first policy explores: it knows little, so it tries all models often."""
INVERTED = {
    "version": 100,
    "name": "inverted",
    "description": "the sign of success is wrong",
    "components": [{"name": "execution", "source": "execution", "weight": 1.0, "terms": {"success": -10.0}}],
    "bounds": [-11.0, 0.0],
}
SIMULATED = "Queries, models, outcomes and days are simulated; decisions, training, gates and proofs are real."
SHOWN = (Action.ADVANCED, Action.PROMOTED, Action.ROLLED_BACK, Action.HELD, Action.STOPPED)
"""Steps of a release that are printed."""


def settings(threshold: int) -> dict[str, Any]:
    """The demo's etude.yaml: margins, error probabilities, window and stages keep their defaults."""
    return {
        "experience": {"explore": 1.0, "decide_timeout_ms": 60_000.0},
        "loop": {
            "threshold": threshold,
            "schedule": None,
            "drift": False,
            "nice": 0,
            "regate_hours": 24.0 * 365,  # on the same logs the answer is the same
            "lease_s": 86_400.0 * 365,  # simulated time passes quickly
        },
        "release": {"gates": {"first_needs_evidence": False}, "canary": {"holdback_days": 0.125}},
    }


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo.")] = OUT,
    seed: Annotated[int, typer.Option(min=0, help="Seed of queries and outcomes.")] = 0,
    threshold: Annotated[int, typer.Option(min=1_000, help="Number of queries that start the training job.")] = 5_000,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Print plain lines, no live display.")] = False,
) -> None:
    """Show the whole loop in two minutes: traffic, training, gates, a canary to its promotion, and a rollback.

    A policy chooses among language models for simulated users. The loop trains a better one, which is promoted on
    proof; then a harmful one is rolled back on evidence. A report shows both releases.

    A finished demo stays as it is: the next one goes to runs/demo-2, then runs/demo-3, …
    """
    began, screen = time.perf_counter(), console()
    if no_progress and screen.is_terminal:
        screen = Console(highlight=False, force_terminal=False)
    root = first_free(out, lambda path: False)
    with interruptible(screen), RunFolder(root).locked(), _project(root, threshold) as clock:
        report, policy = run_demo(clock, seed, screen)
    screen.print(f"\n{SIMULATED}", soft_wrap=True)
    where = f"cd {root}"
    screen.print(f"next: {where} && etude audit log {SLOT}", markup=False, soft_wrap=True)
    screen.print(f"      {where} && etude canary report {SLOT}", markup=False, soft_wrap=True)
    print_ending(root / report, root / policy, screen, seconds=time.perf_counter() - began)


@contextmanager
def _project(root: Path, threshold: int) -> Iterator[SimulatedClock]:
    """The demo's folder as the current one, with its settings alone and its own clock."""
    root.mkdir(parents=True, exist_ok=True)
    (root / FILE).write_text(yaml.safe_dump(settings(threshold), sort_keys=False), "utf-8")
    clock, before = SimulatedClock(), {name: os.environ.pop(name) for name in list(os.environ) if _is_setting(name)}
    set_clock(clock)
    try:
        with chdir(root):
            yield clock
    finally:
        set_clock(None)
        os.environ.update(before)


def _is_setting(name: str) -> bool:
    return name.startswith(PREFIX) and "__" in name


def run_demo(clock: SimulatedClock, seed: int, screen: Console) -> tuple[Path, Path]:
    """All stages, in the current folder; returns its report, and the run of the promoted policy."""
    asked = queries(seed)
    _stage(1, "a first policy serves", f"It learned from {GRADED} graded queries about maths and code.", screen)
    first = _first_policy(asked, seed, screen)
    collector = make_collector(config_here())
    try:
        with open_loop() as loop:
            stages = Stages(loop=loop, clock=clock, users=Application(collector, clock, asked), screen=screen)
            stages.train(first)
            better = stages.release()
            harmful, refused, passed = stages.harm(better.until, seed)
            report = write_demo_report(stages, first, better, (harmful, refused, passed))
            return report, Path(stages.job().run)
    finally:
        collector.bus.close()


def _stage(number: int, title: str, about: str, screen: Console) -> None:
    screen.print(f"\n[bold]{number} of 4: {title}[/]\n[dim]{escape(about)}[/]", soft_wrap=True)


def _first_policy(asked: Iterator[Query], seed: int, screen: Console) -> str:
    """Learned from few graded queries, judged, approved by a person and promoted directly."""
    rows = list(islice((query for query in asked if query.kind in GRADED_KINDS), GRADED))
    folder = Path("graded")
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps({"options": offered()}), "utf-8")
    (folder / "past.jsonl").write_text("".join(json.dumps(row.row(*MODELS)) + "\n" for row in rows), "utf-8")
    cells = [
        [m["name"], f"{m['usd_per_mtok_out']:.2f}", f"{m['tokens_per_second']}", m["description"]] for m in offered()
    ]
    screen.print(table("model", "USD per million tokens", "tokens per second", "description", rows=cells))
    _learn(Path(FIRST), screen, assignments=EXPLORE, replay=folder / "past.jsonl", seed=seed)
    registry = open_registry()
    version = registry.register(find_policy(Path(FIRST)), SLOT, actor=PERSON)
    with screen.status("gates"):
        found = judge(version, slot=SLOT, actor=PERSON)
    if found.verdict is not Verdict.PASS:
        raise ReleaseError(f"the first policy of the demo did not pass its gates: {'; '.join(_reasons(found))}")
    registry.approve(SLOT, version, by=PERSON)
    registry.promote_directly(SLOT, version, by=PERSON, reason="the first policy of the slot")
    screen.print(f"{version} passed {len(found.results)} gates, is approved by a person, and serves", soft_wrap=True)
    return version


def _learn(out: Path, screen: Console, *, assignments: tuple[str, ...] = (), **inputs: Any) -> None:
    run = start_run(make_request("choice", out=out, inputs=inputs, assignments=assignments, isolated=True))
    with screen.status("learning"):
        follow(run, Display(run, screen, live=False))
        finish_run(run)


def _reasons(report: GateReport) -> list[str]:
    return [*report.reasons(Verdict.FAIL), *report.reasons(Verdict.CANNOT_TELL)]


@dataclass(frozen=True, kw_only=True)
class Released:
    """A release that has ended, by its last step."""

    step: Entry
    until: datetime
    """When its first unit was assigned: only the policy before it decided until then."""

    @property
    def id(self) -> str:
        return str(self.step.evidence["release"])


@dataclass(kw_only=True)
class Stages:
    """The stages that need traffic, with what they share."""

    loop: Coordinator
    clock: SimulatedClock
    users: Application
    screen: Console
    _seen: int = 0  # entries of the slot's ledger that were printed

    @property
    def opened(self) -> Release:
        assert isinstance(self.loop.releases, RegistryReleases)
        return self.loop.releases.release

    # Stage 2

    def train(self, first: str) -> None:
        """Traffic until the coordinator has trained a candidate and started its canary."""
        needed = self.loop.config.threshold
        about = (
            f"{QUERIES_PER_DAY:,} queries per day; a user gives up after {PATIENCE_MS / 1e3:.0f} s. The policy "
            f"explores, so that its log can judge others. {needed:,} rewarded queries start a job."
        )
        _stage(2, "traffic, experience, training, gates", about, self.screen)
        self._seen = self._head().number
        self._until(lambda: self._head().serving.exposure is not None)
        self.screen.print(self._served(first), soft_wrap=True)

    # Stage 3

    def release(self) -> Released:
        """Traffic until the candidate is promoted, then until its holdback ends."""
        about = "Each query is assigned to one of both policies; every closed unit is evidence, valid at every look."
        _stage(3, "canary and promotion", about, self.screen)
        began = self.clock()
        self._until(lambda: self._ended() is not None)
        step = self._ended()
        assert step is not None
        self._until(lambda: self._head().serving.exposure is None)
        if step.action is not Action.PROMOTED:
            raise ReleaseError(f"the demo's candidate was not promoted: {step.reason}")
        return Released(step=step, until=began)

    # Stage 4

    def harm(self, until: datetime, seed: int) -> tuple[Released, GateReport, GateReport]:
        """A harmful candidate: refused by the gates, exposed because a person insists, rolled back on evidence."""
        about = "A person makes a mistake: a reward in which the sign of success is wrong. The policy learns to fail."
        _stage(4, "a harmful candidate", about, self.screen)
        version = self._learn_to_fail(until, seed)
        with self.screen.status("gates"):
            refused = judge(version, dataset=self.job().dataset, slot=SLOT, actor=PERSON)
        self._print_gates("judged by the reward of this project", refused)
        with self.screen.status("gates"):
            passed = judge(version, slot=SLOT, actor=PERSON)
        self._print_gates("the person insists, and judges it by the wrong reward", passed)
        if passed.verdict is not Verdict.PASS:
            raise ReleaseError(f"the demo's harmful candidate was not exposed: {'; '.join(_reasons(passed))}")
        began = self.clock()
        self.screen.print(escape(self.opened.start(SLOT, version, by=PERSON).sentence), soft_wrap=True)
        self._until(lambda: self._ended() is not None)
        step = self._ended()
        assert step is not None
        return Released(step=step, until=began), refused, passed

    def _learn_to_fail(self, until: datetime, seed: int) -> str:
        """Trained on the log of the first policy, rewarded by the wrong definition; registered."""
        Path("inverted.yaml").write_text(yaml.safe_dump(INVERTED, sort_keys=False), "utf-8")
        definition, store = read_definition(INVERTED, origin="inverted.yaml"), self.opened.experience.store
        add_definition(store, definition)
        where, place = Where(problem=SLOT, until=until), "datasets/inverted"
        with self.screen.status("rewarding the history by it"):
            rescore(store, definition, where=where)
            create(
                store,
                open_place(place, config_here()),
                problem=SLOT,
                where=where,
                version=definition.version,
                config=DatasetConfig(),
                time=self.clock(),
            )
        _learn(Path(HARMFUL), self.screen, dataset=place, name="model", seed=seed)
        return self.opened.registry.register(find_policy(Path(HARMFUL)), SLOT, actor=PERSON)

    def job(self) -> Job:
        """The job of the policy that serves."""
        version = self._head().serving.incumbent
        return next(job for job in self.loop.queue.jobs(slot=SLOT) if job.version == version)

    def _print_gates(self, said: str, report: GateReport) -> None:
        why = "; ".join(_reasons(report)) or f"{len(report.results)} gates"
        self.screen.print(f"{said}: [bold]{report.verdict}[/]: {escape(why)}", soft_wrap=True)

    # Traffic

    def _until(self, is_done: Callable[[], bool]) -> None:
        """Serve and tick; while a job or gates run, few users ask: simulated time almost stands still."""
        last = self.users.answers + MAX_QUERIES
        with self.screen.status("") as status:
            while not is_done():
                if self.users.answers > last:
                    raise ReleaseError(f"the demo ended without a decision after {MAX_QUERIES:,} queries")
                tick = self.loop.tick()
                self._print_news(tick.happened)
                for problem in tick.problems:
                    self.screen.print(f"[yellow]{escape(problem)}[/]", soft_wrap=True)
                self.users.serve(1 if tick.is_busy else STEP)
                time.sleep(0.1 if tick.is_busy else 0.0)
                status.update(f"{self.users.answers:,} queries, {self.clock():%A %H:%M}")

    def _print_news(self, happened: tuple[str, ...]) -> None:
        lines = [line for line in happened if line.startswith(("job", "policy", "gates")) or "begins in" in line]
        for entry in self.opened.registry.slot_ledger(SLOT).entries(after=self._seen):
            if entry.action in SHOWN:
                lines.append(sentence_of(entry))
            self._seen = entry.number
        for line in lines:
            self.screen.print(f"[dim]{self.clock():%a %H:%M}[/]  {escape(line)}", soft_wrap=True)

    def _ended(self) -> Entry | None:
        """The step that ended the newest release."""
        history = self.opened.registry.history(SLOT)
        started = max((e.number for e in history if e.action is Action.STARTED), default=0)
        ends = (Action.PROMOTED, Action.ROLLED_BACK, Action.HELD)
        return next((e for e in history if e.number > started and e.action in ends), None)

    def _head(self) -> Entry:
        head = self.opened.registry.head(SLOT)
        assert head is not None
        return head

    def _served(self, version: str) -> str:
        chosen = self.users.chosen[version]
        shares = ", ".join(f"{name} {percent(chosen[name] / chosen.total())}" for name in MODELS)
        solved = percent(self.users.solved_share(version))
        return f"{version} solved {solved} of {whole(chosen.total())} queries: {shares}"


def sentence_of(entry: Entry) -> str:
    """A step of a release in words."""
    exposure = entry.serving.exposure
    share = f" to {exposure.share:.0%} of the traffic" if exposure and entry.action is Action.ADVANCED else ""
    return f"{entry.version} {entry.action.replace('_', ' ')}{share}: {entry.reason}"


# The report


def write_demo_report(
    stages: Stages, first: str, better: Released, harm: tuple[Released, GateReport, GateReport]
) -> Path:
    harmful, refused, passed = harm
    registry = stages.opened.registry
    good = release_facts(registry, SLOT, id=better.id)
    bad = release_facts(
        registry,
        SLOT,
        id=harmful.id,
        gates={"by the reward of the project": refused.to_json(), "by the wrong reward": passed.to_json()},
    )
    page = Page(
        title="The whole loop · demo",
        facts=[f"{stages.users.answers:,} simulated queries", f"{QUERIES_PER_DAY:,} per day", SLOT],
        tiles=_tiles(stages, first, good, bad),
        lead=f"{promotion_text(good)} {rollback_text(bad)} {SIMULATED}",
        sections=[
            _policies(stages, {"first": first, "promoted": good.spec.candidate, "rolled back": bad.spec.candidate}),
            *release_sections(good, name="promoted"),
            *release_sections(bad, name="rolled back"),
        ],
        footer=code(
            f"In the demo’s folder: `etude audit log {SLOT}`, `etude canary report {SLOT}`, `etude models list`"
        ),
    )
    for said in (promotion_text(good), rollback_text(bad)):
        stages.screen.print(f"\n{said}", markup=False, soft_wrap=True)
    return page.write(Path("report.html"))


def _tiles(stages: Stages, first: str, good: ReleaseFacts, bad: ReleaseFacts) -> list[Tile]:
    users, look, harm = stages.users, good.at_decision(), bad.at_decision()
    assert look is not None
    until = "closed units: its first errors were enough"
    if harm is not None:
        until = f"units, {whole(harm.candidates)} of them its own"
    exposed = users.chosen[bad.spec.candidate].total()
    before, after, failing = (users.solved_share(v) for v in (first, good.spec.candidate, bad.spec.candidate))
    return [
        Tile(
            "queries solved",
            f"{percent(before)} → {percent(after)}",
            "by the first and by the promoted policy",
            "first",
        ),
        Tile("promoted after", whole(look.units), f"units, {whole(look.candidates)} of them its own"),
        Tile("rolled back after", whole(0 if harm is None else harm.units), until),
        Tile("harmful policy", plural(exposed, "user"), f"saw it; {percent(failing)} of their queries were solved"),
    ]


def _policies(stages: Stages, versions: Mapping[str, str]) -> Section:
    """What each policy did with the queries that it decided."""
    rows = []
    for name, version in versions.items():
        chosen = stages.users.chosen[version]
        shares = [percent(chosen[model] / chosen.total()) for model in MODELS]
        solved = percent(stages.users.solved_share(version))
        rows.append([name, blocks.Code(version), whole(chosen.total()), solved, *shares])
    note = (
        f"A query is solved if its answer scores above {GOOD_SCORE:g} and comes in {PATIENCE_MS / 1e3:.0f} s. The "
        f"first policy learned from {GRADED} graded queries about {' and '.join(GRADED_KINDS)}, by their scores alone: "
        "it knows neither other queries nor how long users wait. All of them explore, so none is always at its best."
    )
    table = blocks.table(("version", "queries", "solved", *MODELS), rows)
    return Section(title="Three policies", name="policies", note=note, body=[table])


def promotion_text(facts: ReleaseFacts) -> str:
    look = facts.at_decision()
    assert look is not None
    effect = look.effect
    return (
        f"{facts.spec.candidate} was promoted on proof after {whole(look.units)} units, {whole(look.candidates)} of "
        f"them its own: the difference of rewards is {signed(effect.mean, 2)} "
        f"[{signed(effect.low, 2)}, {signed(effect.high, 2)}]."
    )


def rollback_text(facts: ReleaseFacts) -> str:
    look, candidate = facts.at_decision(), f"{facts.spec.candidate}, which learned to fail,"
    if look is None:  # errors count after a minute, other units when their window closes
        return f"{candidate} was rolled back on its first errors, before the window of any unit had closed."
    return (
        f"{candidate} was rolled back after {whole(look.units)} units, "
        f"{whole(look.candidates)} of them its own: the difference of rewards was {signed(look.effect.mean, 2)}."
    )
