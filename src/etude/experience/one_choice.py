"""`etude.choose`: a task that is one choice, whose outcome is reported later or never."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal

from etude.contracts.arguments import wrong
from etude.contracts.errors import DataError
from etude.contracts.option import CHOICE
from etude.experience.arguments import read_required_name
from etude.experience.chosen import Chosen
from etude.experience.task import Collector, Task, text_in

OF_CHOICE = ("default", "quality_weight", "max_cost_usd", "max_latency_ms", "region", "allowed")
"""Arguments of `Task.decide`; all others are those of `Collector.task`."""


class OneChoice:
    """The task of one choice. It ends with its outcome, or without one when the chosen option is no longer in use."""

    def __init__(self, task: Task) -> None:
        self._task, self._pid = task, os.getpid()
        task.collector.choices[task.id] = task

    @property
    def id(self) -> str:
        """Id of the trajectory, for `etude.feedback`."""
        return self._task.id

    def outcome(
        self,
        *,
        success: bool | None = None,
        cost_usd: float | None = None,
        quality: dict[str, float] | None = None,
        error: str | None = None,
    ) -> bool:
        """Report what happened, once: then the trajectory is published. Whether it was stored."""
        self._task.outcome(success=success, cost_usd=cost_usd, quality=quality, error=error)
        if self._task.collector.choices.pop(self.id, None) is None:
            raise DataError(f"the outcome of {self.id} is reported already: rate it with etude.feedback")
        return self._task.end()

    def feedback(
        self, *, thumbs: Literal["up", "down"] | None = None, stars: int | None = None, comment: str | None = None
    ) -> bool:
        """A rating, now or later."""
        return self._task.collector.feedback(self.id, thumbs=thumbs, stars=stars, comment=comment)

    def __del__(self) -> None:
        if self._pid == os.getpid():  # a forked child has copies of what its parent publishes
            self._task.collector.dropped.put(self.id)


def choose_once(
    collector: Collector, name: str, context: Any, *, options: Sequence[Any], task: str | None, **more: Any
) -> Any:
    """The chosen option, with its `task`."""
    if not collector.problem_of(read_required_name("name", name, such_as="tone")).startswith(CHOICE):
        raise DataError(f"{name!r} is a problem: ask for its decision in a task, by task.decide({name!r}, …)")
    for option in options if isinstance(options, list | tuple) else ():
        if isinstance(option, bool | Enum):
            raise wrong("options", options, "names or mappings: what is returned also says how it was chosen")
    of_choice = {key: more.pop(key) for key in OF_CHOICE if key in more}
    begun = collector.task(text_in(context) if task is None else task, **more)
    with_task = begun.decide(name, context, options=options, **of_choice)
    assert isinstance(with_task, Chosen)
    with_task.task = OneChoice(begun)
    return with_task
