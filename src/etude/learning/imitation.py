"""Learning to plan from experts: drafts of whole plans in, a network that would have made them out.

Cross-entropy over task types and workers, over each dependency, and a penalty on cycles of the soft adjacency matrix.
After each epoch the plans it makes for examples kept aside decide: the learning rate falls when they stop improving,
training ends when they go on not improving, and the weights that made the best ones stay. Read top to bottom.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn
from torch.nn import functional as F

from etude.learning.checkpoint import load_optimizer, optimizer_tensors, under, write_checkpoint
from etude.learning.runs import RunFolder
from etude.learning.showcase import read_plans, side_by_side, various, write_plans
from etude.learning.tracking import Tracker, TrackerName, make_trackers
from etude.problems.base import Obs
from etude.problems.distributions import masked
from etude.problems.workflow.decode import plan_greedily, take
from etude.problems.workflow.grammar import NODES
from etude.problems.workflow.lesson import Lesson
from etude.problems.workflow.metrics import score_plans
from etude.problems.workflow.network import PlanPolicy, Taught
from etude.problems.workflow.plan import Plan


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
    """At most this many passes over the examples."""
    lambda_dag: Annotated[float, Ge(0)] = 0.3
    """Weight of the penalty on self-loops and cycles."""
    train_data_size: Annotated[int, Ge(1)] | None = None
    """Use this many examples of the file; null is all."""
    synthetic_augmentations: Annotated[int, Ge(0)] = 1000
    """Examples made from the catalogue's descriptions and the plans of the training examples."""
    validation_share: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Share of the examples kept aside to judge each epoch by."""
    plateau_patience: Annotated[int, Ge(1)] = 1
    """Epochs without a better score before the learning rate falls."""
    plateau_factor: Annotated[float, Gt(0), Lt(1)] = 0.5
    """What is left of it then."""
    early_stop_patience: Annotated[int, Ge(1)] | None = None
    """Epochs without a better score before training ends; null is 2, or 4 where a text transformer learns along."""
    final_epochs: Annotated[int, Ge(0)] = 1
    """Epochs over all examples, those kept aside too, from the best weights at the end."""
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


FIRST, BEST, EXPERT = "after 1 epoch", "best", "expert"
"""Plans that a run shows."""
LOSSES = ("loss", "type_loss", "link_loss", "worker_loss", "dag_loss", "grad_norm")


class Imitation:
    """The learner: a policy, its optimiser and the running mean of its weights."""

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
        state = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        state |= {f"mean.{name}": value for name, value in self.mean.items()}
        state |= {f"optimizer.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        return state | {"steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.policy.load_state_dict(under("policy.", state))
        saved = under("mean.", state)
        self.mean = {name: saved[name].to(value.device) for name, value in self.mean.items()}  # in the same order
        load_optimizer(self.optimizer, under("optimizer.", state))
        self.steps = int(state["steps"])

    def _batches(self, drafts: Obs) -> list[Tensor]:
        """Examples of like length together, so that little of a batch is padding; the batches in random order."""
        lengths = self.policy.around.library.mask.sum(1)[drafts["instruction"]]
        order = torch.randperm(len(lengths)).to(lengths.device)
        batches: list[Tensor] = []
        for group in order.split(16 * self.config.batch_size):
            batches += group[lengths[group].argsort(stable=True)].split(self.config.batch_size)
        return [batches[i] for i in torch.randperm(len(batches))]

    def _step(self, drafts: Obs) -> Tensor:
        losses = imitation_loss(self.policy.teach(drafts), drafts, self.policy, self.config)
        self.optimizer.zero_grad(set_to_none=True)
        losses[0].backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        self.steps += 1
        share = max(1 - self.config.average, 1 / (self.steps + 1))
        torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.policy.parameters()], share)
        return torch.stack([*(loss.detach() for loss in losses), norm])


def trimmed(drafts: Obs) -> Obs:
    """Without the nodes that none of the drafts has."""
    longest = int(drafts["length"].max())
    own = {name: value[:, :longest] for name, value in drafts.items() if name in NODES}
    return drafts | own | {"links": drafts["links"][:, :longest, :longest]}


def imitation_loss(taught: Taught, drafts: Obs, policy: PlanPolicy, c: ImitationConfig) -> tuple[Tensor, ...]:
    """The loss, and its parts: types, links, workers, cycles."""
    types, length = drafts["types"], drafts["length"]  # (n, N), (n,)
    T, there = policy.rules.types, types >= 0
    wanted = F.pad(types, (0, 1), value=-1).scatter(1, length[:, None], T)  # (n, N + 1), then −1
    legal = F.pad(drafts["offered"], (0, 1), value=True)[:, None].expand_as(taught.types)
    type_loss = _smoothed(taught.types, legal, wanted, c.label_smoothing)

    earlier = torch.ones(taught.links.shape[1:], dtype=torch.bool, device=types.device).tril(-1) & there[..., None]
    link_loss = taught.links.new_zeros(())
    if earlier.any():
        target = drafts["links"].float()
        link_loss = F.binary_cross_entropy_with_logits(taught.links[earlier], target[earlier])
    able = policy.rules.capable[types.clamp(min=0)] & drafts["available"][:, None]  # (n, N, W)
    worker_loss = _smoothed(taught.workers, able, drafts["workers"], c.label_smoothing)
    both = there[:, None] & there[:, :, None]
    dag = dag_loss(taught.links.sigmoid() * both)
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


class StopReason(StrEnum):
    EPOCHS = "epochs"  # the epochs are used up
    EARLY = "early stop"  # the plans for examples kept aside stopped improving


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What one pass did."""

    number: int  # from 1
    wall_s: float
    metrics: Mapping[str, float]
    is_best: bool = False
    is_final: bool = False  # over all examples, those kept aside too: no score
    stopped: StopReason | None = None  # set on the last that was scored


class ImitationTraining:
    """A run of phase 1 in a folder, new or resumed at the start of an epoch."""

    def __init__(
        self,
        policy: PlanPolicy,
        lesson: Lesson,
        whole: Callable[[], Lesson],
        config: ImitationConfig,
        folder: RunFolder,
        settings: Mapping[str, Any],
        *,
        seed: int,
        trackers: Sequence[TrackerName] = (),
        device: torch.device | str = "cpu",
        threads: int = 0,
    ) -> None:
        """`whole` makes the lesson of the final epochs, in which nothing is kept aside."""
        self.threads = threads or os.cpu_count() or 1
        self.policy, self.lesson, self.whole, self.config, self.folder = policy, lesson, whole, config, folder
        self.device, self.seed, self.trackers = torch.device(device), seed, trackers
        policy.within(lesson.surroundings.to(self.device)).to(self.device).train(False)
        policy.meet(lesson.drafts["types"])
        self.learner = Imitation(policy, config)
        self.number, self.wall_s, self.lr_scale, self.best_scale = 0, 0.0, 1.0, 1.0
        self.scores: list[float] = []
        self.stopped: StopReason | None = None
        folder.open(settings)
        self.resumed = self._restore()

    @property
    def step(self) -> int:
        return self.number

    @property
    def saved_at(self) -> int:
        """The last epoch that need not be made again."""
        return len(self.scores)

    def epochs(self, progress: Callable[[float], None] = lambda share: None) -> Iterator[Epoch]:
        """Train to the end; one item an epoch. `progress` hears the share of an epoch that is done."""
        if self.folder.summary() is not None:
            return
        trackers = make_trackers(self.folder.path, self.trackers, resume_step=self.number)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            while self.stopped is None:
                yield self._log(trackers, self._one(progress))
            if self.config.final_epochs and not self._skip_finished():
                yield from (self._log(trackers, epoch) for epoch in self._finally(progress))
            best = max(range(len(self.scores)), key=self.scores.__getitem__)
            self.folder.finish(
                {
                    "stopped": self.stopped,
                    "epochs": self.number,
                    "wall_s": self.wall_s,
                    "best_epoch": best + 1,
                    "validation_score": self.scores[best],
                }
            )
        finally:
            torch.set_num_threads(threads)
            for tracker in trackers:
                tracker.close()

    def _one(self, progress: Callable[[float], None]) -> Epoch:
        """Learn, then be examined."""
        began = time.perf_counter()
        metrics = self._pass(self.lesson, self.lr_scale, progress)
        with self.learner.averaged():
            exam = {name: value.to(self.device) for name, value in self.lesson.exam.items()}
            made = plan_greedily(self.policy, exam, [plan.instruction for plan in self.lesson.wanted])
            score = score_plans(made, self.lesson.wanted)
            is_best = not self.scores or score.overall > max(self.scores)
            self.scores.append(score.overall)
            if is_best:
                self.best_scale = self.lr_scale
                self._save_best(self.lesson)
                self._show(made)
        metrics |= {"validation_score": score.overall, "node_f1": float(score.node_f1.mean())}
        metrics |= {"link_f1": float(score.link_f1.mean()), "accuracy": float(score.accuracy.mean())}
        stale = len(self.scores) - 1 - self.scores.index(max(self.scores))
        if stale and stale % self.config.plateau_patience == 0:
            self.lr_scale *= self.config.plateau_factor
        if stale >= (self.config.early_stop_patience or (2 if self.policy.reader is None else 4)):
            self.stopped = StopReason.EARLY
        elif self.number >= self.config.num_epochs:
            self.stopped = StopReason.EPOCHS
        self.wall_s += time.perf_counter() - began
        self._save()
        return Epoch(number=self.number, wall_s=self.wall_s, metrics=metrics, is_best=is_best, stopped=self.stopped)

    def _finally(self, progress: Callable[[float], None]) -> Iterator[Epoch]:
        """From the best weights over all examples, gently; the memory of past queries has them all then too."""
        began = time.perf_counter()
        lesson = self.whole()
        tensors, _ = self.folder.best_policy("workflow")
        self.policy.load_state_dict(under("policy.", tensors))
        self.policy.within(lesson.surroundings.to(self.device))
        self.learner.restart({name: value.detach().clone() for name, value in self.policy.named_parameters()})
        for k in range(self.config.final_epochs):
            gentle = self.best_scale * self.config.plateau_factor * (1 - k / self.config.final_epochs)
            metrics = self._pass(lesson, gentle, progress)
            self.wall_s, began = self.wall_s + time.perf_counter() - began, time.perf_counter()
            yield Epoch(number=self.number, wall_s=self.wall_s, metrics=metrics, is_final=True)
        with self.learner.averaged():
            self._save_best(lesson, is_final=True)

    def _skip_finished(self) -> bool:
        """Whether the final epochs are behind this run already: it was ended before it could say so."""
        manifest = self.folder.best_policy("workflow")[1]
        self.number = max(self.number, manifest["step"]) if manifest["final"] else self.number
        return bool(manifest["final"])

    def _pass(self, lesson: Lesson, lr_scale: float, progress: Callable[[float], None]) -> dict[str, float]:
        self.number += 1
        torch.manual_seed(1_000_003 * self.seed + self.number)
        drafts = {name: value.to(self.device) for name, value in lesson.drafts.items()}
        return self.learner.epoch(drafts, lr_scale=lr_scale, progress=progress) | {"lr_scale": lr_scale}

    def _log(self, trackers: Sequence[Tracker], epoch: Epoch) -> Epoch:
        for tracker in trackers:
            tracker.log(epoch.number, epoch.metrics)
        return epoch

    def _save_best(self, lesson: Lesson, *, is_final: bool = False) -> None:
        tensors = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        tensors |= {f"memory.{name}": value for name, value in lesson.memory.state_dict().items()}
        meta = {"problem": "workflow", "final": is_final}
        write_checkpoint(self.folder.best, step=self.number, tensors=tensors, meta=meta, keep=1)

    def _show(self, made: Sequence[Plan]) -> None:
        """Keep a few plans of the exam for the report; the final epochs, which learn from its answers, make none."""
        rows = various(self.lesson.wanted)
        best, expert = ([plans[i] for i in rows] for plans in (made, self.lesson.wanted))
        kept = [shown.plans[FIRST] for shown in read_plans(self.folder) if FIRST in shown.plans]
        first = best if self.number == 1 else kept
        before = {FIRST: first} if len(first) == len(rows) else {}  # somebody deleted the file
        write_plans(self.folder, side_by_side({**before, BEST: best, EXPERT: expert}))

    def _save(self) -> None:
        meta = {
            "problem": "workflow",
            "wall_s": self.wall_s,
            "lr_scale": self.lr_scale,
            "best_scale": self.best_scale,
            "scores": self.scores,
            "stopped": self.stopped,
        }
        tensors = self.learner.state_dict()
        write_checkpoint(self.folder.checkpoints, step=self.number, tensors=tensors, meta=meta, keep=2)

    def _restore(self) -> bool:
        saved = self.folder.latest("workflow")
        if saved is None:
            return False
        tensors, meta = saved
        self.learner.load_state_dict(tensors)
        self.number, self.wall_s, self.lr_scale = meta["step"], meta["wall_s"], meta["lr_scale"]
        self.scores, self.best_scale = meta["scores"], meta["best_scale"]
        self.stopped = StopReason(meta["stopped"]) if meta["stopped"] else None
        return True
