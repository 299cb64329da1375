"""The policy and value networks: what is seen of a prompt in, scores of the mutations and of *stop* out.

As in the source document each has 256, 256 and 128 units. There they see an embedding; here what is known besides.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from etude.problems.base import Action, Evaluation, Obs, Sampled
from etude.problems.distributions import masked, sample_categorical
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.reader import ACTIONS, KNOWN, Read
from etude.problems.prompt.sentence_features import NAMES as SENTENCE_NAMES
from etude.problems.prompt.settings import PromptNetworkConfig
from etude.problems.prompt.world import ACTION


class PromptPolicy(nn.Module):
    """Policy and value have a network each, over what one reading of the prompt gives."""

    def __init__(self, width: int, config: PromptNetworkConfig, *, embedding_only: bool = False) -> None:
        super().__init__()
        self.reading = Reading(width, config, embedding_only=embedding_only)
        self.actor = _network(self.reading.width, len(ACTIONS), config)
        self.critic = _network(self.reading.width, 1, config)

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        read = self.reading(obs)
        logits = masked(self.actor(read), obs["legal"])
        action = logits.argmax(1) if greedy else sample_categorical(logits, generator)
        log_prob = logits.log_softmax(1).gather(1, action[:, None])[:, 0]
        return Sampled(action={ACTION: action}, log_prob=log_prob, value=self.critic(read)[:, 0])

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        logits = self.logits(obs)
        return {ACTION: logits.argmax(1) if greedy else sample_categorical(logits, generator)}

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        read = self.reading(obs)
        log_p = masked(self.actor(read), obs["legal"]).log_softmax(1)  # (n, actions)
        entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)
        chosen = log_p.gather(1, action[ACTION][:, None])[:, 0]
        return Evaluation(log_prob=chosen, entropy=entropy, value=self.critic(read)[:, 0])

    def logits(self, obs: Obs) -> Tensor:
        """(n, actions): −inf for what is masked, which is never sampled."""
        return masked(self.scores(obs), obs["legal"])

    def scores(self, obs: Obs) -> Tensor:
        """(n, actions) without the masks."""
        scores: Tensor = self.actor(self.reading(obs))
        return scores

    def scores_and_value(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """(n, actions) and (n,)."""
        read = self.reading(obs)
        return self.actor(read), self.critic(read)[:, 0]

    def probabilities(self, obs: Obs) -> Tensor:
        """(n, actions): exactly 0 for what is masked."""
        return self.logits(obs).softmax(1)

    def value(self, obs: Obs) -> Tensor:
        found: Tensor = self.critic(self.reading(obs))
        return found[:, 0]

    def observed(self, obs: Obs) -> None:
        """Nothing to scale: features were scaled once, to the prompts that are practised on."""


class Reading(nn.Module):
    """What is seen of a prompt, as one vector: (n, width).

    Each sentence is read by itself; of what is found in them the largest and the sum count, so that one sentence is
    noticed in a long prompt. Features are scaled; one that is not known (nan) counts as usual. Embeddings are small
    compared with features, and half dropped while learning: they say more of a sentence than carries over to new ones.
    A policy that sees the embedding of the prompt alone gets it as the only sentence.
    """

    mean: Tensor
    spread: Tensor
    sentence_mean: Tensor
    sentence_spread: Tensor

    def __init__(self, width: int, config: PromptNetworkConfig, *, embedding_only: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(KNOWN)))
        self.register_buffer("spread", torch.ones(len(KNOWN)))
        self.embedding_only, self.width = embedding_only, width
        if not embedding_only:
            self.register_buffer("sentence_mean", torch.zeros(len(SENTENCE_NAMES)))
            self.register_buffer("sentence_spread", torch.ones(len(SENTENCE_NAMES)))
            self.embedding = nn.Dropout(config.embedding_dropout)
            units, both = config.sentence_units, width + len(SENTENCE_NAMES)
            self.sentence = nn.Sequential(
                _linear(both, units), nn.LayerNorm(units), nn.ReLU(), nn.Dropout(config.dropout), _linear(units, units)
            )
            self.width = len(KNOWN) + len(MUTATIONS) + 2 * units

    def fit(self, features: Tensor, sentences: Tensor) -> None:
        """Scale features to those of many prompts (n, features) and of many sentences (n, width + features)."""
        _fit(self.mean, self.spread, features)
        if not self.embedding_only:
            _fit(self.sentence_mean, self.sentence_spread, sentences[:, -len(SENTENCE_NAMES) :])

    def forward(self, obs: Obs) -> Tensor:
        if self.embedding_only:
            return obs["sentences"][:, 0]
        scaled = _scaled(obs["features"], self.mean, self.spread)
        return torch.cat([scaled, obs["done"], self.found(obs["sentences"])], 1)

    def found(self, sentences: Tensor) -> Tensor:
        """(n, L, width + features) to (n, 2 · units); a vector of zeros is no sentence."""
        is_one = sentences.any(2)
        packed = self.sentence(self.inputs(sentences[is_one]))  # (all sentences, units)
        each = packed.new_zeros((*is_one.shape, packed.shape[1])).masked_scatter(is_one[..., None], packed)
        largest = each.masked_fill(~is_one[..., None], -SMALLEST).amax(1).clamp(min=-SMALLEST)
        return torch.cat([largest, each.relu().sum(1) / USUAL], 1)

    def inputs(self, sentences: Tensor) -> Tensor:
        """(sentences, width + features), both as the network takes them."""
        embedding, features = sentences.split([sentences.shape[1] - len(SENTENCE_NAMES), len(SENTENCE_NAMES)], 1)
        quiet = self.embedding(embedding) * QUIET
        return torch.cat([quiet, _scaled(features, self.sentence_mean, self.sentence_spread)], 1)


def as_obs(read: Read) -> Obs:
    return {name: torch.from_numpy(value) for name, value in read.items()}


SMALLEST, USUAL = 5.0, 8.0
"""Minus what a prompt without sentences has as its largest finding; a usual number of sentences."""
QUIET = 0.25
"""Size of the elements of embeddings, compared with that of features."""


def _fit(mean: Tensor, spread: Tensor, features: Tensor) -> None:
    std, average = torch.std_mean(features, 0, correction=0)
    mean.copy_(average)
    spread.copy_(torch.where(std > 1e-6, std, torch.ones_like(std)))


def _scaled(features: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    return ((features - mean) / spread).clamp(-5, 5).nan_to_num(0.0)


def _network(width: int, out: int, config: PromptNetworkConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for units in config.hidden:
        layers.append(_linear(width, units))
        if config.norm != "none":
            layers.append(nn.LayerNorm(units) if config.norm == "layer" else nn.BatchNorm1d(units))
        layers.append(nn.ReLU())
        if config.dropout:
            layers.append(nn.Dropout(config.dropout))
        width = units
    last = _linear(width, out)
    with torch.no_grad():
        last.weight.mul_(0.01)  # nearly uniform at first
    return nn.Sequential(*layers, last)


def _linear(width: int, out: int) -> nn.Linear:
    layer = nn.Linear(width, out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
