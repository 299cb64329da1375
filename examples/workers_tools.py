"""Functions that examples/workers.yaml names: a worker and a verifier."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from etude.contracts.work import Input


def frequent(inputs: Sequence[Input], count: int) -> list[str]:
    """The longer words that stand most often in what earlier subtasks made, or in the inputs of the workflow."""
    text = " ".join(str(made.output) for made in inputs)
    return [word for word, _ in Counter(re.findall(r"\w{4,}", text.lower())).most_common(count)]


def differ(output: list[str]) -> tuple[bool, str]:
    """Whether no word stands there twice."""
    return len(set(output)) == len(output), "a word stands there twice"
