"""One transformer over entity tokens: a draft in, a decision out, by pointing at what there is.

Tokens of the instruction read each other; a token for the workflow and one for each node so far read the instruction
and what stands before them. The last of them decides: it points at a task type or *stop*, at earlier nodes, at a
worker, and picks a correction. Task types and workers are known by the vectors of their descriptions and, those seen
in training, by name as well; votes of similar past queries and live numbers (price, speed, success) add to the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from etude.problems.base import Action, Decision, Evaluation, Obs
from etude.problems.distributions import Threshold, masked, sample_categorical
from etude.problems.workflow.encode import MAX_TOKENS, Surroundings, type_columns
from etude.problems.workflow.grammar import Correction, Rules, Status, at

ERRORS = 8
"""Kinds of error a network tells apart; the first is none."""
LIVE = 5
"""Live numbers of a worker."""
VOTE_FEATURES, MENTION_FEATURES = 4, 3
VOTE_SCALE = 5.0
"""Votes are shares below 1; scores are logits."""


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    """The planner's network."""

    encoder: str = "fast"
    """How text becomes vectors: ngrams, fast, minilm (fine-tuned), minilm-frozen, or an embeddings URL#model."""
    width: Annotated[int, Gt(0)] = 128
    """Width of its tokens."""
    layers: Annotated[int, Ge(1)] = 2
    """Layers over the instruction and the draft."""
    heads: Annotated[int, Ge(1)] = 4
    """Attention heads; they divide the width."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Share of activations dropped while imitating."""
    word_dropout: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Share of the instruction's tokens hidden while imitating."""
    vote_dropout: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Share of examples that must do without the votes of similar past queries while imitating."""
    name_dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of task types and workers known by their description alone while imitating, as new ones are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What reading instructions and the catalogue gives; it serves every step of a plan."""

    layers: list[tuple[Tensor, Tensor]]  # keys and values of each, (n, heads, L, width / heads)
    mask: Tensor  # (n, L) bool: where tokens are
    votes: Tensor  # (n, columns)
    types: Tensor  # (T, d): task types as tokens
    pointers: Tensor  # (T, 2 d): what the deciding token is compared with
    bias: Tensor  # (T,)
    mentioned: Tensor  # (n, T): how strongly any words of the instruction speak of each type
    place: Tensor  # (n, T): and where they stand, from 0 to 1

    def take(self, rows: Tensor) -> Reading:
        layers = [(k[rows], v[rows]) for k, v in self.layers]
        return replace(
            self,
            layers=layers,
            mask=self.mask[rows],
            votes=self.votes[rows],
            mentioned=self.mentioned[rows],
            place=self.place[rows],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Taught:
    """Scores at every step of whole plans, given the steps before. t = 0 … N; at t the first t nodes are known."""

    types: Tensor  # (n, N + 1, T + 1)
    links: Tensor  # (n, N, N): [i, j] that node i depends on j, for all j, later ones too
    workers: Tensor  # (n, N, W)


class PlanPolicy(nn.Module):
    """A Policy of workflow problems. `around` holds what it decides within and is not part of its weights."""

    around: Surroundings

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
        """`reader` gives the instruction's vectors from token ids where these are learned too."""
        super().__init__()
        d = config.width
        self.config, self.nodes, self.reader = config, nodes, reader
        self.text, self.words = nn.Linear(text_width, d), nn.Parameter(0.02 * torch.randn(MAX_TOKENS, d))
        self.places, self.start = nn.Parameter(0.02 * torch.randn(nodes + 1, d)), nn.Parameter(0.02 * torch.randn(d))
        self.type_text = nn.Sequential(nn.Linear(text_width, d), nn.GELU(), nn.Linear(d, d))
        self.worker_text = nn.Sequential(nn.Linear(text_width, d), nn.GELU(), nn.Linear(d, d))
        self.type_names, self.worker_names = _table(known_types, d), _table(known_workers, d)
        self.type_norm, self.worker_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.live, self.budget, self.given = nn.Linear(LIVE, d), _zero(3, d), _zero(d, d)
        self.status, self.error = _embedding(len(Status), d), _embedding(ERRORS, d)
        self.blocks = nn.ModuleList(Block(d, config.heads, config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(d)

        self.type_query, self.type_key = nn.Linear(d, d), nn.Linear(d, d)
        self.type_class = nn.Parameter(torch.randn(max(1, known_types), d) / d**0.5)
        self.type_bias, self.stop = nn.Parameter(torch.zeros(max(1, known_types))), nn.Linear(d, 1)
        self.vote_weight, self.vote_gate = nn.Parameter(torch.tensor([1.0, 1.0, 0.0, 0.0])), _zero(d, VOTE_FEATURES)
        self.word_match, self.type_match = nn.Linear(d, d), nn.Linear(d, d)
        self.mention_gate = _zero(d, MENTION_FEATURES)
        self.link_query, self.link_key = nn.Linear(2 * d, d), nn.Linear(d, d)
        self.link_distance = nn.Parameter(torch.zeros(2 * nodes))
        self.link_vote, self.link_bias = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-1.0))
        self.worker_query, self.worker_key = nn.Linear(2 * d, d), nn.Linear(d, d)
        self.worker_live = _zero(2 * d, LIVE)
        self.correction = _zero(d, len(Correction))
        self.value_head = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, 1))

    @property
    def rules(self) -> Rules:
        return self.around.rules

    def within(self, surroundings: Surroundings) -> PlanPolicy:
        self.around = surroundings
        return self

    # A decision

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Decision:
        h, nodes, reading = self._hidden(obs)
        action, log_prob, _ = self.decide(obs, h, nodes, reading, greedy=greedy, generator=generator)
        return Decision(action=action, log_prob=log_prob, value=self.value_head(h)[:, 0])

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        return self.decide(obs, *self._hidden(obs), greedy=greedy, generator=generator)[0]

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        h, nodes, reading = self._hidden(obs)
        _, log_prob, entropy = self.decide(obs, h, nodes, reading, taken=action)
        return Evaluation(log_prob=log_prob, entropy=entropy, value=self.value_head(h)[:, 0])

    def value(self, obs: Obs) -> Tensor:
        value: Tensor = self.value_head(self._hidden(obs)[0])[:, 0]
        return value

    def observed(self, obs: Obs) -> None:
        """Its inputs have known scales."""

    def decide(
        self,
        obs: Obs,
        h: Tensor,
        nodes: Tensor,
        reading: Reading,
        *,
        taken: Action | None = None,
        greedy: bool = False,
        generator: Generator | None = None,
    ) -> tuple[Action, Tensor, Tensor]:
        """The parts in their order, each masked by those before: action, log-probability and entropy (n,).

        Of a decision that was `taken`, only how probable it is.
        """
        rules = self.rules

        def pick(name: str, scores: Tensor, legal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            log_p = masked(scores, legal).log_softmax(1)
            best = log_p.argmax(1) if greedy else sample_categorical(log_p, generator)
            chosen = best if taken is None else taken[name]
            return chosen, at(log_p, chosen), -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)

        correction, log_prob, entropy = pick("correction", self.correction(h), rules.corrections(obs))
        task_type, lp, e = pick("type", self.type_scores(obs, h, reading), rules.task_types(obs, correction))
        log_prob, entropy = log_prob + lp, entropy + e

        legal = rules.dependencies(obs, task_type)
        scores = masked(self.link_scores(obs, h, nodes, reading, task_type), torch.ones_like(legal))[..., None]
        draw = Threshold().mode(scores) if greedy else Threshold().sample(scores, generator)
        links = (draw > 0) & legal if taken is None else taken["links"]
        log_prob = log_prob + (Threshold().log_prob(scores, links.float()) * legal).sum(1)
        entropy = entropy + (Threshold().entropy(scores) * legal).sum(1)

        scores = self.worker_scores(obs, h, reading, task_type)
        worker, lp, e = pick("worker", scores, rules.workers_for(obs, correction, task_type, links))
        action = {"correction": correction, "type": task_type, "links": links, "worker": worker}
        return action, log_prob + lp, entropy + e

    def _hidden(self, obs: Obs) -> tuple[Tensor, Tensor, Reading]:
        """The deciding token (n, d), the nodes' tokens (n, N, d), and what was read."""
        reading = self.read(obs["instruction"])
        return *self.follow(obs, reading), reading

    def follow(self, obs: Obs, reading: Reading) -> tuple[Tensor, Tensor]:
        """The deciding token (n, d) and the nodes' tokens (n, N, d) of drafts whose instructions were read."""
        h = self._draft(obs, reading)
        return h[torch.arange(len(h), device=h.device), obs["length"]], h[:, 1:]

    # Scores of one decision

    def type_scores(self, obs: Obs, h: Tensor, reading: Reading) -> Tensor:
        """(n, T + 1)."""
        last = torch.where(obs["length"] > 0, at(obs["types"], obs["length"] - 1), -1)
        used = F.one_hot(obs["types"] + 1, self.rules.types + 1).amax(1)[:, 1:]  # (n, T)
        return self._type_scores(h[:, None], last[:, None], used[:, None], reading)[:, 0]

    def link_scores(self, obs: Obs, h: Tensor, nodes: Tensor, reading: Reading, task_type: Tensor) -> Tensor:
        """(n, N)."""
        known = task_type.clamp(max=self.rules.types - 1)
        place = obs["length"].clamp(max=self.nodes - 1)
        return self._link_scores(h[:, None], known[:, None], place[:, None], nodes, obs["types"], reading)[:, 0]

    def worker_scores(self, obs: Obs, h: Tensor, reading: Reading, task_type: Tensor) -> Tensor:
        """(n, W), of who is to do the chosen type, or else the failed node's."""
        own = torch.where(task_type < self.rules.types, task_type, at(obs["types"], obs["failed"]))
        return self._worker_scores(obs, h[:, None], own.clamp(min=0)[:, None], reading)[:, 0]

    # Whole plans at once

    def teach(self, obs: Obs) -> Taught:
        """Scores for every step towards the drafts as they are, which only look at what came before each step."""
        reading = self.read(obs["instruction"])
        h, types = self._draft(obs, reading), obs["types"]
        last = F.pad(types, (1, 0), value=-1)  # (n, N + 1)
        used = F.pad(F.one_hot(types + 1, self.rules.types + 1)[..., 1:].cumsum(1).clamp(max=1), (0, 0, 1, 0))
        known, place = types.clamp(min=0), torch.arange(self.nodes, device=types.device).expand_as(types)
        return Taught(
            types=self._type_scores(h, last, used, reading),
            links=self._link_scores(h[:, :-1], known, place, h[:, 1:], types, reading),
            workers=self._worker_scores(obs, h[:, :-1], known, reading),
        )

    # Tokens

    def read(self, rows: Tensor) -> Reading:
        """Instructions by their rows in the library."""
        library = self.around.library
        mask = library.mask[rows]
        lengths = mask.sum(1)
        longest = int(lengths.max())
        mask, tokens = mask[:, :longest], library.tokens[rows, :longest]
        votes = library.votes[rows]
        vectors = tokens.float() if self.reader is None else self.reader(tokens, mask)
        if self.training:
            hidden = torch.rand(mask.shape, device=mask.device) < self.config.word_dropout
            hidden[:, 0] = False
            mask = mask & ~hidden
            votes = votes * (torch.rand((len(rows), 1), device=votes.device) >= self.config.vote_dropout)
        x = self.text(vectors) + self.words[:longest]  # (n, L, d)
        layers = []
        for block in self.blocks:
            x, keys, values = block(x, mask[:, None, None])
            layers.append((keys, values))
        types, pointers, bias = self._read_types()
        mentioned, place = self._mentions(x, mask, lengths, types)
        return Reading(
            layers=layers,
            mask=mask,
            votes=votes,
            types=types,
            pointers=pointers,
            bias=bias,
            mentioned=mentioned,
            place=place,
        )

    def _mentions(self, x: Tensor, mask: Tensor, long: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """How strongly words (n, L, d) speak of each type, and where: (n, T) each. Plans tend to follow the words."""
        match = self.word_match(self.norm(x)) @ self.type_match(types).T / math.sqrt(self.config.width)  # (n, L, T)
        match = match.masked_fill(~mask[..., None], -1e4)
        where = torch.arange(x.shape[1], device=x.device) / long[:, None].clamp(min=1)  # (n, L)
        mentioned = match.logsumexp(1)
        return mentioned, (where[:, None] @ (match - mentioned[:, None]).exp())[:, 0]

    def _draft(self, obs: Obs, reading: Reading) -> Tensor:
        """(n, N + 1, d): the workflow's token, then each node's, after reading the instruction and those before."""
        n, N = obs["types"].shape
        nodes = reading.types[obs["types"].clamp(min=0)]
        given = self._take_worker(self._worker_keys(obs), obs["workers"])
        nodes = nodes + self.given(given) + self.status(obs["status"])
        # Not the length: every step of a plan that is taught would see where it ends.
        budget = [obs["corrections"] / 8, obs["replans"], (obs["failed"] >= 0)]
        start = self.start + self.error(obs["error"]) + self.budget(torch.stack(budget, 1).float())
        x = torch.cat([start[:, None], nodes], 1) + self.places[: N + 1]
        causal = torch.ones((N + 1, N + 1), dtype=torch.bool, device=x.device).tril()
        seen = torch.cat([reading.mask[:, None].expand(-1, N + 1, -1), causal.expand(n, -1, -1)], 2)  # (n, N+1, L+N+1)
        for block, before in zip(self.blocks, reading.layers, strict=True):
            x, _, _ = block(x, seen[:, None], before)
        h: Tensor = self.norm(x)
        return h

    def _read_types(self) -> tuple[Tensor, Tensor, Tensor]:
        """Task types as tokens (T, d), as what is pointed at (T, 2 d), and their bias (T,)."""
        known = self._known(self.around.type_row)
        row = self.around.type_row.clamp(min=0)
        types = self.type_norm(self.type_text(self.around.type_text) + self.type_names[row] * known)
        pointers = [self.type_key(types) / math.sqrt(self.config.width), self.type_class[row] * known]
        return types, torch.cat(pointers, 1), self.type_bias[row] * known[:, 0]

    def _worker_keys(self, obs: Obs) -> Tensor:
        """(n, W, d)."""
        named = self.worker_names[self.around.worker_row.clamp(min=0)] * self._known(self.around.worker_row)
        keys: Tensor = self.worker_norm(self.worker_text(self.around.worker_text) + named + self.live(_live(obs)))
        return keys

    def _known(self, rows: Tensor) -> Tensor:
        """(…, 1) bool: which may be known by name as well."""
        known = (rows >= 0)[:, None]
        if self.training:
            known = known & (torch.rand(known.shape, device=known.device) >= self.config.name_dropout)
        return known

    # Heads over t steps: h (n, t, d)

    def _type_scores(self, h: Tensor, last: Tensor, used: Tensor, reading: Reading) -> Tensor:
        """(n, t, T + 1) after `last` (n, t), −1 at the start, with `used` (n, t, T) in the plan already."""
        around = self.around
        scores: Tensor = torch.cat([self.type_query(h), h], 2) @ reading.pointers.T + reading.bias
        scores = torch.cat([scores, self.stop(h)], 2)

        for_type = F.pad(type_columns(around, reading.votes), (0, 1))[:, None].expand_as(scores)  # (n, t, T + 1)
        pairs = reading.votes[:, len(self.type_class) :][:, : len(around.pairs)]
        after = (around.pairs[:, 0] == last[..., None]) * pairs[:, None]  # (n, t, pairs)
        next_ = torch.zeros_like(scores).index_add(
            2, around.pairs[:, 1].clamp(min=0), after * (around.pairs[:, 1] >= 0)
        )
        again = F.pad(used, (0, 1)).float()
        features = torch.stack([VOTE_SCALE * for_type * (1 - again), VOTE_SCALE * next_, again, for_type], 3)
        weights: Tensor = self.vote_weight + self.vote_gate(h)  # (n, t, features)
        scores = scores + (features * weights[:, :, None]).sum(3)

        place = reading.place[:, None].expand(-1, last.shape[1], -1)  # (n, t, T)
        here = place.gather(2, last.clamp(min=0)[..., None]) * (last >= 0)[..., None]
        speaks = torch.stack([reading.mentioned[:, None].expand_as(place), place - here, (here - place).relu()], 3)
        gates: Tensor = self.mention_gate(h)
        return scores + F.pad((speaks * gates[:, :, None]).sum(3), (0, 1))

    def _link_scores(
        self, h: Tensor, task_type: Tensor, place: Tensor, nodes: Tensor, types: Tensor, reading: Reading
    ) -> Tensor:
        """(n, t, N): that a node of `task_type` (n, t) at `place` (n, t) depends on each of `nodes` (n, N, d)."""
        around = self.around
        query = self.link_query(torch.cat([h, reading.types[task_type]], 2))
        scores: Tensor = query @ self.link_key(nodes).mT / math.sqrt(nodes.shape[2])
        distance = place[..., None] - torch.arange(self.nodes, device=h.device)
        code = types[:, None] * self.rules.types + task_type[..., None]  # (n, t, N) of source and target
        known = around.links[:, 0] * self.rules.types + around.links[:, 1]
        known = torch.where((around.links >= 0).all(1), known, -1)
        votes = reading.votes[:, reading.votes.shape[1] - len(known) :]
        agree = ((code[..., None] == known) * votes[:, None, None]).sum(3)
        scores = scores + self.link_distance[distance + self.nodes] + self.link_bias
        return scores + VOTE_SCALE * self.link_vote * agree

    def _worker_scores(self, obs: Obs, h: Tensor, task_type: Tensor, reading: Reading) -> Tensor:
        """(n, t, W)."""
        context = torch.cat([h, reading.types[task_type]], 2)
        keys = self.worker_key(self._worker_keys(obs))
        scores: Tensor = self.worker_query(context) @ keys.mT / math.sqrt(keys.shape[2])
        live: Tensor = self.worker_live(context) @ _live(obs).mT
        return scores + live

    def _take_worker(self, keys: Tensor, workers: Tensor) -> Tensor:
        """Keys (n, W, d) of the nodes' workers (n, N); zero where there is no node."""
        index = workers.clamp(min=0)[..., None].expand(-1, -1, keys.shape[2])
        return keys.gather(1, index) * (workers >= 0)[..., None]


class Block(nn.Module):
    """A transformer's layer that gives its keys and values away, so that what was read is read once."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(
        self, x: Tensor, seen: Tensor, before: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (n, S, d) attending to `before` and itself where `seen` (n, 1, S, keys); with its own keys and values."""
        n, S, d = x.shape
        q, k, v = self.project(self.norm_in(x)).view(n, S, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        keys, values = (k, v) if before is None else (torch.cat([before[0], k], 2), torch.cat([before[1], v], 2))
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        x = x + self.dropout(self.merge(mixed.transpose(1, 2).reshape(n, S, d)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_out(x))))), k, v


def _live(obs: Obs) -> Tensor:
    """(n, W, LIVE): price, speed, success so far, availability, quota, each near 0 to 1."""
    numbers = [
        (1e4 * obs["price"]).log1p() / 8,
        obs["latency"].log1p() / 10,
        obs["success"],
        obs["available"].to(obs["price"].dtype),
        obs["calls"].clamp(min=0).log1p().clamp(max=8) / 8,
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
