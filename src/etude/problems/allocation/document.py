"""The `document` variant as a tensor program: thousands of environments step in one call.

Most agents take nothing and finish nothing in a step, so the tasks in work are one ragged list over all environments,
in the order in which they were taken, and each step touches only the tasks that change.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.problems.allocation.world import TASK_TYPES, AllocationWorld, State, Uniform
from etude.problems.base import Action, Obs

ARRIVAL = 0.3
FIRST_TASKS = 3
COMPLEXITY, PRIORITY, DEADLINE, EXISTS, ASSIGNED, TYPE = range(6)  # columns of the queue; all but TYPE are observed


class DocumentWorld(AllocationWorld):
    def observe(self) -> Obs:
        s = self.state
        rate = s["completed"] / s["step"].clamp(min=1)[:, None]
        score = (s["matrix"].sum(2) - 0.5) / (self.config.agents - 1)  # mean of the row without its diagonal, .5
        expertise = s["expertise"]
        features = [s["capacity"], s["load"], rate, s["success"], score, expertise[..., 0], expertise[..., 1]]
        tasks = s["queue"][:, : self.config.slots, :TYPE]
        return {"agents": torch.stack(features, 2), "tasks": tasks.clone(), "matrix": s["matrix"].clone()}

    def _allocate(self) -> State:
        n, agents, slots, types = self.n, self.config.agents, self.config.slots, len(TASK_TYPES)
        per_agent = ("capacity", "load", "completed", "success", "busy")
        per_environment = ("step", "queued", "return", "arrived", "collaborations")
        return {
            **{name: self._zeros(n, agents) for name in per_agent},
            **{name: self._zeros(n) for name in per_environment},
            "expertise": self._zeros(n, agents, types),
            "taken": self._zeros(n, agents, types),
            "matrix": self._zeros(n, agents, agents),
            "queue": self._zeros(n, slots + agents, TYPE + 1),  # the rows past `slots` stay empty
            "work": self._zeros(0, 4),  # tasks in work: skill, complexity, priority, deadline
            "owner": torch.zeros(0, dtype=torch.long, device=self.device),  # environment · agents + agent
        }

    def _restart(self, rows: slice) -> None:
        s, n, agents, types = self.state, rows.stop - rows.start, self.config.agents, len(TASK_TYPES)
        stays = (s["owner"] < rows.start * agents) | (s["owner"] >= rows.stop * agents)
        s["work"], s["owner"] = s["work"][stays], s["owner"][stays]
        for name, value in s.items():
            if name not in ("work", "owner"):
                value[rows] = 0
        s["expertise"][rows] = 0.2 + 0.8 * self._uniform(n, agents, types)
        s["capacity"][rows] = 0.5 + 0.5 * self._uniform(n, agents)
        s["success"][rows] = 1.0
        s["matrix"][rows] = 0.5
        s["queue"][rows, :FIRST_TASKS] = _new_tasks(self._uniform(n, FIRST_TASKS, 4), step=self._zeros(n, 1))
        s["queued"][rows] = s["arrived"][rows] = FIRST_TASKS

    def _advance(self, action: Action, uniform: Uniform) -> Tensor:
        s = self.state
        reward = self._take(action["accept"] > 0.5)
        reward += self._collaborate((action["collaborate"] > 0.7).to(self.dtype))
        reward += self._complete(s["capacity"] * action["allocate"].clamp(0, 1), uniform)
        overdue = s["step"][s["owner"] // self.config.agents] > s["work"][:, 3]
        reward -= 0.1 * s["queued"] + 0.5 * self._per_environment(overdue.to(self.dtype))
        self._arrive(uniform)
        s["step"] += 1
        return reward

    def _take(self, wants: Tensor) -> Tensor:
        """Agents take tasks from the head of the queue in index order: the k-th agent that accepts gets the k-th."""
        s, agents = self.state, self.config.agents
        rank = wants.cumsum(1) - 1  # (n, agents): number of accepting agents with a lower index
        takes = wants & (rank < s["queued"][:, None])
        owner = takes.flatten().nonzero()[:, 0]  # (taken,), in order of environment and agent
        environment = owner // agents
        task = s["queue"][environment, rank.flatten()[owner]]  # (taken, 6)
        kind = task[:, TYPE].long()
        skill = s["expertise"].view(-1, len(TASK_TYPES))[owner, kind]
        s["taken"].view(-1, len(TASK_TYPES))[owner, kind] += 1
        s["load"].view(-1)[owner] += task[:, COMPLEXITY]
        s["work"] = torch.cat([s["work"], torch.cat([skill[:, None], task[:, :EXISTS]], 1)])
        s["owner"] = torch.cat([s["owner"], owner])

        gone = takes.sum(1)
        moved = gone.nonzero()[:, 0]
        behind = gone[moved, None] + torch.arange(self.config.slots, device=self.device)  # (moved, slots)
        s["queue"][moved, : self.config.slots] = s["queue"][moved[:, None], behind]
        s["queued"] -= gone
        return self._per_environment(skill * task[:, PRIORITY], environment)

    def _collaborate(self, willing: Tensor) -> Tensor:
        """Every ordered pair of willing agents increases its matrix entry and earns .5."""
        s, agents = self.state, self.config.agents
        pairs = willing[:, :, None] * willing[:, None, :]  # (n, agents, agents)
        pairs.view(self.n, -1)[:, :: agents + 1] = 0
        s["matrix"] = torch.addcmul(s["matrix"], s["matrix"], pairs, value=0.01).clamp_(max=1)
        together = willing.sum(1) ** 2 - willing.sum(1)
        s["collaborations"] += together
        return 0.5 * together

    def _complete(self, power: Tensor, uniform: Uniform) -> Tensor:
        """Completes tasks in work at random; each updates the success rate that its agent's next completion uses."""
        s, agents = self.state, self.config.agents
        done = uniform(len(s["owner"])) < s["work"][:, 0] * power.flatten()[s["owner"]]
        owner, (skill, complexity, priority, deadline) = s["owner"][done], s["work"][done].unbind(1)
        step = s["step"][owner // agents]
        worth = 10 * skill * priority * (1 + (1 - step / deadline).clamp(min=0))
        in_time = (step <= deadline).to(self.dtype)
        earned, success = torch.zeros_like(worth), s["success"].view(-1)
        for first in _rounds(owner):
            rate = success[owner[first]]
            earned[first] = worth[first] * rate
            success[owner[first]] = rate + 0.05 * (in_time[first] - rate)
        s["load"].view(-1).index_add_(0, owner, complexity, alpha=-1)
        s["completed"].view(-1).index_add_(0, owner, torch.ones_like(worth))
        s["work"], s["owner"] = s["work"][~done], s["owner"][~done]
        s["busy"].view(-1)[s["owner"]] += 1  # adds 1 per agent, not per task: an indexed assignment does not accumulate
        return self._per_environment(earned, owner // agents)

    def _arrive(self, uniform: Uniform) -> None:
        s = self.state
        tasks = _new_tasks(uniform(self.n, 4), s["step"])
        joins = (uniform(self.n) < ARRIVAL) & (s["queued"] < self.config.slots)
        joined = joins.nonzero()[:, 0]
        s["queue"][joined, s["queued"][joined].long()] = tasks[joined]
        s["queued"] += joins
        s["arrived"] += joins

    def _per_environment(self, value: Tensor, environment: Tensor | None = None) -> Tensor:
        """The sum over each environment's entries; by default there is one entry per task in work."""
        index = self.state["owner"] // self.config.agents if environment is None else environment
        return self._zeros(self.n).index_add_(0, index, value)


def _new_tasks(u: Tensor, step: Tensor) -> Tensor:
    """Uniform numbers (…, 4) to queue rows (…, 6)."""
    rows = torch.empty(*u.shape[:-1], TYPE + 1, dtype=u.dtype, device=u.device)
    rows[..., :DEADLINE] = 0.1 + 0.9 * u[..., :2]
    rows[..., DEADLINE] = step + 20 + (u[..., 2] * 80).floor()
    rows[..., EXISTS], rows[..., ASSIGNED] = 1, 0
    rows[..., TYPE] = (u[..., 3] * len(TASK_TYPES)).floor()
    return rows


def _rounds(owner: Tensor) -> list[Tensor]:
    """Positions of each owner's first entry, then of each owner's second, …: no round has an owner twice."""
    order = owner.argsort(stable=True)
    place = torch.arange(len(owner), device=owner.device)
    starts = torch.ones_like(place, dtype=torch.bool)
    starts[1:] = owner[order[1:]] != owner[order[:-1]]
    rank = torch.empty_like(place)
    rank[order] = place - torch.where(starts, place, 0).cummax(0).values
    rounds = int(rank.max()) + 1 if len(owner) else 0
    return [(rank == r).nonzero()[:, 0] for r in range(rounds)]
