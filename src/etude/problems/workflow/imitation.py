"""Learning to plan from experts: drafts of whole plans in, a network that would have made them out.

Cross-entropy over task types and workers, over each dependency, and a penalty on cycles of the soft adjacency matrix.
After each epoch the plans for held-out examples decide: the learning rate falls when they stop improving, training ends
when they still do not improve, and the weights that made the best plans stay. Read top to bottom.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, Any
from zlib import crc32

import msgspec
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from torch.nn import functional as F

from etude.learning.checkpoint import load_optimizer, optimizer_tensors, prefixed, under
from etude.learning.compute import descend, one_thread
from etude.learning.run import About, Evaluated, PolicyParts, StopReason, Update
from etude.learning.run_folder import RunFolder
from etude.problems.base import Obs
from etude.problems.distributions import masked
from etude.problems.workflow.decode import TOGETHER, plan_by_beam, plan_greedily, take
from etude.problems.workflow.doubt import CALIBRATION, Calibration, Hinted, fit_calibration, search
from etude.problems.workflow.grammar import NODES
from etude.problems.workflow.hint import costs_of, hint_of, same_as, slip, subtasks_of
from etude.problems.workflow.metrics import score_plans
from etude.problems.workflow.network import PlanPolicy, TeacherForcedScores
from etude.problems.workflow.plan import Plan
from etude.problems.workflow.showcase import read_plans, side_by_side, various, write_plans
from etude.problems.workflow.training_set import TrainingSet


@dataclass(frozen=True, kw_only=True)
class ImitationConfig:
    """Phase 1: learning from expert workflows."""

    batch_size: Annotated[int, Ge(1)] = 32
    """Examples per gradient step."""
    learning_rate: Annotated[float, Gt(0)] = 1e-4
    """Adam's step size for what was trained before, a text transformer."""
    fresh_scale: Annotated[float, Gt(0)] = 10.0
    """Times that for what starts untrained."""
    num_epochs: Annotated[int, Ge(1)] = 50
    """Maximum number of passes over the examples."""
    lambda_dag: Annotated[float, Ge(0)] = 0.3
    """Weight of the penalty on self-loops and cycles."""
    train_data_size: Annotated[int, Ge(1)] | None = None
    """Use this many examples of the file; null is all."""
    synthetic_augmentations: Annotated[int, Ge(0)] = 1000
    """Examples made from the catalogue's descriptions and the plans of the training examples."""
    validation_share: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Share of the examples held out to judge each epoch by."""
    plateau_patience: Annotated[int, Ge(1)] | None = None
    """Epochs without a better score before the learning rate falls; null is half of `early_stop_patience`."""
    plateau_factor: Annotated[float, Gt(0), Lt(1)] = 0.5
    """What is left of it then."""
    early_stop_patience: Annotated[int, Ge(1)] | None = None
    """Epochs without a better score before training ends; null is as many as make 200 gradient steps, at least 2, or 4
    where a text transformer learns along."""
    final_epochs: Annotated[int, Ge(0)] = 1
    """Epochs over all examples, the held-out ones too, from the best weights at the end."""
    average: Annotated[float, Ge(0), Lt(1)] = 0.99
    """Decay of the running mean of the weights that plans are made with."""
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Probability spread over the other choices."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """Decay of the weights at each step."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    """Gradients are scaled down to this norm."""
    ridge: Annotated[float, Gt(0)] = 0.2
    """Smoothness of the memory of past queries."""
    beam: Annotated[int, Ge(1), Le(64)] = 5
    """Drafts followed at once when a plan is made."""


MAX_STALE_STEPS = 200
"""Gradient steps without a better score after which training ends: an epoch of few examples has few of them."""
MAX_CALIBRATED = 1000
"""Maximum number of held-out examples that probabilities are calibrated on: a plan takes about 10 ms."""
MAX_HINTED = 100
"""Maximum number of held-out examples that hints are tried on: each takes two plans for every cost."""
HINT_COSTS = (3.0, 4.0, 6.0, 9.0, 14.0)
"""Costs of a difference from a hint that are tried."""
FIRST, BEST, EXPERT = "after 1 epoch", "best", "expert"
"""Plans that a run shows."""
LOSSES = ("loss", "type_loss", "link_loss", "worker_loss", "dag_loss", "grad_norm")


class Imitation:
    """The algorithm: a policy, its optimiser and the running mean of its weights."""

    def __init__(self, policy: PlanPolicy, config: ImitationConfig) -> None:
        self.policy, self.config = policy, config
        trained = {id(p) for p in policy.reader.parameters()} if policy.reader is not None else set()
        groups = [
            {"params": [p for p in policy.parameters() if (id(p) in trained) == before], "scale": scale}
            for before, scale in ((False, config.fresh_scale), (True, 1.0))
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.mean = {name: value.detach().clone() for name, value in policy.named_parameters()}
        self.steps = 0

    def epoch(
        self, drafts: Obs, *, lr_scale: float, progress: Callable[[float], None] = lambda share: None
    ) -> dict[str, float]:
        """One pass over the drafts in random order; returns mean LOSSES."""
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = c.learning_rate * group["scale"] * lr_scale
        self.policy.train()
        batches, rows = self._batches(drafts), []
        for done, batch in enumerate(batches, start=1):
            rows.append(self._step(trimmed(take(drafts, batch))))
            progress(done / len(batches))
        self.policy.train(False)
        return dict(zip(LOSSES, torch.stack(rows).mean(0).tolist(), strict=True))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The policy with the running mean of its weights."""
        own = {name: value.detach().clone() for name, value in self.policy.named_parameters()}
        self._set(self.mean)
        try:
            yield
        finally:
            self._set(own)

    def restart(self, weights: Mapping[str, Tensor]) -> None:
        """Learn on from these weights, with a fresh memory of gradients."""
        self._set(weights)
        self.mean = {name: value.detach().clone() for name, value in self.policy.named_parameters()}
        self.optimizer.state.clear()
        self.steps = 0

    @torch.no_grad()
    def _set(self, weights: Mapping[str, Tensor]) -> None:
        for name, value in self.policy.named_parameters():
            value.copy_(weights[name])

    def state_dict(self) -> dict[str, Tensor]:
        state = prefixed("policy.", self.policy.state_dict()) | prefixed("mean.", self.mean)
        return state | prefixed("optimizer.", optimizer_tensors(self.optimizer)) | {"steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.policy.load_state_dict(under("policy.", state))
        saved = under("mean.", state)
        self.mean = {name: saved[name].to(value.device) for name, value in self.mean.items()}  # in the same order
        load_optimizer(self.optimizer, under("optimizer.", state))
        self.steps = int(state["steps"])

    def _batches(self, drafts: Obs) -> list[Tensor]:
        """Examples of like length together, so that little of a batch is padding; the batches in random order."""
        lengths = self.policy.context.encoded.mask.sum(1)[drafts["instruction"]]
        order = torch.randperm(len(lengths)).to(lengths.device)
        batches: list[Tensor] = []
        for group in order.split(16 * self.config.batch_size):
            batches += group[lengths[group].argsort(stable=True)].split(self.config.batch_size)
        return [batches[i] for i in torch.randperm(len(batches))]

    def _step(self, drafts: Obs) -> Tensor:
        losses = imitation_loss(self.policy.teacher_forced_scores(drafts), drafts, self.policy, self.config)
        norm = descend(self.optimizer, self.policy, losses[0], max_norm=self.config.max_grad_norm)
        self.steps += 1
        share = max(1 - self.config.average, 1 / (self.steps + 1))
        torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.policy.parameters()], share)
        return torch.stack([*(loss.detach() for loss in losses), norm])


def trimmed(drafts: Obs) -> Obs:
    """Without the nodes that none of the drafts has."""
    longest = int(drafts["length"].max())
    own = {name: value[:, :longest] for name, value in drafts.items() if name in NODES}
    return drafts | own | {"links": drafts["links"][:, :longest, :longest]}


def imitation_loss(
    forced: TeacherForcedScores, drafts: Obs, policy: PlanPolicy, c: ImitationConfig
) -> tuple[Tensor, ...]:
    """The loss, and its parts: types, links, workers, cycles."""
    types, length = drafts["types"], drafts["length"]  # (n, N), (n,)
    T, there = policy.rules.types, types >= 0
    wanted = F.pad(types, (0, 1), value=-1).scatter(1, length[:, None], T)  # (n, N + 1), then −1
    legal = F.pad(drafts["offered"], (0, 1), value=True)[:, None].expand_as(forced.types)
    type_loss = _smoothed(forced.types, legal, wanted, c.label_smoothing)

    earlier = torch.ones(forced.links.shape[1:], dtype=torch.bool, device=types.device).tril(-1) & there[..., None]
    link_loss = forced.links.new_zeros(())
    if earlier.any():
        target = drafts["links"].float()
        link_loss = F.binary_cross_entropy_with_logits(forced.links[earlier], target[earlier])
    able = policy.rules.capable[types.clamp(min=0)] & drafts["available"][:, None]  # (n, N, W)
    worker_loss = _smoothed(forced.workers, able, drafts["workers"], c.label_smoothing)
    both = there[:, None] & there[:, :, None]
    dag = dag_loss(forced.links.sigmoid() * both)
    total = type_loss + link_loss + worker_loss + c.lambda_dag * dag
    return total, type_loss, link_loss, worker_loss, dag


def _smoothed(scores: Tensor, legal: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
    """Mean cross-entropy where `wanted` is not −1 and legal; smoothing spreads over what is legal."""
    index = wanted.clamp(min=0)
    counts = (wanted >= 0) & legal.gather(-1, index[..., None])[..., 0]
    legal = legal | ~legal.any(-1, keepdim=True)  # where nothing is, nothing counts: all will do
    log_p = masked(scores, legal).log_softmax(-1)
    right = log_p.gather(-1, index[..., None])[..., 0].clamp(min=-1e4)
    spread = (log_p.clamp(min=-1e4) * legal).sum(-1) / legal.sum(-1).clamp(min=1)
    loss = -(1 - smoothing) * right - smoothing * spread
    return (loss * counts).sum() / counts.sum().clamp(min=1)


def dag_loss(adjacency: Tensor) -> Tensor:
    """Self-loops and cycles of soft adjacency matrices (n, N, N), a node: tr(e^(A∘A)) − N (Zheng et al., 2018)."""
    nodes = adjacency.shape[1]
    powers: Tensor = torch.linalg.matrix_exp(adjacency**2)
    return (powers.diagonal(dim1=1, dim2=2).sum(1) - nodes).mean() / nodes


class ImitationLearner:
    """Epochs over expert examples; at the end a few over all of them, the held-out ones too, from the best weights."""

    checkpoint_every = 1

    def __init__(
        self,
        about: About,
        policy: PlanPolicy,
        training_set: TrainingSet,
        whole: Callable[[], TrainingSet],
        config: ImitationConfig,
        folder: RunFolder | None,
        *,
        seed: int,
        device: torch.device,
        threads: int = 0,
        parts: PolicyParts | None = None,
    ) -> None:
        """`whole` makes the training set of the final epochs, of which nothing is held out; `folder` keeps plans to
        show."""
        self.about, self.config, self.folder, self.seed, self.device = about, config, folder, seed, device
        self.threads = threads or os.cpu_count() or 1
        self.net, self.training_set, self.whole = policy, training_set, whole
        self.parts = parts or PolicyParts(tensors={})
        policy.with_context(training_set.policy_context.to(device)).to(device).train(False)
        policy.count_types(training_set.drafts["types"])
        self.algorithm = Imitation(policy, config)
        self.step, self.final, self.lr_scale, self.best_scale = 0, 0, 1.0, 1.0
        self.scores: list[float] = []
        self.best: dict[str, Tensor] = {}
        self.calibration: Calibration | None = None

    @property
    def used(self) -> float:
        return self.step / (self.config.num_epochs + self.config.final_epochs)

    def begin(self) -> None:
        return None

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        scale = self.lr_scale
        if self._has_converged():
            if self.final == 0:
                self._begin_final()
            scale = self.best_scale * self.config.plateau_factor * (1 - self.final / self.config.final_epochs)
            self.final += 1
        self.step += 1
        torch.manual_seed(1_000_003 * self.seed + self.step)
        drafts = {name: value.to(self.device) for name, value in self.training_set.drafts.items()}
        metrics = self.algorithm.epoch(drafts, lr_scale=scale, progress=report)
        return metrics | {"lr_scale": scale, "train_loss": metrics["loss"]}

    def _has_converged(self) -> bool:
        """Whether what is left are the final epochs."""
        return self._stale() >= self._patience or len(self.scores) >= self.config.num_epochs

    def _stale(self) -> int:
        """Epochs since the best one."""
        return len(self.scores) - 1 - self.scores.index(max(self.scores)) if self.scores else 0

    @property
    def _patience(self) -> int:
        if self.config.early_stop_patience is not None:
            return self.config.early_stop_patience
        if self.net.reader is not None:
            return 4
        steps = len(self.training_set.drafts["length"]) / self.config.batch_size
        return max(2, round(MAX_STALE_STEPS / steps))

    @property
    def _plateau_patience(self) -> int:
        return self.config.plateau_patience or max(1, self._patience // 2)

    def _begin_final(self) -> None:
        """From the best weights, over all examples; the memory of past queries then has them all too.

        Probabilities are calibrated before: afterwards no example is left that the network has not learned from.
        """
        if self.calibration is None:
            self.algorithm.restart(self.best)
            self._calibrate()
        self.training_set = self.whole()
        self.net.with_context(self.training_set.policy_context.to(self.device))
        self.algorithm.restart(self.best)

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        """Plans for the held-out examples; final epochs have learned from those and are kept without a score."""
        if self.final:
            return Evaluated(score=None, keep=self.final == self.config.final_epochs or force)
        if force and self.best:
            self.algorithm.restart(self.best)
        held_out = self.training_set
        with self.algorithm.averaged():
            drafts = {name: value.to(self.device) for name, value in held_out.validation.items()}
            made = plan_greedily(self.net, drafts, [plan.instruction for plan in held_out.expected])
            score, loss = score_plans(made, held_out.expected), self._validation_loss()
            if not self.scores or score.overall > max(self.scores):
                self.best_scale = self.lr_scale
                self.best = {name: value.detach().clone() for name, value in self.net.named_parameters()}
                self._show(made)
                if not self.config.final_epochs:
                    self._calibrate()
            elif (self._stale() + 1) % self._plateau_patience == 0:
                self.lr_scale *= self.config.plateau_factor
        means = {name: float(getattr(score, name).mean()) for name in ("node_f1", "link_f1", "accuracy")}
        return Evaluated(score=score.overall, metrics={"validation_score": score.overall, "val_loss": loss, **means})

    @torch.no_grad()
    def _validation_loss(self) -> float:
        drafts = {name: value.to(self.device) for name, value in self.training_set.validation_drafts.items()}
        parts = [trimmed(take(drafts, rows)) for rows in torch.arange(len(drafts["length"])).split(256)]
        scores = [self.net.teacher_forced_scores(part) for part in parts]
        losses = [imitation_loss(s, d, self.net, self.config)[0] for s, d in zip(scores, parts, strict=True)]
        return float(torch.stack(losses).mean())

    def _calibrate(self) -> None:
        """Fit the calibration of the planner's probabilities on held-out examples."""
        held_out, instructions = self.training_set.expected[:MAX_CALIBRATED], self.training_set.validation
        drafts = {name: value.to(self.device) for name, value in instructions.items()}
        with one_thread(only=True):
            beams = [
                found
                for rows in torch.arange(len(held_out), device=self.device).split(TOGETHER)
                for found in search(
                    self.net,
                    take(drafts, rows),
                    [held_out[i].instruction for i in rows.tolist()],
                    beam=self.config.beam,
                )
            ]
            hints = [self._try_hints(cost, drafts, held_out[:MAX_HINTED]) for cost in HINT_COSTS]
        self.calibration = msgspec.structs.replace(fit_calibration(beams, held_out), hints=tuple(hints))

    def _try_hints(self, cost: float, drafts: Obs, expected: Sequence[Plan]) -> Hinted:
        """How plans for held-out examples turn out near the experts' plans, and near those with a slip."""
        rules, right = self.net.rules, []
        for row, plan in zip(torch.arange(len(expected), device=self.device).split(1), expected, strict=True):
            own = subtasks_of(rules, plan)
            for given in (own, slip(own, rules.types, Random(crc32(plan.instruction.encode())))):
                hint = hint_of(rules, given, costs_of(cost))
                made = plan_by_beam(self.net, take(drafts, row), plan.instruction, beam=self.config.beam, hint=hint)
                right.append(same_as(rules, made, own))
        kept, mended = (sum(right[k::2]) / len(expected) for k in range(2))
        return Hinted(cost=cost, examples=len(expected), kept=kept, mended=mended)

    def _show(self, made: Sequence[Plan]) -> None:
        """Keep a few validation plans for the report."""
        if self.folder is None:
            return
        rows = various(self.training_set.expected)
        best, expert = ([plans[i] for i in rows] for plans in (made, self.training_set.expected))
        kept = [shown.plans[FIRST] for shown in read_plans(self.folder) if FIRST in shown.plans]
        first = best if self.step == 1 else kept
        before = {FIRST: first} if len(first) == len(rows) else {}  # somebody deleted the file
        write_plans(self.folder, side_by_side({**before, BEST: best, EXPERT: expert}))

    def reason_to_stop(self) -> StopReason | None:
        if not self._has_converged() or self.final < self.config.final_epochs:
            return None
        return StopReason.PLATEAU if self._stale() >= self._patience else StopReason.BUDGET

    def policy(self) -> PolicyParts:
        memory = prefixed("memory.", self.training_set.memory.state_dict())
        details = dict(self.parts.details)
        if self.calibration is not None:
            details[CALIBRATION] = msgspec.to_builtins(self.calibration)
        tensors = dict(self.parts.tensors) | memory
        return replace(self.parts, tensors=tensors, details=details).with_weights(self.weights())

    def weights(self) -> dict[str, Tensor]:
        """The weights that plans are made with."""
        with self.algorithm.averaged():
            return {name: value.detach().clone() for name, value in self.net.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        return self.algorithm.state_dict() | {f"best.{name}": value for name, value in self.best.items()}

    def values(self) -> dict[str, Any]:
        kept = None if self.calibration is None else msgspec.to_builtins(self.calibration)
        return {"final": self.final, "lr_scale": self.lr_scale, "best_scale": self.best_scale, CALIBRATION: kept}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.best = {name: value.to(self.device) for name, value in under("best.", tensors).items()}
        kept = values.get(CALIBRATION)
        self.calibration = None if kept is None else msgspec.convert(kept, Calibration)
        if values["final"]:
            self._begin_final()
        for name in ("final", "lr_scale", "best_scale"):
            setattr(self, name, values[name])
        self.algorithm.load_state_dict(tensors)

    def summary(self) -> dict[str, Any]:
        best = max(range(len(self.scores)), key=self.scores.__getitem__)
        return {"epochs": self.step, "best_epoch": best + 1, "validation_score": self.scores[best]}

    def introduction(self) -> str:
        examples, held_out = len(self.training_set.drafts["length"]), len(self.training_set.expected)
        return f"learning from {examples:,} examples, {held_out:,} held out, on {self.device}"

    def line(self, update: Update) -> str:
        m = update.metrics
        if "node_f1" not in m:
            return f"loss {m['loss']:.3f}  on all examples"
        scores = f"node F1 {m['node_f1']:.3f}  link F1 {m['link_f1']:.3f}  accuracy {m['accuracy']:.3f}"
        return f"loss {m['loss']:.3f}  {scores}"
