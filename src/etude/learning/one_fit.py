"""What learners have in common that fit in closed form: one update, and no state between updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from etude.learning.run import Evaluated, StopReason


class OneFit:
    """The parts of a `Learner` that do not depend on what is fitted."""

    checkpoint_every, threads, device = 1, 1, torch.device("cpu")
    step = 0

    def __init__(self) -> None:
        self.scores = list[float]()

    @property
    def used(self) -> float:
        return float(self.step)

    def begin(self) -> Evaluated | None:
        return None

    def reason_to_stop(self) -> StopReason | None:
        return StopReason.BUDGET if self.step else None

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def values(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Nothing: a resumed run fits again."""
