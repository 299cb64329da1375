"""The workflow world: instructions arrive; plans are built node by node, executed, corrected and charged.

plan      every step adds a node by the rules of `grammar`, until *stop*. Then the nodes are executed in order.
outcome   a node is done if the instruction requires its type, if each type it depends on in the best plan is linked to
          it and done, and if its worker does not fail. Unnecessary links reduce the worker's skill. The first failure
          stops the execution and asks for a correction.
errors    not applicable: the instruction does not require this type; the node can only be skipped or dropped by a
          replan.
          missing input: a dependency is not linked or not done; a repair of that type, or a replan, can supply it.
          transient: a timeout or rate limit, likelier for loaded workers; a retry samples the outcome again.
          capability: this worker cannot do this subtask, for the rest of the episode: a retry almost never helps.
workers   skills by task type are hidden and the same in every environment. Live numbers are observed: at most one
          worker is down at a time, latency grows with load, and `success` is the share of calls that succeeded, over
          episodes, without errors that are not the worker's.
reward    α·success − β·US cents − γ_latency·seconds + a small reward for each required subtask, when it is earned. The
          source document takes the latency in milliseconds: at 0.01 each, 1,200 ms would cost 12, more than success
          earns, and the best policy would do nothing. Seconds keep its weights and its order of importance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from etude.contracts.errors import ConfigError
from etude.problems.base import Action, Obs, Transition
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import Correction, Rules, Status, at
from etude.problems.workflow.office.scenarios import Scenarios, generate
from etude.problems.workflow.plan import Limits

State = dict[str, Tensor]
Number = TypeVar("Number", float, Tensor)
Uniform = Callable[..., Tensor]
"""From a shape to uniform random numbers in [0, 1)."""

MEAN_LOAD = 1 / 3
DOWN = 0.4  # chance that some worker is down in an episode
SLOWER = 2.0  # latency added by full load, relative to the latency without load
FLAKY, FLAKY_LOADED = 0.02, 0.2  # chance of a transient error without load, and added by full load
DISTRACTED = 0.9  # factor on the skill for each unnecessary input
NEEDLESS = 0.75  # factor on a node's potential for each unnecessary input
SKILL_AFTER_FAILURE = 0.05  # skill of a worker at a subtask that it proved unable to do
MEMORY = 40.0  # calls over which a worker's observed success averages
DEGRADED = 0.2  # factor on the skill of the worker that degrades
MIN_BEST_SKILL = 0.95  # skill of the best worker for every task type
MAX_GOLD = 30  # nodes of a best plan: sets of them are bit masks
TYPICAL_NODES = 4


@dataclass(frozen=True, kw_only=True)
class OfficeConfig:
    """The simulated office: its instructions and its workers."""

    scenarios: Annotated[int, Ge(1), Le(1_000_000)] = 16_000
    """Distinct instructions to learn from."""
    held_out: Annotated[int, Ge(0), Le(100_000)] = 1000
    """Held-out instructions to choose the best policy by, and as many to measure it on; unset, a tenth of your own."""
    scenario_seed: Annotated[int, Ge(0)] = 0
    """Random seed of the instructions."""
    skill_seed: Annotated[int, Ge(0)] = 0
    """Random seed of the workers' hidden skills."""
    expert_noise: Annotated[float, Ge(0), Le(1)] = 0.02
    """Probability, each, that experts drop a subtask, mistake its type, miss its dependencies or pick any worker."""
    shift: Literal["none", "degraded", "new_tool", "phrasings"] = "none"
    """How the office differs from training: a strong worker degrades, a new tool appears, or the wording is new."""


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """The reward of a workflow."""

    alpha: Annotated[float, Ge(0)] = 10.0
    """Reward for a workflow with every required subtask done."""
    beta: Annotated[float, Ge(0)] = 0.1
    """Penalty per US cent."""
    gamma_latency: Annotated[float, Ge(0)] = 0.01
    """Penalty per second from the workflow's start to its end."""
    shaped_reward: Annotated[float, Ge(0)] = 0.1
    """Reward per required subtask done."""
    potential: Annotated[float, Ge(0)] = 0.0
    """Weight of the potential-based shaping; the best policy is the same with and without it. 0 turns it off."""


@dataclass(frozen=True, kw_only=True)
class WorkflowConfig(OfficeConfig, Rewards):
    """The office, its rewards and its limits: everything about the simulated problem."""

    scenarios: Annotated[int, Ge(1), Le(1_000_000)] = 4096
    """Distinct instructions that episodes are sampled from."""
    held_out: Annotated[int, Ge(0), Le(100_000)] = 0
    """Further instructions that are held out, twice: to choose by and to measure on."""
    limits: Limits = field(default_factory=lambda: Limits(max_nodes=10, max_corrections=3))
    """Limits that no plan and no execution may exceed."""
    discount: Annotated[float, Gt(0), Le(1)] = 0.99
    """The learner's discount: with it, potential-based shaping does not change the best policy."""


class Tables:
    """Data shared by all environments: S scenarios, K nodes of the longest best plan, T task types, W workers."""

    def __init__(self, config: WorkflowConfig, scenarios: Scenarios | None, device: torch.device | str) -> None:
        wording: Literal["seen", "unseen"] = "unseen" if config.shift == "phrasings" else "seen"
        newly = config.shift == "new_tool"
        count = config.scenarios + 2 * config.held_out
        given = scenarios or generate(config.scenario_seed, count, wording, new_entries=newly)
        self.scenarios, catalogue = given, given.catalogue
        self.rules = Rules(catalogue, config.limits, device=device)
        S, K = given.types.shape
        if max(K, 1) > min(MAX_GOLD, config.limits.max_nodes):
            raise ConfigError(f"the longest best plan has {K} nodes: expected at most limits.max_nodes and {MAX_GOLD}")
        self.gold, self.gold_links = given.types.to(device), given.links.to(device)
        self.length = given.length.to(device)
        bits = (given.links * 2 ** torch.arange(K)).sum(2)
        self.need = bits.int().to(device)  # (S, K): the dependencies of each node of the best plan, as bits
        slot = torch.full((S, len(catalogue.task_types) + 1), -1)
        slot.scatter_(1, torch.where(given.types >= 0, given.types, slot.shape[1] - 1), torch.arange(K).expand(S, -1))
        self.slot = slot[:, :-1].contiguous().to(device)  # (S, T): the node of the best plan with this type, or −1
        hidden = () if newly else given.new_entries
        self.offered = torch.tensor([t.name not in hidden for t in catalogue.task_types], device=device)
        self.exists = torch.tensor([w.name not in hidden for w in catalogue.workers] or [True], device=device)
        advertised = self.rules.begin(1)["success"][0].float().cpu()
        known = torch.tensor([w.name not in given.new_entries for w in catalogue.workers] or [True])
        skill = sample_skills(self.rules.capable.cpu(), advertised, known, seed=config.skill_seed)
        self.skill = skill.to(device)  # (T, W)
        if config.shift == "degraded":
            self.skill[:, self.strongest(config)] *= DEGRADED

    def strongest(self, config: WorkflowConfig) -> int:
        """The known worker that is the most valuable one for the largest number of task types."""
        best = self.worth(config)[self.offered].argmax(1)
        return int(torch.bincount(best, minlength=self.rules.workers).argmax())

    def worth(self, config: WorkflowConfig) -> Tensor:
        """(T, W): the expected value of a call, if a workflow's reward is divided among TYPICAL_NODES nodes."""
        fresh = self.rules.begin(1)
        value = config.alpha / TYPICAL_NODES * self.skill - charge(config, fresh["price"], fresh["latency"])
        return torch.where(self.rules.capable & self.exists, value, -torch.inf)


def charge(config: WorkflowConfig, cost_usd: Tensor, latency_ms: Tensor) -> Tensor:
    """The penalty for cost and latency."""
    return config.beta * 100 * cost_usd + config.gamma_latency * latency_ms / 1000


def flakiness(load: Number) -> Number:
    """The probability of a transient error."""
    return FLAKY + FLAKY_LOADED * load


def sample_skills(capable: Tensor, advertised: Tensor, known: Tensor, *, seed: int) -> Tensor:
    """(T, W): the probability that a worker can do a subtask: some are overrated, some cheap ones excel at a few types.

    For each type, at least one of the `known` (W,) workers is good.
    """
    T, W = capable.shape
    generator = torch.Generator().manual_seed(seed)
    overrated = 1.6 * torch.rand(W, generator=generator) - 0.4
    spread = torch.randn(W, T, generator=generator).T
    skill = (torch.logit(advertised.clamp(0.02, 0.98)) - overrated + spread).sigmoid() * capable
    u = torch.rand(W, T, generator=generator).T * capable * known
    good = torch.nn.functional.one_hot(u.argmax(1), W).bool() & capable
    return torch.where(good, skill.clamp(min=MIN_BEST_SKILL), skill)


class WorkflowWorld:
    """A World. Actions are `correction` (n,), `type` (n,) with T for *stop*, `links` (n, N) bool and `worker` (n,).

    Observations are drafts (see `Rules`) and `instruction` (n,), the row of the scenario. Episodes terminate; none is
    truncated.
    """

    def __init__(
        self,
        config: WorkflowConfig,
        *,
        n: int,
        device: torch.device | str = "cpu",
        scenarios: Scenarios | None = None,
        rows: range | None = None,
    ) -> None:
        """Episodes are sampled from the scenarios in these `rows`, or from all."""
        self.config, self.n, self.device = config, n, torch.device(device)
        self.tables = Tables(config, scenarios, device)
        self.rules, self.scenarios = self.tables.rules, self.tables.scenarios
        self.rows = range(len(self.scenarios)) if rows is None else rows
        self.generator = torch.Generator(self.device)
        self.state: State = {}
        self._fresh = self.rules.begin(1) | {"offered": self.tables.offered[None]}
        self._index = torch.arange(self.rules.nodes, device=self.device)
        self._is_cpu = self.device.type == "cpu"  # reading values back from a GPU would stall it

    def reset(self, seed: int) -> Obs:
        n, W, K = self.n, self.rules.workers, self.tables.gold.shape[1]
        self.generator.manual_seed(seed)
        zeros = torch.zeros(n, device=self.device)
        whole = {name: value.expand(n, *value.shape[1:]) for name, value in self._fresh.items()}
        self.state = {
            **whole,
            "success": self._history(self._uniform(n, W)),
            "instruction": zeros.long(),
            "load": zeros[:, None].expand(n, W),
            "beyond": torch.zeros((n, K * W), dtype=torch.bool, device=self.device),
            "done": torch.zeros((n, K), dtype=torch.bool, device=self.device),
            **dict.fromkeys(("cost_usd", "latency_ms", "return"), zeros),
        }
        everyone = torch.ones(n, dtype=torch.bool, device=self.device)
        self.state = self._restart(self.state, everyone, self._uniform(n, W + 2))
        return self.observe()

    def observe(self) -> Obs:
        return {name: self.state[name] for name in (*self._fresh, "instruction")}

    def step(self, action: Action) -> Transition:
        return self.apply(action, self._uniform)

    def apply(self, action: Action, uniform: Uniform) -> Transition:
        """One step with random numbers from `uniform`, called once for (n, N + 2 + W): by node, then for a restart."""
        N, config = self.rules.nodes, self.config
        u = uniform(self.n, N + 2 + self.rules.workers)
        old, failed = self.state, self.state["failed"] >= 0
        draft, stopped = self.rules.grow({name: old[name] for name in self._fresh}, action)
        draft = self._among(failed, lambda d, a: self.rules.amend(d, a)[0], draft, action)
        aborted = failed & (action["correction"] == Correction.ABORT)
        runs = stopped | (failed & ~aborted & (action["correction"] != Correction.REPLAN))
        s = self._bill(self._among(runs, self._execute, old | draft, {"runs": runs, "u": u[:, :N]}))

        subtasks, before = (x["done"].sum(1) for x in (s, old))
        success = subtasks == self.tables.length[s["instruction"]]
        over = aborted | (runs & (success | (s["failed"] < 0)))
        reward = config.alpha * success + config.shaped_reward * (subtasks - before)
        reward = reward - charge(config, s["cost_usd"] - old["cost_usd"], s["latency_ms"] - old["latency_ms"])
        s["return"] = old["return"] + reward
        if config.potential:
            after = torch.where(over, 0.0, self.potential(s))
            reward = reward + config.discount * after - self.potential(old)
        self.state = s
        ending = not self._is_cpu or bool(over.any())
        final_obs = self.observe() if ending else None
        metrics = self._metrics(s, success, subtasks) if ending else {}
        self.state = self._restart(s, over, u[:, N:])
        return Transition(
            obs=self.observe(),
            reward=reward,
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=final_obs,
            metrics=metrics,
        )

    def potential(self, state: State) -> Tensor:
        """(n,): the potential of a state: the share of the best plan in the draft, minus the draft's future cost.

        A node of the best plan counts if it is done, or planned with its dependencies linked; it counts less for each
        unnecessary input, which reduces its worker's skill. Costs are charged when planned and refunded when paid, so
        the choice of an expensive worker is penalised at once.
        """
        s, slot, K = state, self._slot(state), self.tables.gold.shape[1]
        supplied, needless = self._inputs(s, slot)
        stands = (s["types"] >= 0) & (s["status"] <= Status.DONE) & supplied & (slot >= 0)
        worth = torch.zeros((len(slot), K + 1), device=self.device)
        worth = worth.scatter_reduce(1, torch.where(stands, slot, K), NEEDLESS**needless, "amax")[:, :K]
        share = worth.sum(1) / self.tables.length[s["instruction"]]
        unpaid = (s["cost"] * (s["status"] == Status.PLANNED)).sum(1)
        ahead = (s["finish"].amax(1) - s["latency_ms"]).clamp(min=0)
        return self.config.potential * share - charge(self.config, unpaid, ahead).float()

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.state.items()} | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.state = {name: value.to(self.device).clone() for name, value in state.items() if name != "generator"}

    def _among(self, rows: Tensor, change: Callable[..., State], state: State, given: State) -> State:
        """Applies `change(state, given)` to these rows (n,) bool; on a GPU to all, since it leaves others unchanged."""
        if not self._is_cpu:
            return state | change(state, given)
        index = rows.nonzero()[:, 0]
        chosen, its = ({name: value[index] for name, value in x.items()} for x in (state, given))
        changed = change(chosen, its).items()
        return state | {
            name: state[name].index_copy(0, index, value) for name, value in changed if value is not chosen[name]
        }

    def _execute(self, s: State, given: State) -> State:
        """Executes planned nodes where `runs` (n,), up to the first failure, with uniform numbers `u` (n, N).

        Outcomes of all nodes are computed at once, as if all earlier nodes had succeeded: that holds up to the first
        failure, and no later node is executed.
        """
        W, t, runs, u = self.rules.workers, self.tables, given["runs"], given["u"]
        planned = (s["types"] >= 0) & (s["status"] == Status.PLANNED) & runs[:, None]  # (n, N)
        types, worker, slot = s["types"].clamp(min=0), s["workers"].clamp(min=0), self._slot(s)
        place = slot.clamp(min=0) * W + worker
        supplied, needless = self._inputs(s, slot)
        skill = t.skill.view(-1)[types * W + worker] * DISTRACTED**needless
        skill = torch.where(s["beyond"].gather(1, place), SKILL_AFTER_FAILURE, skill)
        flaky = flakiness(s["load"].gather(1, worker))
        error = torch.where(u < flaky + (1 - flaky) * skill, ErrorCategory.NONE, ErrorCategory.CAPABILITY)
        error = torch.where(u < flaky, ErrorCategory.TRANSIENT, error)
        error = torch.where(supplied, error, ErrorCategory.MISSING_INPUT)
        error = torch.where(slot >= 0, error, ErrorCategory.NOT_APPLICABLE)

        turn = self._turn(s["links"])
        fails = planned & (error != ErrorCategory.NONE)
        first, index = torch.where(fails, turn, len(self._index)).min(1)  # (n,) both
        broken = first < len(self._index)
        done = planned & (turn < first[:, None])
        here = (self._index == index[:, None]) & broken[:, None]  # (n, N) the node that failed
        kind = at(error, index) * broken
        s = dict(s)
        s["status"] = torch.where(done, Status.DONE, torch.where(here, Status.FAILED, s["status"]))
        s["failed"] = torch.where(runs, torch.where(broken, index, -1), s["failed"])
        s["error"] = torch.where(runs, kind, s["error"])
        hopeless = at(s["beyond"].gather(1, place), index) | (kind == ErrorCategory.CAPABILITY)
        s["beyond"] = s["beyond"].scatter(1, at(place, index)[:, None], hopeless[:, None])
        row = at(slot, index).clamp(min=0)[:, None] * W + torch.arange(W, device=self.device)
        tried = s["beyond"].gather(1, row) & (at(slot, index) >= 0)[:, None]
        s["tried"] = torch.where(runs[:, None], tried, s["tried"])
        s["done"] = self._tick(s["done"], slot, done)
        blamed = here & ((kind == ErrorCategory.TRANSIENT) | (kind == ErrorCategory.CAPABILITY))[:, None]
        s["success"] = observed(s["success"], worker, done, blamed)
        return s

    def _bill(self, s: State) -> State:
        """Updates the workflow's cost and latency so far; planned nodes are not paid yet."""
        s, planned = dict(s), s["status"] == Status.PLANNED
        ends = (s["finish"] * ~planned).amax(1)
        s["cost_usd"] = (s["spent"] - (s["cost"] * planned).sum(1)).float()
        s["latency_ms"] = torch.maximum(ends, s["clock"]).float()
        return s

    def _restart(self, s: State, over: Tensor, u: Tensor) -> State:
        """Starts new episodes where `over` (n,): another instruction, other loads, another worker down."""
        S, W = len(self.rows), self.rules.workers
        load = u[:, 2:] ** 2
        down = (u[:, 1] * W / DOWN).long()  # (n,): W or more means that no worker is down
        counts = ("beyond", "done", "return", "cost_usd", "latency_ms")
        new = dict(self._fresh) | {name: torch.zeros_like(s[name][:1]) for name in counts}
        new["instruction"] = self.rows.start + (u[:, 0] * S).long().clamp(max=S - 1)
        new["load"], new["latency"] = load, self._fresh["latency"] * (1 + SLOWER * load)
        up = (torch.arange(W, device=self.device) != down[:, None]) | (self.tables.exists.sum() == 1)
        new["available"] = self._fresh["available"] & up & self.tables.exists
        kept = ("success", "price", "offered")
        return s | {
            name: torch.where(over.view(-1, *[1] * (value.dim() - 1)), value, s[name])
            for name, value in new.items()
            if name not in kept
        }

    def _slot(self, s: State) -> Tensor:
        """(n, N): the node of the best plan that each node of the draft corresponds to, −1 for none."""
        place = s["instruction"][:, None] * self.rules.types + s["types"].clamp(min=0)
        return torch.where(s["types"] >= 0, self.tables.slot.view(-1)[place], -1)

    def _inputs(self, s: State, slot: Tensor) -> tuple[Tensor, Tensor]:
        """(n, N) each: whether all dependencies of a node are linked and not failed; number of unnecessary links."""
        K = self.tables.gold.shape[1]
        need = self.tables.need.view(-1)[s["instruction"][:, None] * K + slot.clamp(min=0)]
        has = (slot >= 0) & (s["status"] <= Status.DONE)
        bit = has.int() << slot.clamp(min=0).int()  # (n, N)
        given = torch.where(s["links"], bit[:, None] & need[:, :, None], 0)  # (n, N, N)
        needless = s["links"].sum(2) - (given != 0).sum(2)
        while given.shape[2] > 1:  # the bitwise or of each row
            half = (given.shape[2] + 1) // 2
            given = given[..., :half] | given[..., -half:]
        return given[..., 0] == need, needless

    def _turn(self, links: Tensor) -> Tensor:
        """(n, N): the order of execution: by index, except that a repair, which has the last index, comes first."""
        repairs = torch.triu(links, 1).any(1)
        return torch.where(repairs, -self._index, self._index)

    def _tick(self, done: Tensor, slot: Tensor, which: Tensor) -> Tensor:
        """`done` (n, K) with the nodes of the best plan that the draft's nodes `which` (n, N) correspond to."""
        K = done.shape[1]
        padded = torch.nn.functional.pad(done, (0, 1))  # the last column is for nodes that are not in the best plan
        return padded.scatter(1, torch.where(which & (slot >= 0), slot, K), True)[:, :K]

    def _metrics(self, s: State, success: Tensor, subtasks: Tensor) -> dict[str, Tensor]:
        return {
            **{name: s[name] for name in ("return", "cost_usd", "latency_ms")},
            "success": success.float(),
            **{name: s[key].float() for name, key in (("nodes", "length"), ("corrections", "corrections"))},
            "subtasks": subtasks.float(),
            "validity": torch.ones_like(s["return"]),  # by construction: the rules allow only valid plans
        }

    def _history(self, u: Tensor) -> Tensor:
        """(n, W): success rates before the first episode: the true mean with the uncertainty of MEMORY calls."""
        capable = self.rules.capable
        mean = (self.tables.skill * capable).sum(0) / capable.sum(0).clamp(min=1)
        mean = mean * (1 - flakiness(torch.full_like(mean, MEAN_LOAD)))
        noise = (mean * (1 - mean) / MEMORY * 12).sqrt() * (u - 0.5)
        return (mean + noise).clamp(0, 1).to(self._fresh["success"].dtype)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)


def observed(success: Tensor, worker: Tensor, done: Tensor, failed: Tensor) -> Tensor:
    """(n, W): running success rates after calls of workers (n, N) that were `done` or `failed` (n, N) bool."""
    zeros = torch.zeros_like(success)
    wins = zeros.scatter_add(1, worker, done.to(success.dtype))
    calls = wins.scatter_add(1, worker, failed.to(success.dtype))
    forgotten = (1 - 1 / MEMORY) ** calls
    return success * forgotten + wins / calls.clamp(min=1) * (1 - forgotten)
