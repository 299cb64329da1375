"""The workers of the simulated office: they have the latencies, failures and prices of the world, but no real cost.

They usually run in virtual time.
"""

from __future__ import annotations

import asyncio
from random import Random

from etude.contracts.ports import Verifier, Worker
from etude.contracts.work import Fault, Reply, Subtask, Verdict, WorkerError
from etude.orchestrator.crew import Crew
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.office.office import EpisodeConditions, Office
from etude.problems.workflow.progress import Live

FAULTS = {
    ErrorCategory.TRANSIENT: (Fault.TIMEOUT, "no answer in time"),
    ErrorCategory.CAPABILITY: (Fault.INVALID_OUTPUT, "the result is not usable"),
    ErrorCategory.MISSING_INPUT: (Fault.WRONG_INPUT, "something it needs is missing"),
    ErrorCategory.NOT_APPLICABLE: (Fault.NOT_APPLICABLE, "this was not asked for"),
}


class SimulatedCrew(Crew):
    """A crew in which every workflow has its own conditions, such as loads and unavailable workers."""

    def __init__(self, office: Office, *, seed: int = 0) -> None:
        self.office, self.rng, self.days = office, Random(seed), dict[str, EpisodeConditions]()
        catalogue = office.catalogue
        self.kinds = {t.name: i for i, t in enumerate(catalogue.task_types)}
        workers = {w.name: SimulatedWorker(w.name, i, self) for i, w in enumerate(catalogue.workers)}
        forever = dict.fromkeys(workers, float(10**9))  # time is up when the office says so
        super().__init__(catalogue, workers, judge=Client(self), timeout_s=forever)
        for member, success in zip(self.members, office.success_so_far(self.rng), strict=True):
            member.success = success

    def begin(self, workflow: str, instruction: str) -> None:
        self.days[workflow] = self.office.begin(instruction, self.rng)

    def end(self, workflow: str) -> None:
        del self.days[workflow]

    def live(self, workflow: str, *, now_s: float) -> tuple[Live, ...]:
        return self.office.live(self.days[workflow], [member.success for member in self.members])


class SimulatedWorker(Worker):
    """A Worker of the office."""

    def __init__(self, name: str, index: int, crew: SimulatedCrew) -> None:
        self.name, self.index, self.crew = name, index, crew

    async def do(self, subtask: Subtask) -> Reply:
        office, day = self.crew.office, self.crew.days[subtask.workflow]
        await asyncio.sleep(office.latency_ms(day, self.index) / 1000)
        kind, given = (
            self.crew.kinds[subtask.task_type],
            [self.crew.kinds[i.task_type] for i in subtask.inputs if not i.name],
        )
        outcome = office.attempt(day, kind, given, self.index, self.crew.rng.random())
        usd = office.catalogue.workers[self.index].cost_usd()
        if outcome != ErrorCategory.NONE:
            fault, message = FAULTS[outcome]
            raise WorkerError(message, fault=fault, cost_usd=usd)
        return Reply(output=f"{subtask.task_type} by {self.name}", cost_usd=usd)


class Client(Verifier):
    """A Verifier that plays the client, who knows which subtasks are wanted."""

    def __init__(self, crew: SimulatedCrew) -> None:
        self.crew = crew

    async def __call__(self, subtask: Subtask, output: object) -> Verdict:
        done = {self.crew.kinds[made.task_type] for made in subtask.inputs}
        missing = self.crew.days[subtask.workflow].needs.keys() - done
        names = ", ".join(sorted(self.crew.catalogue.task_types[kind].name for kind in missing))
        return Verdict(ok=not missing, reason=f"not done: {names}" if missing else "")
