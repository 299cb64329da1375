"""Templates of prompts and commands: a subtask in, a text out. A mistake in one is reported when it is read."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from etude.contracts.errors import WorkersError
from etude.contracts.suggestions import closest
from etude.contracts.work import Subtask

Field = Callable[[Subtask], str]


def as_text(output: Any) -> str:
    """An output as a prompt shows it: text as it is, all else as JSON, or as Python shows what JSON cannot."""
    if isinstance(output, str):
        return output
    try:
        return json.dumps(output, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return reprlib.repr(output)


FIELDS: Mapping[str, Field] = {
    "instruction": lambda subtask: subtask.instruction,
    "task_type": lambda subtask: subtask.task_type,
    "description": lambda subtask: subtask.description,
    "inputs": lambda subtask: "\n\n".join(f"Result of {i.task_type}:\n{as_text(i.output)}" for i in subtask.inputs),
    "input": lambda subtask: as_text(subtask.inputs[-1].output) if subtask.inputs else "",
}
"""The variables of a template. `inputs` is all that earlier subtasks made, with headings; `input` the last of it."""


class Template:
    """A text with variables in braces; a brace that is meant is doubled. What is filled in is never read as one."""

    def __init__(self, what: str, text: str, *, more: Iterable[str] = ()) -> None:
        """`what` it is, for error messages; `more` variables, which `render` is given."""
        self._parts = _parsed(what, text, (*FIELDS, *more))
        self.variables = tuple(variable for _, variable in self._parts if variable)

    def render(self, subtask: Subtask, **more: str) -> str:
        filled = more | {"": ""} | {name: FIELDS[name](subtask) for name in self.variables if name not in more}
        return "".join(literal + filled[variable] for literal, variable in self._parts)


def _parsed(what: str, text: str, known: Sequence[str]) -> list[tuple[str, str]]:
    """Literal text and the variable after it, "" where there is none; WorkersError for what is no variable."""
    doubled = "double each brace that is meant: {{ and }}"
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise WorkersError(f"{what} cannot be read ({error}): {doubled}") from error
    for _, variable, spec, conversion in parts:
        if variable is not None and (variable not in known or spec or conversion):
            close = closest(variable, known)
            guess = f"did you mean {{{close}}}? " if close is not None else ""
            shown = variable + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            allowed = ", ".join(f"{{{name}}}" for name in known)
            raise WorkersError(f"{what} has an unknown variable {{{shown}}}: {guess}Known are {allowed}; {doubled}")
    return [(literal, variable or "") for literal, variable, _, _ in parts]
