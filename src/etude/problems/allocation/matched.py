"""The `matched` variant, a realistic task allocation: every agent may take any waiting task, and good matches pay.

`docs/02-allocation.md` has its rules. The reward is credited by agent and sums to the team's: each agent gets what it
earned beyond what the average agent would have earned on that task, and all share the rest equally. Otherwise agents
would learn to take tasks away from experts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from etude.problems.allocation.world import TASK_TYPES, AllocationWorld, State, Uniform
from etude.problems.base import Action, Obs

HANDS = 4
WORK = 12.0  # steps of full progress that complexity 1 takes
MIN_DEADLINE_STEPS, MAX_DEADLINE_STEPS = 10, 49  # steps from arrival to deadline
CALM, BURST = 0.1, 0.5  # tasks per step and agent
TO_BURST, TO_CALM = 0.03, 0.1  # probabilities per step that the regime changes
PAIR_COST, PAIR_BASE, PAIR_GAIN = 0.1, 0.7, 0.8
GROWTH, DECAY, MIN_MATRIX_ENTRY = 1.03, 0.997, 0.1  # of a matrix entry
MISSED = 5.0

WORK_LEFT, PRIORITY, DEADLINE, BORN, TYPE, SKILL = range(6)  # columns of a task, waiting or held; SKILL only when held


class MatchedWorld(AllocationWorld):
    def observe(self) -> Obs:
        s = self.state
        queue, held = s["queue"], s["held"]
        step = s["step"][:, None]
        count = _exists(held).sum(2)  # (n, agents)
        oldest = held[:, :, 0]
        slack = (oldest[..., DEADLINE] - step) / MAX_DEADLINE_STEPS * (count > 0)
        features = [
            s["capacity"],
            count / HANDS,
            held[..., WORK_LEFT].sum(2) / WORK,
            oldest[..., WORK_LEFT] / WORK,
            oldest[..., SKILL],
            slack,
        ]
        agents = torch.cat([torch.stack(features, 2), s["expertise"]], 2)  # (n, agents, 6 + types)
        waiting = _exists(queue)  # (n, slots)
        kinds = torch.nn.functional.one_hot(queue[..., TYPE].long(), len(TASK_TYPES)).to(self.dtype)
        left = (queue[..., DEADLINE] - step) / MAX_DEADLINE_STEPS
        columns = [waiting.to(self.dtype), queue[..., WORK_LEFT] / WORK, queue[..., PRIORITY], left]
        tasks = torch.cat([torch.stack(columns, 2), kinds], 2) * waiting[..., None]  # (n, slots, 4 + types)
        free = count < HANDS
        wait = torch.ones(self.n, self.config.agents, 1, dtype=torch.bool, device=self.device)
        legal = torch.cat([waiting[:, None, :] & free[:, :, None], wait], 2)  # (n, agents, slots + 1)
        return {"agents": agents, "tasks": tasks, "matrix": s["matrix"].clone(), "legal": legal}

    def _allocate(self) -> State:
        n, agents, slots, types = self.n, self.config.agents, self.config.slots, len(TASK_TYPES)
        per_environment = ("step", "return", "arrived", "missed", "collaborations", "burst")
        return {
            **{name: self._zeros(n) for name in per_environment},
            **{name: self._zeros(n, agents) for name in ("capacity", "completed", "busy")},
            "expertise": self._zeros(n, agents, types),
            "taken": self._zeros(n, agents, types),
            "matrix": self._zeros(n, agents, agents),
            "queue": self._zeros(n, slots, SKILL),
            "held": self._zeros(n, agents, HANDS, SKILL + 1),
        }

    def _restart(self, rows: slice) -> None:
        s, n, agents = self.state, rows.stop - rows.start, self.config.agents
        for value in s.values():
            value[rows] = 0
        s["expertise"][rows] = 0.2 + 0.8 * self._uniform(n, agents, len(TASK_TYPES))
        s["capacity"][rows] = 0.5 + 0.5 * self._uniform(n, agents)
        entries = (0.3 + 0.4 * self._uniform(n, agents, agents)).triu(1)  # how well each pair collaborates
        s["matrix"][rows] = entries + entries.mT
        first = min(agents, self.config.slots)
        s["queue"][rows, :first] = self._new_tasks(self._uniform(n, first, 4), self._zeros(n, 1))
        s["arrived"][rows] = first

    def _advance(self, action: Action, uniform: Uniform) -> Tensor:
        s = self.state
        taken, taken_by_average = self._take(action["accept"])  # (n, agents) both
        power = s["capacity"] * self._collaborate(action["collaborate"] > 0.5)
        done, done_by_average = self._work(power, action["allocate"].clamp(0, 1), uniform)
        lost_held, lost_waiting = self._miss_deadlines()
        lost_waiting = lost_waiting + self._arrive(uniform)
        s["step"] = s["step"] + 1
        average = taken_by_average + done_by_average
        shared = average.sum(1, keepdim=True) - MISSED * lost_waiting[:, None]
        return taken + done - average - MISSED * lost_held + shared / self.config.agents

    def _take(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Assigns each chosen task to its agent. Returns rewards by agent, and what the average agent would earn."""
        s, agents, slots = self.state, self.config.agents, self.config.slots
        held = _exists(s["held"]).sum(2)  # (n, agents)
        named = choice.clamp(max=slots - 1)
        valid = (choice < slots) & (held < HANDS) & _exists(s["queue"]).gather(1, named)
        index = torch.arange(agents, device=self.device).expand_as(choice)
        first = torch.full((self.n, slots), agents, device=self.device).scatter_reduce(
            1, named, torch.where(valid, index, agents), "amin"
        )
        takes = valid & (first.gather(1, named) == index)
        task = s["queue"].gather(1, named[..., None].expand(-1, -1, SKILL)) * takes[..., None]  # (n, agents, SKILL)
        kind = task[..., TYPE].long()[..., None]
        skill = s["expertise"].gather(2, kind) * takes[..., None]  # (n, agents, 1)
        place = held.clamp(max=HANDS - 1)[..., None, None].expand(-1, -1, 1, SKILL + 1)
        s["held"].scatter_add_(2, place, torch.cat([task, skill], 2)[:, :, None])
        s["taken"].scatter_add_(2, kind, takes[..., None].to(self.dtype))
        s["queue"] = s["queue"] * (first == agents)[..., None]
        average = s["expertise"].mean(1).gather(1, kind[..., 0])
        return skill[..., 0] * task[..., PRIORITY], average * task[..., PRIORITY]

    def _collaborate(self, willing: Tensor) -> Tensor:
        """Pairs willing agents, strongest entry first; returns the factor on each agent's capacity (n, agents)."""
        s, agents = self.state, self.config.agents
        eye = torch.eye(agents, dtype=torch.bool, device=self.device)
        index = torch.arange(agents, device=self.device)
        pairs = torch.zeros_like(s["matrix"], dtype=torch.bool)
        free = willing
        for _ in range(3):  # a round pairs mutual best partners; after three rounds hardly any are left
            open_ = free[:, :, None] & free[:, None, :] & ~eye
            strength, best = torch.where(open_, s["matrix"], -1.0).max(2)
            mutual = (best.gather(1, best) == index) & (strength >= 0)
            pairs |= mutual[..., None] & (best[..., None] == index)
            free = free & ~mutual
        entry = torch.where(pairs, s["matrix"], 0.0).sum(2)
        paired = pairs.any(2)
        s["matrix"] = torch.where(pairs, s["matrix"] * GROWTH, s["matrix"] * DECAY).clamp(MIN_MATRIX_ENTRY, 1) * ~eye
        s["collaborations"] += paired.sum(1) * (agents - 1)
        return torch.where(paired, (1 - PAIR_COST) * (PAIR_BASE + PAIR_GAIN * entry), 1.0)

    def _work(self, power: Tensor, focus: Tensor, uniform: Uniform) -> tuple[Tensor, Tensor]:
        """Advances all held tasks and removes completed ones. Returns rewards as `_take` does."""
        s = self.state
        held, there = s["held"], _exists(s["held"])  # (n, agents, HANDS)
        s["busy"] += there[..., 0]
        count = there.sum(2, keepdim=True).clamp(min=1)
        share = ((1 - focus[..., None]) / count).repeat(1, 1, HANDS)
        share[..., 0] += focus
        noise = 0.5 + uniform(self.n, self.config.agents, HANDS)
        left = held[..., WORK_LEFT] - held[..., SKILL] * power[..., None] * share * noise
        done = there & (left <= 0)
        ahead = (held[..., DEADLINE] - s["step"][:, None, None]) / (held[..., DEADLINE] - held[..., BORN]).clamp(min=1)
        worth = 10 * held[..., PRIORITY] * (1 + ahead) * done
        average = s["expertise"].mean(1).gather(1, held[..., TYPE].long().flatten(1)).view_as(worth)
        earned = (worth * held[..., SKILL]).sum(2), (worth * average).sum(2)
        held[..., WORK_LEFT] = left.clamp(min=1e-6) * (there & ~done)
        s["completed"] += done.sum(2)
        return earned

    def _miss_deadlines(self) -> tuple[Tensor, Tensor]:
        """Removes tasks past their deadline, keeping the oldest first. Returns the priority lost, held and waiting."""
        s = self.state
        late_waiting = _exists(s["queue"]) & (s["queue"][..., DEADLINE] <= s["step"][:, None])
        late_held = _exists(s["held"]) & (s["held"][..., DEADLINE] <= s["step"][:, None, None])
        lost_held = (s["held"][..., PRIORITY] * late_held).sum(2)
        lost_waiting = (s["queue"][..., PRIORITY] * late_waiting).sum(1)
        s["missed"] += late_waiting.sum(1) + late_held.sum((1, 2))
        s["queue"] = s["queue"] * ~late_waiting[..., None]
        stays = _exists(s["held"]) & ~late_held
        order = (~stays).to(torch.uint8).argsort(dim=2, stable=True)[..., None]
        s["held"] = (s["held"] * stays[..., None]).gather(2, order.expand_as(s["held"]))
        return lost_held, lost_waiting

    def _arrive(self, uniform: Uniform) -> Tensor:
        """New tasks fill free slots; those without a free slot are lost. Returns the priority lost (n,)."""
        s, agents = self.state, self.config.agents
        change = torch.where(s["burst"] > 0, TO_CALM, TO_BURST)
        s["burst"] = (s["burst"] - (uniform(self.n) < change).to(self.dtype)).abs()
        max_arrivals = math.ceil(2 * BURST * agents)
        rate = torch.where(s["burst"] > 0, BURST, CALM) * agents / max_arrivals
        count = (uniform(self.n, max_arrivals) < rate[:, None]).sum(1, keepdim=True)  # (n, 1)
        tasks = self._new_tasks(uniform(self.n, max_arrivals, 4), s["step"][:, None])
        free = ~_exists(s["queue"])
        rank = free.cumsum(1) - 1  # (n, slots): the rank-th free slot gets the rank-th task
        filled = free & (rank < count)
        source = rank.clamp(0, max_arrivals - 1)[..., None].expand(-1, -1, SKILL)
        s["queue"] = torch.where(filled[..., None], tasks.gather(1, source), s["queue"])
        place = torch.arange(max_arrivals, device=self.device)
        turned_away = (place < count) & (place >= free.sum(1, keepdim=True))
        s["arrived"] += count[:, 0]
        s["missed"] += turned_away.sum(1)
        return (tasks[..., PRIORITY] * turned_away).sum(1)

    def _new_tasks(self, u: Tensor, step: Tensor) -> Tensor:
        """Uniform numbers (…, 4) to tasks (…, SKILL)."""
        born = step.expand(u.shape[:-1])
        deadline = born + MIN_DEADLINE_STEPS + (u[..., 2] * (MAX_DEADLINE_STEPS - MIN_DEADLINE_STEPS + 1)).floor()
        kind = (u[..., 3] * len(TASK_TYPES)).floor()
        return torch.stack([WORK * (0.1 + 0.9 * u[..., 0]), 0.1 + 0.9 * u[..., 1], deadline, born, kind], -1)


def _exists(tasks: Tensor) -> Tensor:
    """Whether there is a task: empty places are zeros, and a task always has work left."""
    return tasks[..., WORK_LEFT] > 0
