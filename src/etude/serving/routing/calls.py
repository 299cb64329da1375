"""One call of a language model: what was decided, which models were asked, and its outcome, as a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter
from typing import Any, Literal

from etude.contracts.decision import LoggedDecision
from etude.contracts.option import CHOICE
from etude.contracts.trajectory import Outcome, Trajectory, Turn
from etude.experience.task import TASK
from etude.serving.keys import Caller
from etude.serving.routing.asked import MAX_TASK_CHARS, Asked
from etude.serving.routing.config import ModelConfig, RoutingConfig
from etude.serving.routing.wires import Answer

AFFINITY = "affinity"
"""Policy of a call whose model was given by its conversation."""


@dataclass(kw_only=True)
class Call:
    """A call in progress."""

    asked: Asked
    caller: Caller
    id: str
    time: datetime
    config: RoutingConfig
    model: str = ""
    """The model that is asked now."""
    propensity: float | None = None
    policy: str | None = None
    fallback: str | None = None
    """Why the policy did not decide; None if it did."""
    kept: bool = True
    """Whether it is stored: not for users who opted out."""
    decisions: list[LoggedDecision] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    tried: dict[str, str] = field(default_factory=dict)
    """Models that failed, with the reason."""
    ended: bool = False
    first_ms: float | None = None
    """Milliseconds from the request of this attempt to the first of its answer."""
    _began: float = field(default_factory=perf_counter)
    _asked_at: float = 0.0

    @property
    def problem(self) -> str:
        return TASK if self.asked.choice is None else f"{CHOICE}{self.asked.choice}"

    @property
    def of_model(self) -> ModelConfig:
        return self.config.models[self.model]

    def ms(self) -> float:
        """Milliseconds since it began."""
        return (perf_counter() - self._began) * 1e3

    def begin(self) -> None:
        """An attempt begins."""
        self._asked_at, self.first_ms = self.ms(), None

    def first(self) -> None:
        """The first of an answer is there."""
        if self.first_ms is None:
            self.first_ms = self.ms() - self._asked_at

    def turn(self, answer: Answer, error: str | None = None) -> None:
        """Note an attempt. What was answered before it failed was paid for."""
        asked_nothing = error is not None and answer.tokens_in is None and not answer.text and not answer.tool_calls
        if not asked_nothing:
            answer.estimate(self.asked.chars)
        action = {
            "operation": self.asked.api,
            "model": self.model,
            "upstream": self.of_model.upstream,
            "stream": self.asked.stream,
            "input_tokens": answer.tokens_in,
            "output_tokens": answer.tokens_out,
            "cached_tokens": answer.tokens_cached or None,
            "estimated": answer.is_estimated or None,
            "first_ms": None if self.first_ms is None else round(self.first_ms, 3),
            "finish_reason": answer.finish,
        }
        self.turns.append(
            Turn(
                at_ms=self._asked_at,
                observation=self._observation() if not self.turns else None,
                action={name: value for name, value in action.items() if value is not None},
                result=self._result(answer),
                error=error,
                cost_usd=0.0 if asked_nothing else answer.cost_usd(self.of_model),
                latency_ms=self.ms() - self._asked_at,
            )
        )

    def trajectory(
        self,
        ended: Literal["done", "failed", "cancelled"] = "done",
        *,
        error: str | None = None,
        answer_id: str | None = None,
    ) -> Trajectory:
        """An answer is not judged yet, so success is unknown; a call without an answer has failed."""
        costs = [turn.cost_usd for turn in self.turns]
        known = [cost for cost in costs if cost is not None]
        asked = self.asked
        about = {
            "source": asked.api,
            "conversation": asked.conversation,
            "response": answer_id,
            "fallback": self.fallback,
        }
        return Trajectory(
            id=self.id,
            time=self.time,
            task=asked.text[-MAX_TASK_CHARS:] if self.config.store_content else "",
            problem=self.problem,
            policy=self.decisions[0].policy if self.decisions else None,
            model=self.model,
            user=asked.user,
            tenant=self.caller.tenant,
            decisions=tuple(self.decisions),
            turns=tuple(self.turns),
            outcome=Outcome(
                success=False if ended == "failed" else None,
                success_by="self" if ended == "failed" else None,
                ended=ended,
                error=error,
                cost_usd=sum(known) if len(known) == len(costs) else None,
                latency_ms=self.ms(),
            ),
            metadata={name: value for name, value in about.items() if value is not None},
        )

    def _observation(self) -> Any:
        if not self.config.store_content or self.asked.api == "embeddings":
            return None
        body = self.asked.body
        given = body.get("input") if self.asked.api == "responses" else body.get("messages")
        if isinstance(given, str):
            return given[-self.config.max_content_chars :] or None
        return _last(given or (), self.config.max_content_chars) or None

    def _result(self, answer: Answer) -> Any:
        if not self.config.store_content or self.asked.api == "embeddings":
            return None
        found: dict[str, Any] = {"content": answer.content()[: self.config.max_content_chars]}
        return found | ({"tool_calls": answer.calls()} if answer.tool_calls else {})


def _last(messages: Sequence[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """The last messages that have room, without images; of the first that has none, its end."""
    kept: list[Mapping[str, Any]] = []
    for message in reversed(messages):
        one = {name: _text_of(value) if name == "content" else value for name, value in message.items()}
        size = len(str(one))
        if size > limit:
            text = one.get("content")
            if isinstance(text, str) and limit:
                kept.append(one | {"content": text[-limit:]})
            break
        kept.append(one)
        limit -= size
    return kept[::-1]


def _text_of(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [
        part if isinstance(part, dict) and isinstance(part.get("text"), str) else {"type": str(_kind(part))}
        for part in content
    ]


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else type(part).__name__
