"""The policy: a small network, the learners that train it, and the decider that `etude.task` asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError
from etude.contracts.policy import SAMPLED
from etude.contracts.ports import Example
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import under
from etude.learning.from_logs import Examples
from etude.learning.logged import Logged, Shards
from etude.learning.logs_run import learn_from_logs
from etude.learning.practise import practise
from etude.learning.requests import LearnRequest
from etude.learning.run import About, PolicyParts, Run
from etude.learning.run_folder import RunFolder
from etude.problems.base import Action, Evaluation, Obs, Sampled
from etude.problems.distributions import sample_categorical
from helpdesk import SPEC
from helpdesk.world import KINDS, WHO, HelpdeskSettings, make_problem


class HelpdeskPolicy(nn.Module):
    """Scores for everybody who may answer; those who tried are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(len(KINDS) + len(WHO), 32), nn.Tanh())
        self.scores, self.worth = nn.Linear(32, len(WHO)), nn.Linear(32, 1)

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        scores = self._masked(obs)
        return {"who": scores.argmax(1) if greedy else sample_categorical(scores, generator)}

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        action = self.choose(obs, greedy=greedy, generator=generator)
        found = self.evaluate(obs, action)
        return Sampled(action=action, log_prob=found.log_prob, value=found.value)

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        log_p = self._masked(obs).log_softmax(1)  # (n, who)
        entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)
        chosen = log_p.gather(1, action["who"][:, None])[:, 0]
        return Evaluation(log_prob=chosen, entropy=entropy, value=self.value(obs))

    def value(self, obs: Obs) -> Tensor:
        worth: Tensor = self.worth(self._read(obs))
        return worth[:, 0]

    def observed(self, obs: Obs) -> None:
        """Nothing to scale: observations are zeros and ones."""

    def _read(self, obs: Obs) -> Tensor:
        read: Tensor = self.body(torch.cat([obs["kind"], obs["tried"]], 1))
        return read

    def _masked(self, obs: Obs) -> Tensor:
        scores: Tensor = self.scores(self._read(obs))
        return scores.masked_fill(~obs["legal"], -torch.inf)


def practise_helpdesk(request: LearnRequest) -> Run:
    settings = request.settings
    about = About(
        problem=SPEC.name,
        method=request.method,
        title=SPEC.name,
        unit="steps",
        budget=f"{settings.run.max_steps:,}",
        score="return",
        settings=settings.sections(*SPEC.sections, "ppo", "run", "health"),
        policy_sections=SPEC.sections,
    )
    problem = make_problem(settings.own(HelpdeskSettings))
    return practise(about, problem, settings.practice(), RunFolder(request.out))


def from_logs(request: LearnRequest) -> Run:
    return learn_from_logs(request, SPEC, read_logs)


def load(artefact: Artefact) -> HelpdeskDecider:
    return HelpdeskDecider(network=_network(artefact), version=artefact.version)


def _network(artefact: Artefact) -> HelpdeskPolicy:
    network = HelpdeskPolicy()
    network.load_state_dict(under("policy.", artefact.tensors()))
    return network.eval()


@dataclass(frozen=True, kw_only=True)
class HelpdeskDecider:
    """`task.decide("helpdesk", {"kind": "billing", "tried": ["bot"]})` asks it who is next."""

    network: HelpdeskPolicy
    version: str
    samples: bool = False
    problem: str = SPEC.name

    def sampled(self) -> HelpdeskDecider:
        """The same policy, sampling: what it logs can be learned from."""
        return replace(self, samples=True, version=f"{self.version}{SAMPLED}")

    @torch.inference_mode()
    def decide(self, request: DecisionRequest) -> Decision:
        obs = to_obs([request.context])
        generator = Generator().manual_seed(request.seed)
        found = self.network.act(obs, greedy=not self.samples, generator=generator)
        action = WHO[int(found.action["who"])]
        propensity = float(found.log_prob.exp()) if self.samples else 1.0
        logged = LoggedDecision(
            problem=self.problem,
            at_ms=request.at_ms,
            context=request.context,
            eligible=[who for who, may in zip(WHO, obs["legal"][0].tolist(), strict=True) if may],
            action=action,
            propensity=propensity,
            policy=self.version,
        )
        return Decision(action=action, propensity=propensity, policy=self.version, logged=(logged,))


def to_obs(contexts: Sequence[Mapping[str, Any]]) -> Obs:
    """Tickets as the network reads them."""
    for context in contexts:
        tried = context.get("tried", ())
        if context.get("kind") not in KINDS or not set(tried) < set(WHO):
            raise DataError(f"the context is {context!r}: expected a kind among {KINDS} and who of {WHO} has tried")
    kind = torch.tensor([[float(context["kind"] == kind) for kind in KINDS] for context in contexts])
    tried = torch.tensor([[who in context.get("tried", ()) for who in WHO] for context in contexts])
    return {"kind": kind, "tried": tried.float(), "legal": ~tried}


def read_logs(artefact: Artefact, inputs: Mapping[str, Any], device: torch.device) -> HelpdeskLogs:
    return HelpdeskLogs(policy=_network(artefact).to(device), device=device)


@dataclass(frozen=True, kw_only=True)
class HelpdeskLogs:
    """A policy, and logged tickets as what it observed and did."""

    policy: HelpdeskPolicy
    device: torch.device
    parts: PolicyParts = field(default_factory=lambda: PolicyParts(tensors={}))

    def shards(self, examples: Examples, *, seed: int = 0, sample: Callable[[], int] = lambda: 0) -> Shards:
        def read() -> Iterator[Logged]:
            for part in examples():
                yield to_logged(part, self.device)

        return read


def to_logged(examples: Sequence[Example], device: torch.device) -> Logged:
    """Trajectories as tensors: a row per decision, in their order."""
    rows = [
        (number, decision)
        for number, example in enumerate(examples)
        for decision in example.trajectory.decisions
        if decision.problem == SPEC.name and decision.propensity is not None
    ]
    contexts = {context: i for i, context in enumerate(sorted({example.context for example in examples}))}
    who = torch.tensor([WHO.index(decision.action) for _, decision in rows], dtype=torch.long, device=device)
    return Logged(
        obs={name: value.to(device) for name, value in to_obs([decision.context for _, decision in rows]).items()},
        action={"who": who},
        log_propensity=torch.tensor([math.log(decision.propensity or 1.0) for _, decision in rows], device=device),
        trajectory=torch.tensor([number for number, _ in rows], dtype=torch.long, device=device),
        reward=torch.tensor([example.reward for example in examples], device=device),
        context=torch.tensor([contexts[example.context] for example in examples], device=device),
        eligible=torch.tensor([math.log(len(decision.eligible)) for _, decision in rows], device=device),
    )
