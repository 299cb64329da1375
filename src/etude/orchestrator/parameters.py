"""The parameters of a task type: a JSON Schema, filled from an instruction by patterns and by a language model."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from etude.contracts.errors import WorkersError
from etude.contracts.suggestions import nearest
from etude.contracts.work import Fault, WorkerError
from etude.orchestrator.verifiers import SchemaVerifier, parse_json
from etude.orchestrator.workers.callable import NAMES
from etude.orchestrator.workers.openai import OpenAIWorker

MAX_SEARCHED_CHARS = 20_000
"""Maximum number of characters of an instruction in which a pattern is searched."""
WORDS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
CONVERTED: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "boolean": lambda text: WORDS[text.strip().lower()],
    "array": json.loads,
    "object": json.loads,
    "null": json.loads,
}
"""From the text that a pattern matched, by the type in the schema; any other is text."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a subtask of a task type needs besides its worker."""

    input: bool | None = None  # None: as the worker says
    parameters: Parameters | None = None


class Parameters:
    """The parameters that subtasks of one task type take."""

    def __init__(
        self, schema: Mapping[str, Any], *, patterns: Mapping[str, str] = {}, model: OpenAIWorker | None = None
    ) -> None:
        """`schema` is of an object; `patterns` are regular expressions with one group, searched in any case.

        `model` is asked for parameters that no pattern finds. WorkersError says what is wrong with them.
        """
        if schema.get("type") != "object" or not isinstance(schema.get("properties"), Mapping):
            raise WorkersError("parameters are no object: expected {type: object, properties: {count: {…}}}")
        self._verifier = SchemaVerifier(schema)
        self.schema, self.properties, self.model = schema, dict(schema["properties"]), model
        for name in self.properties:
            if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) or name in NAMES:
                problem = "has a meaning of its own" if name in NAMES else "is no name: use letters, digits and _"
                raise WorkersError(f"parameters have {name!r}, which {problem}; rename it")
        self._patterns = {name: _compiled(name, text, self.properties) for name, text in patterns.items()}
        self._defaults = {
            name: of["default"] for name, of in self.properties.items() if isinstance(of, Mapping) and "default" in of
        }

    @property
    def always_set(self) -> frozenset[str]:
        """Parameters that every subtask has: they are required or have a default."""
        return frozenset(self._defaults) | frozenset(self.schema.get("required", ()))

    def found_in(self, instruction: str) -> dict[str, Any]:
        """The values that the patterns find; WorkerError for one that is not of its type."""
        found = {}
        for name, pattern in self._patterns.items():
            match = pattern.search(instruction[:MAX_SEARCHED_CHARS])
            if match and match[1] is not None:
                found[name] = self._converted(name, match[1])
        return found

    def _converted(self, name: str, text: str) -> Any:
        of = self.properties[name]
        types = of.get("type") if isinstance(of, Mapping) else None
        kind = str((types[0] if types else None) if isinstance(types, list) else types)
        try:
            return CONVERTED.get(kind, str)(text)
        except (ValueError, KeyError, RecursionError) as error:
            raise WorkerError(
                f"the parameter {name!r} is {text!r:.80} in the instruction: expected {kind}, say it so",
                fault=Fault.WRONG_INPUT,
                cost_usd=0.0,
            ) from error

    def completed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with the defaults of the others; WorkerError if one is missing or does not match the schema."""
        complete = self._defaults | dict(values)
        missing = [name for name in self.schema.get("required", ()) if name not in complete]
        if missing:
            remedy = self._remedy(missing[0])
            wrong = f"it needs the parameter {missing[0]!r}, and the instruction does not say it: {remedy}"
        elif not (verdict := self._verifier.validated(complete)).ok:
            wrong = f"its parameters do not match their schema, {verdict.reason}: correct the instruction"
        else:
            return complete
        raise WorkerError(wrong, fault=Fault.WRONG_INPUT, cost_usd=0.0)

    def _remedy(self, name: str) -> str:
        pattern = self._patterns.get(name)
        say = f"say it in words that match {pattern.pattern!r}" if pattern else "declare a pattern for it"
        return f"{say}, or give it a default"

    def question(self, instruction: str, task_type: str, description: str) -> str:
        """The prompt for the model."""
        schema = json.dumps(self.schema, ensure_ascii=False)
        return QUESTION.format(instruction=instruction, task_type=task_type, description=description, schema=schema)

    def read_answer(self, answer: Any, cost_usd: float) -> dict[str, Any]:
        """The values in a model's answer; WorkerError, with its cost, for an answer that is no JSON object."""
        try:
            value = parse_json(str(answer))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise WorkerError(
                f"the model that fills its parameters answered {reprlib.repr(answer)}: expected a JSON object",
                fault=Fault.INVALID_OUTPUT,
                cost_usd=cost_usd,
            )
        return {name: value[name] for name in self.properties if value.get(name) is not None}

    async def close(self) -> None:
        """Close the model's worker."""
        if self.model is not None:
            await self.model.close()


QUESTION = """\
You fill in the parameters of one step of a larger task.

The task: {instruction}

The step: {task_type}
{description}

Its parameters, as a JSON Schema: {schema}

Answer with a JSON object alone, with the parameters that the task states. Leave out those that it does not state."""


def _compiled(name: str, text: str, properties: Mapping[str, Any]) -> re.Pattern[str]:
    if name not in properties:
        raise WorkersError(f"{name} is no parameter{nearest(name, properties)}; correct it, or remove its pattern")
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise WorkersError(f"{name} has the pattern {text!r}, which cannot be read: {error}; correct it") from error
    if pattern.groups != 1:
        raise WorkersError(
            f"{name} has the pattern {text!r} with {pattern.groups} groups: expected one, such as 'top (\\d+)'"
        )
    return pattern
