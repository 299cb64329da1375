"""`document` against a plain version of it: scalars, loops, written straight from the rules, fed the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from etude.problems.allocation.document import DocumentWorld
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Transition

SIZE = AllocationConfig()
SHORT = AllocationConfig(horizon=7)
Behaviour = Callable[[torch.Generator, int, AllocationConfig], Tensor]


@dataclass
class Agent:
    expertise: list[float]
    capacity: float
    load: float = 0.0
    completed: int = 0
    success_rate: float = 1.0
    collaboration_score: float = 0.5
    busy_steps: int = 0
    taken: list[int] = field(default_factory=lambda: [0, 0, 0, 0])


@dataclass
class Task:
    complexity: float
    priority: float
    deadline: int
    kind: int
    agent: int = -1
    taken_at: int = -1


class Plain:
    """One environment of `document`."""

    def __init__(self, config: AllocationConfig, expertise: Tensor, capacity: Tensor, tasks: Tensor) -> None:
        rows = zip(expertise.tolist(), capacity.tolist(), strict=True)
        self.agents = [Agent([0.2 + 0.8 * e for e in es], 0.5 + 0.5 * c) for es, c in rows]
        self.slots = config.slots
        self.matrix = [[0.5] * config.agents for _ in range(config.agents)]
        self.step = self.collaborations = 0
        self.queue = [self.new_task(u) for u in tasks.tolist()]
        self.active: list[Task] = []  # in order of taking
        self.arrived = len(self.queue)
        self.total = 0.0

    def new_task(self, u: list[float]) -> Task:
        deadline = self.step + 20 + int(u[2] * 80)
        return Task(0.1 + 0.9 * u[0], 0.1 + 0.9 * u[1], deadline, kind=int(u[3] * 4))

    def accept(self, action: list[list[float]]) -> float:
        reward = 0.0
        for i, agent in enumerate(self.agents):
            if self.queue and action[i][0] > 0.5:
                task = self.queue.pop(0)
                task.agent, task.taken_at = i, self.step
                self.active.append(task)
                agent.load += task.complexity
                agent.taken[task.kind] += 1
                reward += agent.expertise[task.kind] * task.priority
        return reward

    def collaborate(self, action: list[list[float]]) -> float:
        reward = 0.0
        for i in range(len(self.agents)):
            for j in range(len(self.agents)):
                if i != j and action[i][2] > 0.7 and action[j][2] > 0.7:
                    self.matrix[i][j] = min(1.0, 1.01 * self.matrix[i][j])
                    self.collaborations += 1
                    reward += 0.5
        return reward

    def complete(self, action: list[list[float]], numbers: list[float]) -> float:
        reward, still_active = 0.0, []
        for task, u in zip(self.active, numbers, strict=True):
            agent = self.agents[task.agent]
            expertise = agent.expertise[task.kind]
            if u < expertise * agent.capacity * action[task.agent][1]:
                agent.load -= task.complexity
                agent.completed += 1
                bonus = max(0.0, 1 - self.step / task.deadline)
                reward += 10 * expertise * agent.success_rate * task.priority * (1 + bonus)
                agent.success_rate += 0.05 * ((self.step <= task.deadline) - agent.success_rate)
            else:
                still_active.append(task)
        self.active = still_active
        for i, agent in enumerate(self.agents):
            agent.busy_steps += any(task.agent == i for task in self.active)
            others = [entry for j, entry in enumerate(self.matrix[i]) if j != i]
            agent.collaboration_score = sum(others) / len(others)
        return reward

    def penalty(self) -> float:
        return 0.1 * len(self.queue) + 0.5 * sum(self.step > task.deadline for task in self.active)

    def finish(self, task: list[float], arrival: float) -> None:
        if arrival < 0.3 and len(self.queue) < self.slots:
            self.queue.append(self.new_task(task))
            self.arrived += 1
        self.step += 1

    def observation(self) -> list[float]:
        seen: list[float] = []
        for a in self.agents:
            rate = a.completed / max(1, self.step)
            seen += [a.capacity, a.load, rate, a.success_rate, a.collaboration_score, *a.expertise[:2]]
        for t in self.queue:
            seen += [t.complexity, t.priority, t.deadline, 1, 0]
        seen += [0] * 5 * (self.slots - len(self.queue))
        return seen + [entry for row in self.matrix for entry in row]

    def state(self) -> dict[str, object]:
        a = self.agents
        return {
            "expertise": [x.expertise for x in a],
            "capacity": [x.capacity for x in a],
            "load": [x.load for x in a],
            "completed": [x.completed for x in a],
            "success": [x.success_rate for x in a],
            "busy": [x.busy_steps for x in a],
            "taken": [x.taken for x in a],
            "matrix": self.matrix,
            "step": self.step,
            "queued": len(self.queue),
            "arrived": self.arrived,
            "collaborations": self.collaborations,
            "return": self.total,
        }


class Recorded(DocumentWorld):
    """Keeps the random numbers it draws, in order."""

    def reset(self, seed: int) -> dict[str, Tensor]:
        self.drawn: list[Tensor] = []
        return super().reset(seed)

    def _uniform(self, *shape: int) -> Tensor:
        self.drawn.append(super()._uniform(*shape))
        return self.drawn[-1]


class PlainBatch:
    """As many plain environments as the world has, fed the numbers the world drew."""

    def __init__(self, world: Recorded) -> None:
        self.world = world
        self.plain = self.start(world.n, iter(world.drawn))
        world.drawn.clear()

    def start(self, n: int, drawn: Iterator[Tensor]) -> list[Plain]:
        expertise, capacity, tasks = next(drawn), next(drawn), next(drawn)
        return [Plain(self.world.config, expertise[i], capacity[i], tasks[i]) for i in range(n)]

    def in_order_of_taking(self) -> list[tuple[int, Task]]:
        """(environment, task), as the world lists all tasks in work: by step of taking, environment, agent."""
        work = [(task.taken_at, e, task.agent, task) for e, p in enumerate(self.plain) for task in p.active]
        clock = [p.step for p in self.plain]
        return [(e, task) for at, e, _, task in sorted(work, key=lambda w: (w[0] - clock[w[1]], *w[1:3]))]

    def step(self, action: Tensor) -> Tensor:
        drawn = iter(self.world.drawn)
        columns = action.tolist()
        rewards = [p.accept(columns[e]) + p.collaborate(columns[e]) for e, p in enumerate(self.plain)]
        numbers: list[list[float]] = [[] for _ in self.plain]
        for (e, _), u in zip(self.in_order_of_taking(), next(drawn).tolist(), strict=True):
            numbers[e].append(u)
        tasks, arrivals = next(drawn).tolist(), next(drawn).tolist()
        for e, p in enumerate(self.plain):
            rewards[e] += p.complete(columns[e], numbers[e]) - p.penalty()
            p.finish(tasks[e], arrivals[e])
            p.total += rewards[e]
        self.rest = drawn
        return torch.tensor(rewards, dtype=torch.float64)

    def restart(self, over: Tensor) -> None:
        """The environments of one group start again with the numbers that the world sampled after the step."""
        rows = over.nonzero()[:, 0].tolist()
        for e, new in zip(rows, self.start(len(rows), self.rest), strict=True):
            self.plain[e] = new

    def check_observation(self, obs: dict[str, Tensor]) -> None:
        flat = torch.cat([obs[name].flatten(1) for name in ("agents", "tasks", "matrix")], 1)
        same(flat, [p.observation() for p in self.plain], "observation")

    def check_state(self) -> None:
        state, agents = self.world.state, self.world.config.agents
        states = [p.state() for p in self.plain]
        for name in states[0]:
            same(state[name], [s[name] for s in states], name)
        work = self.in_order_of_taking()
        assert state["owner"].tolist() == [e * agents + task.agent for e, task in work]
        skills = [self.plain[e].agents[t.agent].expertise[t.kind] for e, t in work]
        rows = [[s, t.complexity, t.priority, t.deadline] for s, (_, t) in zip(skills, work, strict=True)]
        same(state["work"], torch.tensor(rows, dtype=torch.float64).view(-1, 4), "work")
        for e, p in enumerate(self.plain):
            assert state["queue"][e, : len(p.queue), -1].tolist() == [t.kind for t in p.queue]
            assert not state["queue"][e, len(p.queue) :].any()


def same(ours: Tensor, plain: object, what: str) -> None:
    expected = torch.as_tensor(plain, dtype=torch.float64)
    if ours.shape == expected.shape and torch.allclose(ours, expected, rtol=1e-9, atol=1e-9):
        return  # a fifth of the time of the line below, which explains the difference
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9, msg=lambda m: f"{what}: {m}")


def random_actions(g: torch.Generator, n: int, config: AllocationConfig) -> Tensor:
    return torch.rand(n, config.agents, 3, generator=g, dtype=torch.float64)


def ones(g: torch.Generator, n: int, config: AllocationConfig) -> Tensor:
    return torch.ones(n, config.agents, 3, dtype=torch.float64)


def pile_up(g: torch.Generator, n: int, config: AllocationConfig) -> Tensor:
    """Take everything, do nothing, then once in a while everything: many completions of one agent in one step."""
    action = ones(g, n, config)
    action[..., 1] = (torch.rand(n, 1, generator=g) < 0.02).double()
    return action


def first_only(g: torch.Generator, n: int, config: AllocationConfig) -> Tensor:
    """The first agent alone takes tasks, slowly, so that they go overdue and the queue fills."""
    action = random_actions(g, n, config)
    action[:, 1:, 0] = 0
    action[:, 0, 0] = (torch.rand(n, generator=g) < 0.2).double()
    action[..., 1] *= 0.05
    return action


def at_the_thresholds(g: torch.Generator, n: int, config: AllocationConfig) -> Tensor:
    """.5 does not accept and .7 does not collaborate; the next larger number does."""
    above = torch.rand(n, config.agents, 3, generator=g) < 0.5
    threshold = torch.tensor([0.5, 1.0, 0.7], dtype=torch.float64).expand_as(above)
    return torch.where(above, threshold.nextafter(torch.ones_like(threshold)), threshold)


@pytest.mark.parametrize("behaviour", [random_actions, ones, pile_up, first_only, at_the_thresholds])
@pytest.mark.parametrize(
    ("config", "n", "phases", "seed"),
    [
        (SIZE, 1, 1, 0),
        (SIZE, 3, 1, 1),
        (AllocationConfig(agents=2, slots=3), 5, 1, 2),
        (AllocationConfig(agents=7, slots=4, horizon=90), 4, 3, 3),
    ],
)
def test_agrees_with_the_plain_version(
    behaviour: Behaviour, config: AllocationConfig, n: int, phases: int, seed: int
) -> None:
    world = Recorded(config, n=n, phases=phases, dtype=torch.float64)
    obs = world.reset(seed)
    generator = torch.Generator().manual_seed(seed)
    batch = PlainBatch(world)
    batch.check_observation(obs)
    for _ in range(config.horizon + 10):
        action = behaviour(generator, n, config)
        moved = world.step(named(action))
        same(moved.reward, batch.step(action), "reward")
        if moved.final_obs is not None:
            batch.check_observation(moved.final_obs)
            same(moved.metrics["return"], [p.total for p in batch.plain], "return")
            batch.restart(moved.truncated)
        batch.check_observation(moved.obs)
        batch.check_state()
        world.drawn.clear()


def named(action: Tensor) -> Action:
    return dict(zip(("accept", "allocate", "collaborate"), action.unbind(-1), strict=True))


def test_each_of_an_agents_completions_in_one_step_starts_from_the_success_rate_the_last_one_left() -> None:
    world = DocumentWorld(AllocationConfig(agents=2, horizon=500), n=1, dtype=torch.float64)
    world.reset(0)
    for _ in range(150):
        world.step(always(world, 1, 0, 0))
    step, deadlines = world.state["step"].item(), world.state["work"][:, 3].tolist()
    first = [d for d, owner in zip(deadlines, world.state["owner"].tolist(), strict=True) if owner == 0]
    assert min(first) < step < max(first)
    assert len(first) > 10
    world.apply(always(world, 0, 1, 0), lambda *shape: torch.zeros(shape, dtype=torch.float64))
    rate = 1.0
    for deadline in first:
        rate += 0.05 * ((step <= deadline) - rate)
    assert world.state["success"][0, 0].item() == pytest.approx(rate, abs=1e-12)
    assert len(world.state["owner"]) == 0


@pytest.mark.parametrize(
    ("script", "mean", "deviation"),
    [((1, 1, 1), 1517, 73), ((1, 1, 0), 317, 73), (None, 411, 53)],
    ids=["ones", "never collaborating", "random"],
)
def test_scripted_references(script: tuple[float, float, float] | None, mean: float, deviation: float) -> None:
    episodes, references = 400, 200
    world = DocumentWorld(SIZE, n=episodes)
    world.reset(0)
    fixed = always(world, *script) if script else None
    g = torch.Generator().manual_seed(0)
    moved = [world.step(fixed or named(random_actions(g, episodes, SIZE))) for _ in range(SIZE.horizon)][-1]
    error = deviation * (1 / episodes + 1 / references) ** 0.5
    assert moved.metrics["return"].mean().item() == pytest.approx(mean, abs=4 * error)
    assert moved.metrics["return"].std().item() < 1.25 * deviation
    if script:
        assert moved.metrics["completion_rate"].mean().item() == pytest.approx(0.98, abs=0.015)


def always(world: DocumentWorld, accept: float, allocate: float, collaborate: float) -> Action:
    one = torch.ones(world.n, world.config.agents, dtype=world.dtype)
    return {"accept": accept * one, "allocate": allocate * one, "collaborate": collaborate * one}


def play(world: DocumentWorld, steps: int, seed: int = 0) -> list[Transition]:
    g = torch.Generator().manual_seed(seed)
    return [world.step(named(random_actions(g, world.n, world.config))) for _ in range(steps)]


def started(n: int = 6, *, seed: int = 0, phases: int = 1, config: AllocationConfig = SHORT) -> DocumentWorld:
    world = DocumentWorld(config, n=n, phases=phases)
    world.reset(seed)
    return world


def equal(a: list[Transition], b: list[Transition]) -> bool:
    return all(
        torch.equal(x.reward, y.reward)
        and torch.equal(x.truncated, y.truncated)
        and all(torch.equal(x.obs[name], y.obs[name]) for name in x.obs)
        for x, y in zip(a, b, strict=True)
    )


def test_the_seed_decides_the_episodes() -> None:
    assert equal(play(started(seed=3), 20), play(started(seed=3), 20))
    assert not equal(play(started(seed=3), 1), play(started(seed=4), 1))
    again = started(seed=4)
    play(again, 5)
    again.reset(3)
    assert equal(play(again, 20), play(started(seed=3), 20))


def test_environments_of_a_batch_differ() -> None:
    capacity = started(n=50).state["capacity"]
    assert len(capacity.unique(dim=0)) == 50


def test_episodes_are_truncated_at_the_horizon_and_never_terminated() -> None:
    transitions = play(started(), 21)
    ends = [t for t, moved in enumerate(transitions, 1) if moved.truncated.any()]
    assert ends == [7, 14, 21]
    assert all(moved.truncated.all() for moved in transitions[6::7])
    assert not any(moved.terminated.any() for moved in transitions)
    assert [t for t, moved in enumerate(transitions, 1) if moved.final_obs is not None or moved.metrics] == ends


def test_phases_cut_first_episodes_short_and_no_others() -> None:
    transitions = play(started(n=6, phases=3), 30)
    ends = torch.stack([moved.truncated for moved in transitions], 1)  # (n, steps)
    steps = [(row.nonzero()[:, 0] + 1).tolist() for row in ends]
    assert steps == [[7, 14, 21, 28]] * 2 + [[5, 12, 19, 26]] * 2 + [[3, 10, 17, 24]] * 2
    assert [moved.metrics["whole"].tolist() for moved in transitions if moved.metrics][:3] == [
        [False] * 6,
        [False] * 6,
        [True, True, False, False, False, False],
    ]


def test_phases_leave_the_dynamics_alone() -> None:
    """Up to the first cut, a world with phases is the same world."""
    cut, whole = play(started(phases=3), 2), play(started(phases=1), 2)
    assert equal(cut, whole)


def test_more_phases_than_environments_or_steps_are_as_many_as_fit() -> None:
    assert started(n=2, phases=100).phases == 2
    assert started(n=100, phases=100).phases == SHORT.horizon


def test_final_obs_is_what_the_episode_ended_with() -> None:
    """A longer horizon with the same seed goes the same way up to there, and does not reset."""
    longer = AllocationConfig(horizon=8)
    end, same_step = play(started(), 7)[-1], play(started(config=longer), 7)[-1]
    assert end.final_obs is not None
    assert all(torch.equal(end.final_obs[name], same_step.obs[name]) for name in end.obs)
    assert not torch.equal(end.final_obs["agents"], end.obs["agents"])
    new = end.obs["agents"]
    assert not new[..., 1:3].any()  # load and productivity of a new episode
    assert (end.obs["matrix"] == 0.5).all()


def test_a_loaded_state_continues_bit_for_bit() -> None:
    world, other = started(phases=2), started(seed=9, phases=2)
    play(world, 10)
    other.load_state_dict(world.state_dict())
    assert equal(play(other, 20, seed=1), play(world, 20, seed=1))


def test_what_a_step_returned_does_not_change_later() -> None:
    world = started(config=SIZE)
    kept = [{"reward": m.reward, **m.obs, **(m.final_obs or {}), **m.metrics} for m in play(world, 200)]
    copies = [{name: tensor.clone() for name, tensor in one.items()} for one in kept]
    play(world, 50)
    assert all(torch.equal(one[name], copy[name]) for one, copy in zip(kept, copies, strict=True) for name in one)


def test_no_load_is_left_when_nothing_is_in_work() -> None:
    world = started(config=AllocationConfig(horizon=300))
    play(world, 200)
    world.apply(always(world, 0, 1, 0), lambda *shape: torch.zeros(shape))
    assert len(world.state["owner"]) == 0
    torch.testing.assert_close(world.state["load"], torch.zeros(6, 4), rtol=0, atol=1e-4)
