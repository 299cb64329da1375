"""Baselines that a learned workflow policy is compared with: from random legal choices to an oracle.

`cheapest`, `best_single`, `greedy` and `rules` find task types by keywords in the instruction and differ in the worker
they choose and in how they correct. `oracle` knows the best plan and the hidden skills; its return minus a policy's is
the policy's regret. All choose among what the rules' masks allow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from etude.problems.base import Action, Actor, Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import Correction, Rules, Status, at
from etude.problems.workflow.office.phrases import PHRASES
from etude.problems.workflow.office.scenarios import Scenarios, from_examples
from etude.problems.workflow.office.world import (
    SKILL_AFTER_FAILURE,
    SLOWER,
    Tables,
    WorkflowConfig,
    charge,
    flakiness,
)

NEVER = -1e6  # the score of a choice that must not be made
MAX_CANDIDATES = 6  # workers that the oracle considers for each task type
CHUNK = 512  # episodes that it solves at a time
MIN_OVERLAP = 0.5  # overlap from which a clause mentions a task type
STOP_WORDS = re.compile(r"(a|an|and|the|of|or|to|in|into|on|for|its|it|with|from|against|about|another|such|as)$")

Score = Callable[[Obs, Tensor], Tensor]
"""Drafts and task types (n,) to a score for each worker (n, W)."""
Choice = Callable[[Obs], Tensor]
"""Drafts to a score for each correction (n, 6)."""


def baselines(
    config: WorkflowConfig, *, device: torch.device | str = "cpu", scenarios: Scenarios | None = None
) -> dict[str, Actor]:
    """Baselines by name; those that differ only in their choice of worker are left out where there is no choice."""
    tables = Tables(config, scenarios, device)
    rules, read = tables.rules, read_all(tables.scenarios)
    widest = tables.worth(config).nan_to_num(neginf=0).sum(0)  # (W,): the best single worker by its true skills

    def single(obs: Obs, task_type: Tensor) -> Tensor:
        return torch.where(widest == widest.max(), 1.0, -obs["price"])

    actors: dict[str, Actor] = {
        "random": random_choice(rules),
        "cheapest": RulePlanner(rules, read, worker=lambda obs, task_type: -obs["price"], correction=retry_only),
        "best_single": RulePlanner(rules, read, worker=single, correction=retry_only),
        "greedy": RulePlanner(rules, read, worker=by_reputation(rules), correction=retry_only),
        "rules": RulePlanner(rules, read, worker=by_reputation(rules), correction=retry_then_switch),
        "oracle": Oracle(tables, config),
    }
    if rules.workers == 1:  # these differ only in the worker they choose
        for name in ("cheapest", "best_single", "greedy"):
            del actors[name]
    return actors


def random_choice(rules: Rules) -> Actor:
    """Uniform over the legal choices, part by part; each legal dependency with probability 0.5."""

    def act(obs: Obs, generator: Generator) -> Action:
        def pick(legal: Tensor) -> Tensor:
            u = torch.rand(legal.shape, generator=generator, device=legal.device)
            return torch.where(legal, u, -1.0).argmax(1)

        correction = pick(rules.corrections(obs))
        task_type = pick(rules.task_types(obs, correction))
        free = rules.dependencies(obs, task_type)
        links = free & (torch.rand(free.shape, generator=generator, device=free.device) < 0.5)
        worker = pick(rules.workers_for(obs, correction, task_type, links))
        return {"correction": correction, "type": task_type, "links": links, "worker": worker}

    return act


def by_reputation(rules: Rules) -> Score:
    """Scores workers by the success rate in the catalogue, without what has been observed since."""
    reputation = rules.begin(1)["success"]
    return lambda obs, task_type: reputation.expand_as(obs["price"])


def retry_only(obs: Obs) -> Tensor:
    """Retry as long as it is allowed, then abort."""
    return _all_scores(obs, {Correction.RETRY: 1.0})


def retry_then_switch(obs: Obs) -> Tensor:
    """Retry once, then switch the worker, then skip the node."""
    attempts = at(obs["attempts"], obs["failed"])
    again, other = (attempts == 1) * 3.0, (attempts > 1) * 2.0
    return _all_scores(obs, {Correction.RETRY: again, Correction.SWITCH: other, Correction.SKIP: 1.0})


class RulePlanner:
    """Builds a given plan for each instruction: adds its next missing node until the plan is complete."""

    def __init__(self, rules: Rules, plans: Scenarios, *, worker: Score, correction: Choice) -> None:
        self.rules, self.worker, self.correction = rules, worker, correction
        self.types, self.links = plans.types.to(rules.device), plans.links.to(rules.device)

    def __call__(self, obs: Obs, generator: Generator) -> Action:
        rules, T = self.rules, self.rules.types
        correction = _best(self.correction(obs), rules.corrections(obs))
        plan, there = self.types[obs["instruction"]], obs["types"]  # (n, K) and (n, N)
        same = (plan[:, :, None] == there[:, None]) & (plan >= 0)[:, :, None]  # (n, K, N)
        open_ = (plan >= 0) & ~same.any(2)
        following = open_.int().argmax(1)  # (n,): the first in the plan's order
        target = torch.where(open_.any(1), at(plan, following), T)
        preference = torch.nn.functional.one_hot(target, T + 1) * 2.0
        preference[:, T] += 1
        task_type = _best(preference, rules.task_types(obs, correction))
        needs = self.links[obs["instruction"]].gather(1, following[:, None, None].expand(-1, 1, plan.shape[1]))[:, 0]
        links = (needs[:, :, None] & same).any(1) & rules.dependencies(obs, task_type)
        subject = torch.where(task_type < T, task_type, at(there, obs["failed"]).clamp(min=0))
        legal = rules.workers_for(obs, correction, task_type, links)
        worker = _best(self.worker(obs, subject), legal)
        return {"correction": correction, "type": task_type, "links": links, "worker": worker}


class Oracle(RulePlanner):
    """The best plan, with workers and corrections from dynamic programming over the hidden skills.

    The state is (nodes left, attempts at this node, workers that proved unable to do it, corrections and replans left).
    Its value is exact except that latencies are summed as if nothing ran in parallel; first workers are chosen while
    planning, as if no correction came before; the masks enforce limits of cost, time and quota, but values ignore them;
    a node that is not worth another attempt ends the workflow, although other nodes might still earn 0.1; and for each
    task type only the MAX_CANDIDATES most valuable workers are considered.
    """

    def __init__(self, tables: Tables, config: WorkflowConfig) -> None:
        super().__init__(tables.rules, tables.scenarios, worker=self._worker_scores, correction=self._correction_scores)
        self.tables, self.config, self.limits = tables, config, config.limits
        self.listed = self.rules.begin(1)["latency"]
        worth = tables.worth(config)
        count = min(MAX_CANDIDATES, int((worth > -torch.inf).sum(1).max()))
        self.able = worth.topk(count, 1).indices  # (T, M)
        one = 2 ** torch.arange(count, device=worth.device)
        # (sets, M): a set with one worker more.
        self.joined = torch.arange(2**count, device=worth.device)[:, None] | one
        self._seen: Obs = {}  # the episodes that the tables below are for
        self._values, self._choices = torch.empty(0), torch.empty(0)

    def values(self, obs: Obs) -> Tensor:
        """(n, K + 1, R + 1, C + 1): expected future reward with k nodes done, r replans and c corrections left."""
        names = ("instruction", "latency", "available")
        n, rows = len(obs["instruction"]), torch.arange(len(obs["instruction"]), device=self.rules.device)
        if self._seen and len(self._seen["instruction"]) == n:
            rows = (~torch.stack([(self._seen[k] == obs[k]).view(n, -1).all(1) for k in names]).all(0)).nonzero()[:, 0]
        else:
            self._values, self._choices = self._empty(n)
        for some in rows.split(CHUNK):
            values, choices = self._solve({k: obs[k][some] for k in (*names, "price")})
            self._values[some], self._choices[some] = values, choices
        self._seen = {k: obs[k] for k in names}
        return self._values.clone()

    def _empty(self, n: int) -> tuple[Tensor, Tensor]:
        """Values, and workers to choose (n, K, R + 1, A, sets of M workers, C + 1); −1 − worker if not worth it."""
        R, A, C, K = self.limits.max_replans, self.limits.max_attempts, self.limits.max_corrections, self.types.shape[1]
        values = torch.zeros((n, K + 1, R + 1, C + 1), device=self.rules.device)
        shape = (n, K, R + 1, A, len(self.joined), C + 1)
        return values, torch.zeros(shape, dtype=torch.int16, device=self.rules.device)

    def _solve(self, obs: Obs) -> tuple[Tensor, Tensor]:
        plan = self.types[obs["instruction"]]  # (n, K)
        values, choices = self._empty(len(plan))
        values[:, plan.shape[1]] = self.config.alpha
        for k in reversed(range(plan.shape[1])):
            odds = self._odds(obs, plan[:, k].clamp(min=0))
            start = torch.zeros_like(choices[:, k, 0, 0], dtype=torch.float32)  # (n, Z, C + 1) without any replan left
            for r in range(self.limits.max_replans + 1):
                for a in reversed(range(self.limits.max_attempts)):
                    after = torch.nn.functional.pad(start.clamp(min=0)[..., :-1], (1, 0))  # a correction costs one
                    start, best = self._attempt(odds, values[:, k + 1, r], after).max(2)
                    chosen = self.able[plan[:, k].clamp(min=0)].gather(1, best.flatten(1)).view_as(best)
                    choices[:, k, r, a] = torch.where(start > 0, chosen, -1 - chosen).short()
                there = (plan[:, k] >= 0)[:, None]
                values[:, k, r] = torch.where(there, start[:, 0].clamp(min=0), values[:, k + 1, r])
        return values, choices

    def _odds(self, obs: Obs, task_type: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, M) each: the reward of a call before its outcome, the chance of a transient error, and the skill."""
        load = torch.where(self.listed > 0, (obs["latency"] / self.listed.clamp(min=1e-9) - 1) / SLOWER, 0.5)
        allowed = self.rules.capable[task_type] & obs["available"]
        price = torch.where(allowed, -charge(self.config, obs["price"], obs["latency"]), NEVER)
        able = self.able[task_type]
        return (
            price.gather(1, able).float(),
            flakiness(load).gather(1, able).float(),
            self.tables.skill[task_type].gather(1, able),
        )

    def _attempt(self, odds: tuple[Tensor, Tensor, Tensor], then: Tensor, after: Tensor) -> Tensor:
        """(n, Z, M, C + 1): the value of each worker for a node, by the set of unable workers and corrections left.

        `then` (n, C + 1) is the value once the node is done, `after` (n, Z, C + 1) once it has failed.
        """
        price, flaky, skill = (x[:, None, :, None] for x in odds)
        known = (self.joined == torch.arange(len(self.joined), device=then.device)[:, None])[None, :, :, None]
        skill = torch.where(known, SKILL_AFTER_FAILURE, skill)  # (n, Z, M, 1)
        done = then[:, None, None] + self.config.shaped_reward
        stuck = after[:, self.joined]  # (n, Z, M, C + 1)
        return price + flaky * after[:, :, None] + (1 - flaky) * (skill * done + (1 - skill) * stuck)

    def _choose(self, obs: Obs, task_type: Tensor) -> Tensor:
        """(n,): the next worker for this node, planned or failed; −1 − worker where another attempt is not worth it."""
        self.values(obs)
        limits, failed, n = self.limits, obs["failed"] >= 0, len(task_type)
        attempts = torch.where(failed, at(obs["attempts"], obs["failed"]), 0)
        used_up = attempts >= limits.max_attempts
        replans = limits.max_replans - obs["replans"] - used_up.long()
        left = limits.max_corrections - obs["corrections"] - failed.long()
        # After a replan, the failed node comes first.
        first = ((obs["types"] < 0) | (obs["status"] == Status.DONE)).all(1)
        tried = obs["tried"].gather(1, self.able[task_type]) & (failed | first)[:, None]  # (n, M)
        beyond = (tried * 2 ** torch.arange(tried.shape[1], device=tried.device)).sum(1)
        k = (self.types[obs["instruction"]] == task_type[:, None]).int().argmax(1)
        row = torch.arange(n, device=k.device)
        stage = attempts * ~used_up
        found = self._choices[row, k, replans.clamp(min=0), stage, beyond, left.clamp(min=0)].long()
        return torch.where((left < 0) | (replans < 0), -1, found)

    def _worker_scores(self, obs: Obs, task_type: Tensor) -> Tensor:
        chosen = self._choose(obs, task_type)
        chosen = torch.where(chosen < 0, -1 - chosen, chosen)
        return torch.nn.functional.one_hot(chosen, self.rules.workers) - obs["price"]

    def _correction_scores(self, obs: Obs) -> Tensor:
        chosen, failed = self._choose(obs, at(obs["types"], obs["failed"]).clamp(min=0)), obs["failed"]
        worth, same = chosen >= 0, chosen == at(obs["workers"], failed)
        misplanned = obs["error"] >= ErrorCategory.MISSING_INPUT  # only in drafts of another planner
        replan = misplanned | (worth & (at(obs["attempts"], failed) >= self.limits.max_attempts))
        scores = {
            Correction.RETRY: torch.where(worth & same & ~misplanned, 2.0, NEVER),
            Correction.SWITCH: torch.where(worth & ~same & ~misplanned, 2.0, NEVER),
            Correction.REPLAN: torch.where(replan, 3.0, NEVER),
            Correction.SKIP: torch.where(misplanned, 1.0, NEVER),
        }
        return _all_scores(obs, scores)


def read_all(scenarios: Scenarios) -> Scenarios:
    """The scenarios' instructions with the plans that `KeywordReader` finds in them."""
    reader = KeywordReader(scenarios.catalogue, without=_unused(scenarios))
    examples = ((text, *reader.read(text)) for text in scenarios.instructions)
    return from_examples(examples, scenarios.catalogue)


class KeywordReader:
    """Finds task types in an instruction clause by clause: by keywords, or else by the words of descriptions."""

    def __init__(self, catalogue: Catalogue, *, without: set[str]) -> None:
        patterns = (PHRASES.keywords.get(t.name) for t in catalogue.task_types)
        self.patterns = [re.compile(rf"\b({pattern})") if pattern else None for pattern in patterns]
        texts = ("" if t.name in without else f"{t.name} {t.description}" for t in catalogue.task_types)
        words = [set(_stems(text)) for text in texts]
        common = Counter(word for some in words for word in some)
        self.weights = [{word: 1.0 / common[word] for word in some} for some in words]

    def read(self, instruction: str) -> tuple[list[int], list[list[int]]]:
        """Task types in their order of mention, with "before" and "first" reversing it; and their dependencies.

        A step depends on the earlier steps that its clause names, else on the previous step where it says "it", else
        on none. The last step that a clause names comes first: "mail a summary of the scan" is three steps.
        """
        found: list[int] = []
        needs: dict[int, set[int]] = {}
        held: list[str] = []  # a clause that comes after the next one
        for clause in _clauses(instruction):
            if clause.startswith(("before you", "do not")):
                held = [clause]
                continue
            later = found[-1:] if re.search(r" (first|beforehand)$", clause) else []
            for part in (clause, *held):
                self._add(part, found, needs)
            held = []
            if later and found[-1:] != later:
                earlier, b = found[-1], later[0]
                found.remove(b)
                found.append(b)
                needs[earlier], needs[b] = needs[b] - {earlier}, {earlier}
        types = found or [0]
        place = {t: i for i, t in enumerate(types)}
        return types, [sorted(place[j] for j in needs.get(t, ()) if place[j] < place[t]) for t in types]

    def _add(self, clause: str, found: list[int], needs: dict[int, set[int]]) -> None:
        named = self._match(clause)
        inputs = set(named) & set(found)
        if re.search(r"\b(it|that)\b", clause):
            inputs |= set(found[-1:])
        if re.search(r"\bboth\b", clause):
            inputs |= set(found[-2:])
        for t in reversed([t for t in named if t not in found]):
            needs[t], inputs = inputs, {t}
            found.append(t)

    def _match(self, clause: str) -> list[int]:
        """Types that a clause mentions, in their order."""
        hits = {t: found.start() for t, p in enumerate(self.patterns) if p and (found := p.search(clause))}
        if hits:
            return sorted(hits, key=hits.__getitem__)
        words = set(_stems(clause))
        scores = [sum(weight for word, weight in some.items() if word in words) for some in self.weights]
        best = max(range(len(scores)), key=scores.__getitem__)
        return [best] if scores[best] >= MIN_OVERLAP else []


def expert_examples(
    scenarios: Scenarios, *, source: Literal["rules", "gold"] = "rules", noise: float = 0.0, seed: int = 0
) -> list[dict[str, Any]]:
    """Training data in the source document's format, from the rule-based expert or from the best plans.

    `noise` is the probability with which each node is dropped, gets another type, loses its dependencies, or gets
    another worker: real experts make mistakes.
    """
    plans, rng = read_all(scenarios) if source == "rules" else scenarios, Random(seed)
    catalogue, absent = scenarios.catalogue, _unused(scenarios)
    known = [i for i, t in enumerate(catalogue.task_types) if t.name not in absent]
    workers = [(i, w) for i, w in enumerate(catalogue.workers) if w.name not in absent]
    able = [[i for i, w in workers if w.task_types is None or t.name in w.task_types] for t in catalogue.task_types]
    examples = []
    for instruction, row, links in zip(plans.instructions, plans.types.tolist(), plans.links.tolist(), strict=True):
        types = [rng.choice(known) if rng.random() < noise else t for t in row if t >= 0]
        kept = [i for i in range(len(types)) if rng.random() >= noise] or [0]
        needs = [
            [] if rng.random() < noise else [new for new, j in enumerate(kept) if links[i][j] and j < i] for i in kept
        ]
        ranked = [sorted(able[types[i]], key=lambda w: -(catalogue.workers[w].success_rate or 0.0)) for i in kept]
        chosen = [rng.choice(some) if rng.random() < noise else some[0] for some in ranked if some]
        targets = {"task_types": [types[i] for i in kept], "dependencies": needs, "model_selections": chosen}
        examples.append({"instruction": instruction, "targets": targets})
    return examples


def _unused(scenarios: Scenarios) -> set[str]:
    """The new entries, if none is in use yet: no best plan has a new task type."""
    used = {scenarios.catalogue.task_types[t].name for t in scenarios.types.unique().tolist() if t >= 0}
    return set() if used & set(scenarios.new_entries) else set(scenarios.new_entries)


def _stems(text: str) -> list[str]:
    words = re.findall(r"[a-z]+", text.lower())
    return [re.sub(r"(ings?|ed|es|s|e)$", "", word) for word in words if not STOP_WORDS.match(word)]


def _clauses(instruction: str) -> list[str]:
    parts = re.split(r"[.;:!—]|, then|, and then|, but|,| and then | and | until you ", instruction.lower())
    clauses = (re.sub(r"^(then|next|please|hi)\b,?", "", part.strip()).strip() for part in parts)
    return [clause for clause in clauses if clause and not re.search(r"needed$|do not want|no need", clause)]


def _best(scores: Tensor, legal: Tensor) -> Tensor:
    return torch.where(legal, scores, -torch.inf).argmax(1)


def _all_scores(obs: Obs, by_correction: Mapping[Correction, Tensor | float]) -> Tensor:
    """(n, 6): the given scores, 0 for abort, NEVER for the other corrections."""
    scores = torch.full((len(obs["failed"]), len(Correction)), NEVER, device=obs["failed"].device)
    scores[:, Correction.ABORT] = 0.0
    for correction, value in by_correction.items():
        scores[:, correction] = value
    return scores
