"""The sections of etude.yaml that the prompt problem reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """How prompts are read, what is practised on, and how a policy is used."""

    encoder: str = "fast"
    """How text is read: ngrams, ngrams-1536 (any width), fast, minilm, or https://host/v1#model."""
    inputs: Literal["all", "embedding"] = "all"
    """What the policy sees: `all` is sentences, the kind and the features; `embedding` that of the whole prompt."""
    max_mutations: Annotated[int, Ge(1), Le(5)] = 3
    """Maximum number of mutations of one prompt, each at most once."""
    prompts: Annotated[int, Ge(10)] | None = None
    """Generated prompts to learn from, without data; null is 3,000, or 300 for PPO, which needs all their states."""
    noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the noise of rewards in practice."""
    mutation_cost: Annotated[float, Ge(0)] = 0.05
    """Reward taken per mutation."""
    samples: Annotated[int, Ge(1)] = 4
    """With a judge: sequences of mutations per prompt that are compared with the prompt as it is."""
    max_judgements: Annotated[int, Gt(0)] = 20_000
    """With a judge: maximum number of comparisons, each asked in both orders."""


@dataclass(frozen=True, kw_only=True)
class PromptNetworkConfig:
    """The policy and value networks."""

    hidden: Annotated[tuple[Annotated[int, Gt(0)], ...], MinLen(1)] = (256, 256, 128)
    """Widths of the hidden layers of each network."""
    sentence_units: Annotated[int, Gt(0)] = 128
    """Units that read each sentence."""
    embedding_dropout: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Dropout rate of the embeddings of sentences while learning; what else is read of them is never dropped."""
    norm: Literal["none", "layer", "batch"] = "layer"
    """Normalisation before each non-linearity; the document has batch."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Dropout rate of hidden units while learning."""


@dataclass(frozen=True, kw_only=True)
class OutcomesConfig:
    """Learning from the outcomes of mutations."""

    epochs: Annotated[int, Ge(1)] = 16
    """Maximum number of passes over the prompts."""
    minibatch: Annotated[int, Ge(2)] = 128
    """States per gradient step."""
    lr: Annotated[float, Gt(0)] = 1e-3
    """Adam's step size at the start; it decays linearly to a tenth."""
    weight_decay: Annotated[float, Ge(0)] = 0.1
    """Weight decay, separate from the gradients."""


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """The sections of etude.yaml that the prompt problem reads."""

    prompt: PromptConfig = field(default_factory=PromptConfig)
    prompt_network: PromptNetworkConfig = field(default_factory=PromptNetworkConfig)
    prompt_outcomes: OutcomesConfig = field(default_factory=OutcomesConfig)
