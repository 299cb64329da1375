"""What a choice has learned from the rewards of whole tasks: features of contexts in, additions to utilities out.

The logit of an option is its utility divided by a temperature, plus a linear function of the context. Sampling by the
softmax of the logits is sampling by the softmax of `utility + learned` at that temperature, and so the additions are
given in units of utility.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEARNED = "learned"
"""Kind of expectation: what is added to the utility."""


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Weights of the policy and of its value. D features, K known options."""

    log_temperature: Floats  # ()
    weight: Floats  # (D, K)
    bias: Floats  # (K,)
    value_weight: Floats  # (D,) for learning alone
    value_bias: Floats  # ()

    @property
    def temperature(self) -> float:
        return float(np.exp(self.log_temperature))

    def learned(self, features: Floats) -> Floats:
        """(n, K)."""
        found: Floats = self.temperature * (features @ self.weight + self.bias)
        return found


def start(width: int, options: int, temperature: float) -> Logits:
    """The softmax of utilities, with nothing learned."""
    return Logits(
        log_temperature=np.asarray(np.log(temperature)),
        weight=np.zeros((width, options)),
        bias=np.zeros(options),
        value_weight=np.zeros(width),
        value_bias=np.zeros(()),
    )
