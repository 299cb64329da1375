"""The office in plain Python compared with the tensor world: the same probabilities, to the last threshold."""

from __future__ import annotations

from random import Random

import pytest
import torch

from etude.problems.workflow.grammar import Status
from etude.problems.workflow.office.office import EpisodeConditions, Office
from etude.problems.workflow.office.world import (
    DISTRACTED,
    DOWN,
    FLAKY,
    MEAN_LOAD,
    SKILL_AFTER_FAILURE,
    SLOWER,
    ErrorCategory,
    State,
    Tables,
    WorkflowConfig,
    WorkflowWorld,
    flakiness,
)

CONFIG = WorkflowConfig(scenarios=60)
NEAR = 1e-5  # the world counts in single precision


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(CONFIG, None, "cpu")


@pytest.fixture(scope="module")
def office(tables: Tables) -> Office:
    return Office(tables)


class Case:
    """One attempt: a subtask of this type, given outputs of those, by this worker."""

    def __init__(self, office: Office, random: Random) -> None:
        self.row = random.randrange(len(office.scenarios))
        self.wanted = office.requirements(office.scenarios.instructions[self.row])
        everything = range(len(office.catalogue.task_types))
        self.kind = random.choice([*self.wanted] * 3 + [*everything])
        self.worker = random.randrange(len(office.catalogue.workers))
        needs = sorted(self.wanted.get(self.kind, set()))
        self.given = [one for one in needs if random.random() < 0.9]
        self.given += [random.choice(everything) for _ in range(random.choice([0, 0, 1, 2]))]
        self.load = [random.random() ** 2 for _ in office.catalogue.workers]
        self.beyond = self.kind in self.wanted and random.random() < 0.2
        skill = office.skill[self.kind][self.worker] * DISTRACTED ** sum(one not in needs for one in self.given)
        self.flaky = flakiness(self.load[self.worker])
        self.succeeds = self.flaky + (1 - self.flaky) * (SKILL_AFTER_FAILURE if self.beyond else skill)

    def day(self) -> EpisodeConditions:
        beyond = {(self.kind, self.worker)} if self.beyond else set()
        return EpisodeConditions(needs=self.wanted, load=self.load, down=99, beyond=beyond)


def in_the_world(tables: Tables, cases: list[Case], rng: list[float]) -> State:
    """What the world makes of these attempts: what is given stands before, done; the last node is carried out."""
    n, W = len(cases), tables.rules.workers
    world = WorkflowWorld(CONFIG, n=n, scenarios=tables.scenarios)
    world.reset(0)
    s = {name: value.clone() for name, value in world.state.items()}
    draws = torch.zeros((n, tables.rules.nodes))
    for i, case in enumerate(cases):
        place = len(case.given)
        s["instruction"][i] = case.row
        s["types"][i, : place + 1] = torch.tensor([*case.given, case.kind])
        s["status"][i, :place] = Status.DONE
        s["workers"][i, : place + 1] = case.worker
        s["links"][i, place, :place] = True
        s["length"][i], draws[i, place] = place + 1, rng[i]
        s["load"][i] = torch.tensor([*case.load, *[0.0] * (W - len(case.load))])
        slot = int(tables.slot[case.row, case.kind])
        if slot >= 0:
            s["beyond"][i, slot * W + case.worker] = case.beyond
    return world._execute(s, {"runs": torch.ones(n, dtype=torch.bool), "u": draws})


@pytest.mark.parametrize("where", ["flaky", "succeeds"])
@pytest.mark.parametrize("side", [-NEAR, NEAR])
def test_an_attempt_ends_as_in_the_world(tables: Tables, office: Office, where: str, side: float) -> None:
    random = Random(f"{where} {side}")
    cases = [Case(office, random) for _ in range(400)]
    rng = [min(getattr(case, where) + side, 1 - 1e-6) for case in cases]
    s = in_the_world(tables, cases, rng)
    seen = set()
    for i, (case, drawn) in enumerate(zip(cases, rng, strict=True)):
        day = case.day()
        outcome = office.attempt(day, case.kind, case.given, case.worker, drawn)
        assert outcome == int(s["error"][i]), (case.__dict__, drawn)
        if outcome != ErrorCategory.NONE:
            assert bool(s["tried"][i, case.worker]) == ((case.kind, case.worker) in day.beyond)
        seen.add(outcome)
    between = {("flaky", -NEAR): ErrorCategory.TRANSIENT, ("succeeds", NEAR): ErrorCategory.CAPABILITY}
    expected = between.get((where, side), ErrorCategory.NONE)
    assert {expected, ErrorCategory.MISSING_INPUT, ErrorCategory.NOT_APPLICABLE} <= seen


def skilled(office: Office, *, kind: int) -> tuple[int, int]:
    """The two best at this."""
    skill = office.skill[kind]
    best, second, *_ = sorted(range(len(skill)), key=skill.__getitem__, reverse=True)
    assert skill[second] > 0
    return best, second


def test_what_is_beyond_a_worker_stays_so_for_the_day(office: Office) -> None:
    able, other = skilled(office, kind=0)
    day = EpisodeConditions(needs={0: set()}, load=[0.0] * 9, down=99)
    assert office.attempt(day, 0, [], able, 1 - 1e-9) == ErrorCategory.CAPABILITY
    assert day.beyond == {(0, able)}
    hardly = FLAKY + (1 - FLAKY) * SKILL_AFTER_FAILURE
    assert office.attempt(day, 0, [], able, hardly - NEAR) == ErrorCategory.NONE
    assert office.attempt(day, 0, [], able, hardly + NEAR) == ErrorCategory.CAPABILITY
    assert office.attempt(day, 0, [], other, FLAKY + NEAR) == ErrorCategory.NONE  # others are not concerned


def test_every_output_that_is_not_needed_distracts(office: Office) -> None:
    able, _ = skilled(office, kind=0)
    day = EpisodeConditions(needs={0: {1}, 1: set()}, load=[0.0] * 9, down=99)
    for given, needless in (([1], 0), ([1, 1], 0), ([1, 2], 1), ([1, 2, 2], 2), ([3, 1, 2], 2)):
        edge = FLAKY + (1 - FLAKY) * office.skill[0][able] * DISTRACTED**needless
        assert office.attempt(day, 0, given, able, edge - NEAR) == ErrorCategory.NONE
        assert office.attempt(day, 0, given, able, edge + NEAR) == ErrorCategory.CAPABILITY
        day.beyond.clear()


def test_days_differ_as_in_the_world(office: Office) -> None:
    random, count = Random(1), 12_000
    days = [office.begin(office.scenarios.instructions[0], random) for _ in range(count)]
    loads = torch.tensor([day.load for day in days])
    assert loads.shape[1] == len(office.catalogue.workers)
    assert 0 <= float(loads.min()) <= float(loads.max()) < 1
    assert loads.mean(0).tolist() == pytest.approx([MEAN_LOAD] * loads.shape[1], abs=0.015)
    assert loads.quantile(0.5, 0).tolist() == pytest.approx([0.25] * loads.shape[1], abs=0.02)  # squares
    everybody = len(office.scenarios.catalogue.workers)
    down = torch.bincount(torch.tensor([min(day.down, everybody) for day in days]), minlength=everybody + 1) / count
    assert down[:everybody].tolist() == pytest.approx([DOWN / everybody] * everybody, abs=0.007)
    assert float(down[everybody]) == pytest.approx(1 - DOWN, abs=0.02)


def test_the_world_has_the_same_days(tables: Tables, office: Office) -> None:
    """With the same numbers drawn, who is there and how quick they are."""

    class Given(Random):
        def __init__(self, numbers: list[float]) -> None:
            super().__init__()
            self.numbers = iter(numbers)

        def random(self) -> float:
            return next(self.numbers)

    world = WorkflowWorld(CONFIG, n=64, scenarios=tables.scenarios)
    world.reset(3)
    W, known = tables.rules.workers, len(office.catalogue.workers)
    u = torch.rand((64, W + 2), generator=torch.Generator().manual_seed(2))
    s = world._restart(world.state, torch.ones(64, dtype=torch.bool), u)
    for i in range(64):
        drawn = u[i].tolist()
        text = tables.scenarios.instructions[int(s["instruction"][i])]
        day = office.begin(text, Given([*drawn[2 : 2 + known], drawn[1]]))
        live = office.live(day, [0.5] * known)
        assert [one.available for one in live] == s["available"][i, :known].tolist()
        assert [one.latency_ms for one in live] == pytest.approx(s["latency"][i, :known].tolist(), rel=1e-5)
        assert [one.usd for one in live] == pytest.approx(s["price"][i, :known].tolist())
        assert [one.success for one in live] == [0.5] * known
    assert not s["available"][:, known:].any()  # new entries are not there yet


def test_success_so_far_is_that_of_the_world(tables: Tables, office: Office) -> None:
    world = WorkflowWorld(CONFIG, n=1, scenarios=tables.scenarios)
    for number in (0.0, 0.25, 0.5, 1 - 1e-9):

        class Fixed(Random):
            def random(self, number: float = number) -> float:
                return number

        found = office.success_so_far(Fixed())
        wanted = world._history(torch.full((1, tables.rules.workers), number))[0].tolist()
        assert found == pytest.approx(wanted[: len(found)], abs=1e-5)
        assert all(0 <= share <= 1 for share in found)


def test_what_is_wanted_is_the_best_plan_and_else_what_the_words_say(office: Office) -> None:
    for row in range(20):
        plan = office.scenarios.plan(row)
        names = [t.name for t in office.scenarios.catalogue.task_types]
        wanted = {
            names.index(node.task_type): {names.index(plan.nodes[j].task_type) for j in node.dependencies}
            for node in plan.nodes
        }
        assert office.requirements(f"  {plan.instruction}\n") == wanted
    assert office.requirements("nobody ever said this")


def test_load_makes_slow(office: Office) -> None:
    workers = len(office.catalogue.workers)
    listed = office.catalogue.workers[0].latency_ms
    idle, busy = (EpisodeConditions(needs={}, load=[load] * workers, down=0) for load in (0.0, 1.0))
    assert office.latency_ms(idle, 0) == listed
    assert office.latency_ms(busy, 0) == listed * (1 + SLOWER)
    assert [one.available for one in office.live(idle, [0.5] * workers)] == [False] + [True] * (workers - 1)
