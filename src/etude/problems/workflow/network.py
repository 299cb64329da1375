"""The planner network, a transformer with pointer heads: drafts in, decisions out.

The tokens of the instruction attend to each other. One token for the workflow and one for each node so far attend to
the instruction and to the tokens before them. The last of them chooses a correction and points at a task type or
*stop*; the token of the node that is added encodes its type, attends to the instruction again, and points at earlier
nodes and at a worker. Task types and workers are encoded by their descriptions and, if they were in the training data,
by a learned name embedding. The similarity of instruction and descriptions, the votes of similar past queries and live
numbers (price, latency, success) are added to the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, cast

import torch
from annotated_types import Ge, Gt, Lt
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from etude.contracts.errors import ConfigError
from etude.problems.base import Action, Evaluation, Obs, Sampled
from etude.problems.distributions import Threshold, masked, sample_categorical
from etude.problems.workflow.attention import Block, Packing, Pair, rotary_angles
from etude.problems.workflow.encode import MAX_TOKENS, KnownNames, PolicyContext, TextReader, type_columns
from etude.problems.workflow.grammar import Correction, Rules, Status, at
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.similarity import SIMILARITIES, WHERE

ERRORS = 8
"""Kinds of error that have an embedding; the first is no error."""
LIVE = 6
"""Number of live features of a worker."""
BUDGETS = 4
"""Number of features of a workflow's used budgets."""
VOTE_FEATURES, MENTION_FEATURES, LINK_FEATURES = 4, 5, 4
MATCH = 32
"""Width of the space in which words are matched with task types."""
FAMILIAR = 5.0
"""Training examples of a task type at which its two similarity weights (familiar, unfamiliar) count equally."""
VOTE_SCALE = 5.0
"""Votes are shares below 1; scores are logits."""


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    """The planner's network: its size, its text encoder and its dropout rates."""

    encoder: str = "fast"
    """How text becomes vectors: ngrams, fast, minilm (fine-tuned), minilm-frozen, or an embeddings URL#model."""
    width: Annotated[int, Gt(0)] = 128
    """Width of the network's tokens."""
    layers: Annotated[int, Ge(1)] = 1
    """Number of transformer layers over the instruction, and over the draft."""
    heads: Annotated[int, Ge(1)] = 4
    """Number of attention heads; they divide the width."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Share of activations dropped while imitating."""
    word_dropout: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Share of the instruction's tokens hidden while imitating."""
    word_noise: Annotated[float, Ge(0)] = 0.7
    """Noise on word vectors while imitating, relative to their norm, so that similar unseen words are understood."""
    vote_dropout: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Share of examples without the votes of similar past queries while imitating."""
    similarity_dropout: Annotated[float, Ge(0), Lt(1)] = 0.3
    """Share of examples without the similarity to familiar task types while imitating."""
    name_dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of task types and workers encoded by their description alone while imitating, as new ones are."""

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ConfigError(
                f"planner.width is {self.width}, which planner.heads, {self.heads}, does not divide into even parts: "
                f"use a multiple of {2 * self.heads}"
            )

    def without_dropout(self) -> PlannerConfig:
        """The same network without dropout and without noise."""
        rates: dict[str, Any] = {f.name: 0.0 for f in fields(self) if f.name.endswith("dropout")}
        return replace(self, word_noise=0.0, **rates)


OF_INSTRUCTIONS = ("mask", "votes", "similarity", "close", "mentioned", "places")
"""Fields of a `Reading` with one row per instruction; the others belong to the catalogue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Encoded instructions and catalogue, computed once for all steps of a plan."""

    layers: list[Pair]  # the instruction's keys and values for each layer
    mask: Tensor  # (n, L) bool: true for tokens
    votes: Tensor  # (n, columns)
    similarity: Tensor  # (n, T, SIMILARITIES + 1): similarity of instruction and types, and 1
    close: Tensor  # (n, 1, 1): 0 where dropout hides the similarity to familiar types
    types: Tensor  # (T, d): task types as tokens
    workers: Tensor  # (W, d): workers without their live features
    pointers: Tensor  # (T, 2 d): the keys that the deciding token is compared with
    bias: Tensor  # (T,)
    named: Tensor  # (T,) bool: types with a name embedding, for which past queries can vote
    familiar: Tensor  # (T,): from 0 for types that were not in the training data to 1 for those frequent in it
    mentioned: Tensor  # (n, T): how strongly the words of the instruction match each type
    places: Tensor  # (n, T, 2): relative places, 0 to 1, of the matching words and of the most similar part

    def take(self, rows: Tensor) -> Reading:
        own = {name: _rows(getattr(self, name), rows) for name in OF_INSTRUCTIONS}
        return replace(self, layers=[(_rows(k, rows), _rows(v, rows)) for k, v in self.layers], **own)

    def spread(self, n: int) -> Reading:
        """Each row n times; of one row without a copy."""
        own = {name: _spread(getattr(self, name), n) for name in OF_INSTRUCTIONS}
        return replace(self, layers=[(_spread(k, n), _spread(v, n)) for k, v in self.layers], **own)

    def put(self, rows: Tensor, other: Reading) -> Reading:
        """This reading with `other` in these rows. Tensors that are long enough are overwritten."""
        missing = max(0, other.mask.shape[1] - self.mask.shape[1])
        spare = self.mask.shape[1] + missing - other.mask.shape[1]
        layers = []
        for mine, new in zip(self.layers, other.layers, strict=True):
            k, v = (F.pad(x, (0, 0, 0, missing)) if missing else x for x in mine)
            k[rows], v[rows] = (F.pad(x, (0, 0, 0, spare)) for x in new)
            layers.append((k, v))
        mask = F.pad(self.mask, (0, missing)).index_copy(0, rows, F.pad(other.mask, (0, spare)))
        own = {name: getattr(self, name).index_copy(0, rows, getattr(other, name)) for name in OF_INSTRUCTIONS[1:]}
        return replace(other, layers=layers, mask=mask, **own)


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftState:
    """Encoded drafts: everything that their next token attends to."""

    reading: Reading
    h: Tensor  # (n, d): the token that decides
    nodes: Tensor  # (n, N, d): the nodes' tokens
    layers: list[Pair]  # the keys and values of the draft's S tokens for each layer
    there: Tensor  # (n, S) bool: which of these tokens exist

    def take(self, rows: Tensor, reading: Reading) -> DraftState:
        """These rows; `reading` is of their instructions."""
        own = {name: _rows(getattr(self, name), rows) for name in ("h", "nodes", "there")}
        layers = [(_rows(k, rows), _rows(v, rows)) for k, v in self.layers]
        return replace(self, reading=reading, layers=layers, **own)

    def with_node(self, length: Tensor, token: Tensor, layers: list[Pair]) -> DraftState:
        """The state with one node more at index `length`: its `token` (n, d), and its keys and values."""
        place = length.clamp(max=self.nodes.shape[1] - 1)[:, None, None].expand(-1, 1, token.shape[1])
        more = [
            (torch.cat([k, new_k], 2), torch.cat([v, new_v], 2))
            for (k, v), (new_k, new_v) in zip(self.layers, layers, strict=True)
        ]
        nodes, there = self.nodes.scatter(1, place, token[:, None]), F.pad(self.there, (0, 1), value=True)
        return replace(self, h=token, nodes=nodes, layers=more, there=there)


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherForcedScores:
    """Scores at every step t = 0 … N of whole plans, given the true steps before it (teacher forcing)."""

    types: Tensor  # (n, N + 1, T + 1)
    links: Tensor  # (n, N, N): [i, j] scores that node i depends on node j, also for later j
    workers: Tensor  # (n, N, W)


class PlanPolicy(nn.Module):
    """A Policy for workflows. Its `context` (catalogue, encoded instructions, memory) is not part of its weights."""

    context: PolicyContext
    type_counts: Tensor  # (known types,): how often each occurs in the training data
    _recent: tuple[tuple[PolicyContext, bool, int], Tensor, Reading] | None = None  # cache key, rows, their reading

    def __init__(
        self,
        config: PlannerConfig,
        *,
        text_width: int,
        known_types: int,
        known_workers: int,
        nodes: int,
        reader: nn.Module | None = None,
    ) -> None:
        """`reader` is the text encoder, from token ids to vectors, where it is fine-tuned."""
        super().__init__()
        d = config.width
        self.config, self.nodes, self.reader = config, nodes, reader
        self.text, self.words = nn.Linear(text_width, d), nn.Parameter(0.02 * torch.randn(MAX_TOKENS, d))
        self.places, self.start = nn.Parameter(0.02 * torch.randn(nodes + 1, d)), nn.Parameter(0.02 * torch.randn(d))
        self.type_text = nn.Sequential(nn.Linear(text_width, d), nn.GELU(), nn.Linear(d, d))
        self.worker_text = nn.Sequential(nn.Linear(text_width, d), nn.GELU(), nn.Linear(d, d))
        self.type_names, self.worker_names = _table(known_types, d), _table(known_workers, d)
        self.type_norm, self.worker_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.live, self.budget, self.given = nn.Linear(LIVE, d), _zero(BUDGETS, d), _zero(d, d)
        self.status, self.error = _embedding(len(Status), d), _embedding(ERRORS, d)
        self.word_norm, self.nearby = nn.LayerNorm(d), nn.Linear(3 * d, d)
        self.readers, self.blocks = (
            nn.ModuleList(Block(d, config.heads, config.dropout) for _ in range(config.layers)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(d)

        self.type_query, self.type_key = nn.Linear(d, d), nn.Linear(d, d)
        self.type_class = nn.Parameter(torch.randn(max(1, known_types), d) / d**0.5)
        self.type_bias, self.stop = nn.Parameter(torch.zeros(max(1, known_types))), nn.Linear(d, 1)
        self.vote_weight, self.vote_gate = nn.Parameter(torch.tensor([1.0, 1.0, 0.0, 0.0])), _zero(d, VOTE_FEATURES)
        self.word_match, self.type_match = nn.Linear(d, MATCH), nn.Linear(d, MATCH)
        self.similarity_gate = _zero(d, 2 * (SIMILARITIES + 1))
        self.register_buffer("type_counts", torch.zeros(max(1, known_types)))
        self.mention_gate, self.link_gate = _zero(d, MENTION_FEATURES), _zero(d, LINK_FEATURES)
        self.link_query, self.link_key = nn.Linear(d, d), nn.Linear(d, d)
        self.link_distance = nn.Parameter(torch.zeros(2 * nodes))
        self.link_vote, self.link_bias = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-1.0))
        self.sees_live = True  # False: it learned with the catalogue's latencies and success rates alone
        self.worker_query, self.worker_key = nn.Linear(2 * d, d), nn.Linear(d, d)
        self.worker_live = _zero(2 * d, LIVE)
        self.correction = _zero(d, len(Correction))
        self.given_value = nn.Sequential(nn.Linear(4 * d, d), nn.GELU(), nn.Linear(d, d))
        self.value_head = nn.Sequential(nn.Linear(2 * d, d), nn.GELU(), nn.Linear(d, 1))

    @property
    def rules(self) -> Rules:
        return self.context.rules

    def with_context(self, policy_context: PolicyContext) -> PlanPolicy:
        self.context = policy_context.to(self.start.device)
        return self

    def view(self, policy_context: PolicyContext) -> PlanPolicy:
        """Another object with the same weights, in this context: any number may decide at once."""
        other = object.__new__(type(self))
        other.__dict__ = vars(self) | {"_recent": None}  # as `copy` does, in a tenth of the time
        return other.with_context(policy_context)

    def count_types(self, types: Tensor) -> None:
        """Count how often each known task type occurs in the plans of the training data; −1 is no node."""
        self.type_counts.copy_(torch.bincount(types[types >= 0], minlength=len(self.type_counts)))

    def train(self, mode: bool = True) -> PlanPolicy:
        self._recent = None
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PlanPolicy:
        """Moves the context to the device of the weights."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self.with_context(self.context) if hasattr(self, "context") else self

    # A decision

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        state = self.encode_drafts(obs, self.read_cached(obs["instruction"]))
        action, log_prob, _ = self.decide(obs, state, greedy=greedy, generator=generator)
        return Sampled(action=action, log_prob=log_prob, value=self._value(obs, state))

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        state = self.encode_drafts(obs, self.read_cached(obs["instruction"]))
        return self.decide(obs, state, greedy=greedy, generator=generator)[0]

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        state, token = self._retrace(obs, action)
        _, log_prob, entropy = self.decide(obs, state, taken=action, token=token)
        return Evaluation(log_prob=log_prob, entropy=entropy, value=self._value(obs, state))

    def value(self, obs: Obs) -> Tensor:
        return self._value(obs, self.encode_drafts(obs, self.read_cached(obs["instruction"])))

    def _value(self, obs: Obs, state: DraftState) -> Tensor:
        """(n,) from the deciding token and from the assigned workers, so that each choice changes the value at once."""
        keys, worker = self._worker_keys(self._live(obs), state.reading), obs["workers"].clamp(min=0)
        types = state.reading.types[obs["types"].clamp(min=0)]
        given = keys.gather(1, worker[..., None].expand(-1, -1, keys.shape[2]))  # (n, N, d)
        planned = (obs["types"] >= 0) & (obs["status"] == Status.PLANNED)
        needs = obs["links"].to(given.dtype) @ state.nodes
        each = self.given_value(torch.cat([state.nodes, types, given, needs], 2)) * planned[..., None]
        value: Tensor = self.value_head(torch.cat([state.h, each.sum(1)], 1))[:, 0]
        return value

    def observed(self, obs: Obs) -> None:
        """Nothing to update: the inputs have known scales."""

    def decide(
        self,
        obs: Obs,
        state: DraftState,
        *,
        taken: Action | None = None,
        token: Tensor | None = None,
        greedy: bool = False,
        generator: Generator | None = None,
    ) -> tuple[Action, Tensor, Tensor]:
        """Action, log-probability and entropy (n,): the parts in order, each masked by those before it.

        The entropy leaves out the links: a bonus on one coin flip per earlier node would teach the policy to link all
        of them. Where the action was `taken` before, with the `token` (n, d) of the node it added, it is only scored.
        """
        rules = self.rules

        def pick(name: str, scores: Tensor, legal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            log_p = masked(scores, legal).log_softmax(1)
            best = log_p.argmax(1) if greedy else sample_categorical(log_p, generator)
            chosen = best if taken is None else taken[name]
            return chosen, at(log_p, chosen), -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)

        correction, log_prob, entropy = pick("correction", self.correction(state.h), rules.corrections(obs))
        task_type, lp, e = pick("type", self.type_scores(obs, state), rules.task_types(obs, correction))
        log_prob, entropy = log_prob + lp, entropy + e
        if token is None:
            token, _ = self.add(obs, state, task_type)

        legal = rules.dependencies(obs, task_type)
        scores = masked(self.link_scores(obs, state, token, task_type), torch.ones_like(legal))[..., None]
        linked = Threshold().mode(scores) if greedy else Threshold().sample(scores, generator)
        links = (linked > 0) & legal if taken is None else taken["links"]
        log_prob = log_prob + (Threshold().log_prob(scores, links.float()) * legal).sum(1)

        scores = self.worker_scores(obs, state, token, task_type)
        worker, lp, e = pick("worker", scores, rules.workers_for(obs, correction, task_type, links))
        action = {"correction": correction, "type": task_type, "links": links, "worker": worker}
        return action, log_prob + lp, entropy + e

    def worker_log_prob(self, obs: Obs, state: DraftState, action: Action) -> Tensor:
        """(n,) log-probability of the action's worker, given its other parts."""
        token, _ = self.add(obs, state, action["type"])
        legal = self.rules.workers_for(obs, action["correction"], action["type"], action["links"])
        scores = self.worker_scores(obs, state, token, action["type"])
        return at(masked(scores, legal).log_softmax(1), action["worker"])

    def encode_drafts(self, obs: Obs, reading: Reading) -> DraftState:
        """The state of drafts, from the `reading` of their instructions."""
        # Reading the maximum back from a GPU would stall it.
        longest = int(obs["length"].max()) if self.rules.device.type == "cpu" else self.rules.nodes
        h, layers = self._draft(obs, reading, longest)
        there = torch.arange(longest + 1, device=h.device) <= obs["length"][:, None]
        here, nodes = torch.arange(len(h), device=h.device), F.pad(h[:, 1:], (0, 0, 0, self.rules.nodes - longest))
        return DraftState(reading=reading, h=h[here, obs["length"]], nodes=nodes, layers=layers, there=there)

    def add(self, obs: Obs, state: DraftState, task_type: Tensor) -> tuple[Tensor, list[Pair]]:
        """The token (n, d) of a new node, with its keys and values; meaningless where the choice adds no node."""
        reading, place = state.reading, (obs["length"] + 1).clamp(max=self.rules.nodes)
        known = task_type.clamp(max=self.rules.types - 1)
        x = (reading.types[known] + self.status.weight[Status.PLANNED] + self.places[place])[:, None]
        seen = F.pad(torch.cat([reading.mask, state.there], 1), (0, 1), value=True)[:, None, None]
        layers = []
        for block, before, own in zip(self.blocks, reading.layers, state.layers, strict=True):
            x, keys, values = block(x, seen, (torch.cat([before[0], own[0]], 2), torch.cat([before[1], own[1]], 2)))
            layers.append((keys, values))
        return self.norm(x[:, 0]), layers

    def _retrace(self, obs: Obs, action: Action) -> tuple[DraftState, Tensor]:
        """The state of drafts before a decision, and the token (n, d) of the node that it added.

        Each instruction and each plan is encoded once: consecutive rows of one plan are prefixes of its last row, and
        attention is causal.
        """
        adds = action["type"] < self.rules.types
        here = (torch.arange(self.rules.nodes, device=adds.device) == obs["length"][:, None]) & adds[:, None]
        grown = obs | {"types": torch.where(here, action["type"][:, None], obs["types"])}
        grown["length"] = obs["length"] + adds
        last, which = _continued(grown)
        distinct, place = obs["instruction"].unique(return_inverse=True)
        reading = self.read(distinct)
        longest = int(grown["length"].max()) if self.rules.device.type == "cpu" else self.rules.nodes
        h, _ = self._draft({name: x[last] for name, x in grown.items()}, reading.take(place[last]), longest)
        nodes = _rows(F.pad(h[:, 1:], (0, 0, 0, self.rules.nodes - longest)), which)
        state = DraftState(
            reading=replace(reading, layers=[]).take(place),
            h=h[which, obs["length"]],
            nodes=nodes,
            layers=[],
            there=torch.ones_like(adds)[:, None],
        )
        return state, h[which, grown["length"]]

    # Scores of one decision

    def type_scores(self, obs: Obs, state: DraftState) -> Tensor:
        """(n, T + 1)."""
        last = torch.where(obs["length"] > 0, at(obs["types"], obs["length"] - 1), -1)
        used = F.one_hot(obs["types"] + 1, self.rules.types + 1).amax(1)[:, 1:]  # (n, T)
        return self._type_scores(state.h[:, None], last[:, None], used[:, None], state.reading)[:, 0]

    def link_scores(self, obs: Obs, state: DraftState, token: Tensor, task_type: Tensor) -> Tensor:
        """(n, N): scores that the node with this `token` (n, d) depends on each node."""
        known, place = task_type.clamp(max=self.rules.types - 1), obs["length"].clamp(max=self.rules.nodes - 1)
        known, place = known[:, None], place[:, None]
        return self._link_scores(token[:, None], known, place, state.nodes, obs["types"], state.reading)[:, 0]

    def worker_scores(self, obs: Obs, state: DraftState, token: Tensor, task_type: Tensor) -> Tensor:
        """(n, W): scores of the workers for the node with this `token`, or else for the failed node."""
        if self.rules.workers == 1:
            return torch.zeros_like(token[:, :1])
        adds = task_type < self.rules.types
        own = torch.where(adds, task_type, at(obs["types"], obs["failed"])).clamp(min=0)
        token = torch.where(adds[:, None], token, state.h)
        return self._worker_scores(obs, token[:, None], own[:, None], state.reading)[:, 0]

    # Whole plans at once

    def teacher_forced_scores(self, obs: Obs) -> TeacherForcedScores:
        """Scores of every step of finished drafts, each computed from the steps before it (teacher forcing)."""
        reading = self.read(obs["instruction"])
        types = obs["types"]  # (n, N)
        h, _ = self._draft(obs, reading, types.shape[1])
        last = F.pad(types, (1, 0), value=-1)  # (n, N + 1)
        used = F.pad(F.one_hot(types + 1, self.rules.types + 1)[..., 1:].cumsum(1).clamp(max=1), (0, 0, 1, 0))
        known, place = types.clamp(min=0), torch.arange(types.shape[1], device=types.device).expand_as(types)
        return TeacherForcedScores(
            types=self._type_scores(h, last, used, reading),
            links=self._link_scores(h[:, 1:], known, place, h[:, 1:], types, reading),
            workers=self._worker_scores(obs, h[:, 1:], known, reading),
        )

    # Tokens

    def read_cached(self, rows: Tensor) -> Reading:
        """As `read`, but each instruction once, and without gradients only rows that changed since the last call.

        A fused optimiser changes weights without changing their version counters, so `train` clears the cache.
        """
        if torch.is_grad_enabled():
            distinct, place = rows.unique(return_inverse=True)
            return self.read(distinct).take(place)
        key = (self.context, torch.is_inference_mode_enabled(), sum(weight._version for weight in self.parameters()))
        before = self._recent
        if before is None or before[0][0] is not key[0] or before[0][1:] != key[1:] or before[1].shape != rows.shape:
            distinct, place = rows.unique(return_inverse=True)
            reading = self.read(distinct).take(place)
        else:
            changed = (rows != before[1]).nonzero()[:, 0]
            reading = before[2].put(changed, self.read(rows[changed])) if len(changed) else before[2]
        self._recent = (key, rows.clone(), reading)
        return reading

    def read(self, rows: Tensor) -> Reading:
        """Encodes the instructions in these rows, and the catalogue."""
        encoded = self.context.encoded
        mask = encoded.mask[rows]
        lengths = mask.sum(1)
        longest = int(lengths.max())
        mask, tokens = mask[:, :longest], encoded.tokens[rows, :longest]
        votes, similarity = encoded.votes[rows], encoded.similarity[rows]
        seen, close = mask, torch.ones((len(rows), 1, 1), dtype=torch.bool, device=mask.device)
        if self.training:
            hidden = torch.rand(mask.shape, device=mask.device) < self.config.word_dropout
            hidden[:, 0] = False
            seen = mask & ~hidden
            votes = votes * (torch.rand((len(rows), 1), device=votes.device) >= self.config.vote_dropout)
            close = close & (torch.rand(close.shape, device=close.device) >= self.config.similarity_dropout)
        words = Packing(seen)
        if self.reader is None:
            vectors = cast(Tensor, encoded.vectors)[words.pack(tokens)].float()  # (words, width)
        else:
            vectors = words.pack(self.reader(tokens, mask))
        if self.training and self.config.word_noise:
            noise = self.config.word_noise * vectors.norm(dim=1, keepdim=True) / vectors.shape[1] ** 0.5
            vectors = vectors + noise * torch.randn_like(vectors)
        x = self.word_norm(self.text(vectors) + self.words[words.place])  # (words, d)
        x = x + F.gelu(self.nearby(words.neighbours(x)))
        rotation = rotary_angles(words.place, self.config.width // self.config.heads)
        for reader in self.readers:
            x = cast(Block, reader).read(x, words, seen[:, None, None], rotation)
        whole = words.unpack(x)
        layers = [cast(Block, block).offer(whole) for block in self.blocks]
        types, pointers, bias, known = self._read_types()
        mentioned, place = self._mentions(whole, seen, lengths, types)
        type_counts = self.type_counts[self.context.type_row.clamp(min=0)]
        named = self.worker_names[self.context.worker_row.clamp(min=0)] * self._known(self.context.worker_row)
        return Reading(
            layers=layers,
            mask=seen,
            votes=votes,
            similarity=F.pad(similarity, (0, 1), value=1.0),
            close=close,
            types=types,
            workers=self.worker_text(self.context.worker_text) + named,
            pointers=pointers,
            bias=bias,
            named=known,
            familiar=known * type_counts / (type_counts + FAMILIAR),
            mentioned=mentioned,
            places=torch.stack([place, similarity[..., WHERE]], 2),
        )

    def _mentions(self, x: Tensor, mask: Tensor, long: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """(n, T) each: how strongly words (n, L, d) match each type, and where. Plans often follow the word order."""
        match = self.type_match(types) @ self.word_match(self.norm(x)).mT / math.sqrt(MATCH)  # (n, T, L)
        match = match.masked_fill(~mask[:, None], -1e4)
        where = torch.arange(x.shape[1], device=x.device) / long[:, None].clamp(min=1)  # (n, L)
        return match.logsumexp(2), (match.softmax(2) @ where[..., None])[..., 0]

    def _draft(self, obs: Obs, reading: Reading, nodes: int) -> tuple[Tensor, list[Pair]]:
        """(n, nodes + 1, d): the workflow's token, then each node's; and the keys and values of each layer.

        A node's token does not encode its worker, because the token itself chooses the worker. The worker that failed
        is encoded in the workflow's token.
        """
        n, N = len(obs["types"]), nodes
        tokens = reading.types[obs["types"][:, :N].clamp(min=0)] + self.status(obs["status"][:, :N])
        failed, attempts = obs["failed"] >= 0, at(obs["attempts"], obs["failed"])
        # Without the length: under teacher forcing, every step would see where the plan ends.
        budget = torch.stack([obs["corrections"] / 8, obs["replans"], failed, attempts * failed / 4], 1).float()
        start = self.start + self.error(obs["error"]) + self.budget(budget)
        if not self.rules.none_failed(obs):
            worker = at(obs["workers"], obs["failed"]).clamp(min=0)
            here = torch.arange(n, device=worker.device)
            start = start + self.given(self._worker_keys(self._live(obs), reading)[here, worker]) * failed[:, None]
        x = torch.cat([start[:, None], tokens], 1) + self.places[: N + 1]
        causal = torch.ones((N + 1, N + 1), dtype=torch.bool, device=x.device).tril()
        seen = torch.cat([reading.mask[:, None].expand(-1, N + 1, -1), causal.expand(n, -1, -1)], 2)  # (n, N+1, L+N+1)
        layers = []
        for block, before in zip(self.blocks, reading.layers, strict=True):
            x, keys, values = block(x, seen[:, None], before)
            layers.append((keys, values))
        return self.norm(x), layers

    def _read_types(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Task types as tokens (T, d), as pointer keys (T, 2 d), their bias (T,) and which have a name embedding."""
        known = self._known(self.context.type_row)
        row = self.context.type_row.clamp(min=0)
        types = self.type_norm(self.type_text(self.context.type_text) + self.type_names[row] * known)
        pointers = [self.type_key(types) / math.sqrt(self.config.width), self.type_class[row] * known]
        return types, torch.cat(pointers, 1), self.type_bias[row] * known[:, 0], known[:, 0]

    def _worker_keys(self, live: Tensor, reading: Reading) -> Tensor:
        """(n, W, d) from what `_live` gives."""
        keys: Tensor = self.worker_norm(reading.workers + self.live(live))
        return keys

    def _live(self, obs: Obs) -> Tensor:
        """(n, W, LIVE): the workers' numbers now; latency and success as in the catalogue if it has only seen those."""
        if self.sees_live:
            return live_numbers(obs)
        usual = self.rules.usual
        return live_numbers(obs | {name: usual[name].expand_as(obs[name]) for name in ("latency", "success")})

    def _known(self, rows: Tensor) -> Tensor:
        """(…, 1) bool: which entries use their name embedding, after name dropout."""
        known = (rows >= 0)[:, None]
        if self.training:
            known = known & (torch.rand(known.shape, device=known.device) >= self.config.name_dropout)
        return known

    # Heads over t steps: h (n, t, d)

    def _type_scores(self, h: Tensor, last: Tensor, used: Tensor, reading: Reading) -> Tensor:
        """(n, t, T + 1): after the type `last` (n, t), −1 at the start, with the types `used` (n, t, T) so far."""
        context = self.context
        scores: Tensor = torch.cat([self.type_query(h), h], 2) @ reading.pointers.T + reading.bias
        scores = torch.cat([scores, self.stop(h)], 2)

        for_type = type_columns(context, reading.votes) * reading.named
        for_type = F.pad(for_type, (0, 1))[:, None].expand_as(scores)  # (n, t, T + 1)
        pairs = reading.votes[:, len(self.type_class) :][:, : len(context.pairs)]
        after = (context.pairs[:, 0] == last[..., None]) * pairs[:, None]  # (n, t, pairs)
        known, target = context.pairs[:, 1] >= 0, context.pairs[:, 1].clamp(min=0)
        next_ = torch.zeros_like(scores).index_add(2, target, after * known)
        next_ = next_ * F.pad(reading.named, (0, 1), value=True)
        again = F.pad(used, (0, 1)).float()
        features = torch.stack([VOTE_SCALE * for_type * (1 - again), VOTE_SCALE * next_, again, for_type], 3)
        weights: Tensor = self.vote_weight + self.vote_gate(h)  # (n, t, features)
        scores = scores + (features @ weights[..., None])[..., 0]

        places = reading.places[:, None].expand(-1, last.shape[1], -1, -1)  # (n, t, T, 2)
        here = places.gather(2, last.clamp(min=0)[..., None, None].expand(-1, -1, 1, 2)) * (last >= 0)[..., None, None]
        mentioned = reading.mentioned[:, None, :, None].expand_as(places[..., :1])
        mentions = torch.cat([mentioned, places - here, (here - places).relu()], 3)
        gates: Tensor = self.mention_gate(h)
        scores = scores + F.pad((mentions @ gates[..., None])[..., 0], (0, 1))

        # (n, t, T) each
        familiar, unfamiliar = (gate @ reading.similarity.mT for gate in self.similarity_gate(h).chunk(2, 2))
        similarity = reading.familiar * reading.close * familiar + (1 - reading.familiar) * unfamiliar
        return scores + F.pad(similarity * (1 - used.float()), (0, 1))

    def _link_scores(
        self, h: Tensor, task_type: Tensor, place: Tensor, nodes: Tensor, types: Tensor, reading: Reading
    ) -> Tensor:
        """(n, t, N): scores that a node of `task_type` (n, t) at index `place` (n, t) depends on `nodes` (n, N, d)."""
        context = self.context
        scores: Tensor = self.link_query(h) @ self.link_key(nodes).mT / math.sqrt(nodes.shape[2])
        distance = place[..., None] - torch.arange(types.shape[1], device=h.device)
        code = types[:, None] * self.rules.types + task_type[..., None]  # (n, t, N) of source and target
        agree = context.votes_for(code, reading.votes)
        scores = scores + self.link_distance[distance + self.nodes] + self.link_bias
        own, others = (_chosen(reading.places, chosen) for chosen in (task_type, types.clamp(min=0)))
        ahead = own[:, :, None] - others[:, None]  # (n, t, N, 2)
        near: Tensor = torch.cat([ahead, ahead.abs()], 3) @ self.link_gate(h)[..., None]  # (n, t, N, 1)
        return scores + VOTE_SCALE * self.link_vote * agree + near[..., 0]

    def _worker_scores(self, obs: Obs, h: Tensor, task_type: Tensor, reading: Reading) -> Tensor:
        """(n, t, W)."""
        context, live = torch.cat([h, reading.types[task_type]], 2), self._live(obs)
        keys = self.worker_key(self._worker_keys(live, reading))
        scores: Tensor = self.worker_query(context) @ keys.mT / math.sqrt(keys.shape[2])
        by_numbers: Tensor = self.worker_live(context) @ live.mT
        return scores + by_numbers


def make_plan_policy(config: PlannerConfig, known: KnownNames, reader: TextReader, limits: Limits) -> PlanPolicy:
    """An untrained policy for the names in its training data."""
    return PlanPolicy(
        config,
        text_width=reader.encoder.width,
        known_types=len(known.task_types),
        known_workers=len(known.workers),
        nodes=limits.max_nodes,
        reader=reader.network and reader.network(config.dropout),
    )


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]; with gradients it uses an embedding, whose backward pass sums whole rows and is faster."""
    if not x.requires_grad:
        return x.index_select(0, rows)
    taken: Tensor = F.embedding(rows, x.flatten(1)).unflatten(1, x.shape[1:])
    return taken


def _spread(x: Tensor, n: int) -> Tensor:
    """Each row n times."""
    return x[:, None].expand(-1, n, *x.shape[1:]).reshape(n * len(x), *x.shape[1:])


def _chosen(x: Tensor, index: Tensor) -> Tensor:
    """x (n, T, k) at index (n, t): (n, t, k)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def _continued(obs: Obs) -> tuple[Tensor, Tensor]:
    """Rows that are no prefix of the next row, and (n,) for each row the index among them of the row that has it."""
    now, later = ({name: x[part] for name, x in obs.items()} for part in (slice(None, -1), slice(1, None)))
    same = (now["failed"] < 0) & (later["failed"] < 0) & (now["length"] <= later["length"])
    for name in ("instruction", "error", "corrections", "replans"):
        same = same & (now[name] == later[name])
    beyond = torch.arange(now["types"].shape[1], device=same.device) >= now["length"][:, None]
    for name in ("types", "status"):
        same = same & ((now[name] == later[name]) | beyond).all(1)
    ends = F.pad(~same, (0, 1), value=True)
    return ends.nonzero()[:, 0], ends.cumsum(0) - ends.long()


def live_numbers(obs: Obs) -> Tensor:
    """(n, W, LIVE): price, latency, success rate, availability, quota, failure at this node; roughly 0 to 1."""
    numbers = [
        (1e4 * obs["price"]).log1p() / 8,
        obs["latency"].log1p() / 10,
        obs["success"],
        obs["available"].to(obs["price"].dtype),
        obs["calls"].clamp(min=0).log1p().clamp(max=8) / 8,
        obs["tried"].to(obs["price"].dtype),
    ]
    return torch.stack(numbers, 2).float()


def _table(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(max(1, rows), width))


def _embedding(rows: int, width: int) -> nn.Embedding:
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=0.02)
    return table


def _zero(width: int, out: int) -> nn.Linear:
    layer = nn.Linear(width, out)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
