"""Templates of prompts and commands: a subtask in, a text out. A mistake in one is reported when it is read."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from string import Formatter
from typing import Any

from etude.contracts.errors import WorkersError
from etude.contracts.suggestions import closest
from etude.contracts.work import Fault, Input, Subtask, WorkerError, WorkflowInput

Field = Callable[[Subtask], str]


def as_text(output: Any) -> str:
    """An output as a prompt shows it: text as it is, all else as JSON, or as Python shows what JSON cannot."""
    if isinstance(output, str):
        return output
    try:
        return json.dumps(output, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return reprlib.repr(output)


def input_as_text(given: Input | WorkflowInput) -> str:
    """An input as a prompt shows it; WorkerError for an input of the workflow that is not text."""
    value = given.output if isinstance(given, Input) else given.value
    if isinstance(value, bytes) and given.name:
        raise WorkerError(
            f"the input {given.name!r} is not UTF-8 text: give it to a command, as {{input.{given.name}}} in `command`",
            fault=Fault.WRONG_INPUT,
            cost_usd=0.0,
        )
    return as_text(value)


def _heading(given: Input) -> str:
    return f"Input {given.name}:" if given.name else f"Result of {given.task_type}:"


FIELDS: Mapping[str, Field] = {
    "instruction": lambda subtask: subtask.instruction,
    "task_type": lambda subtask: subtask.task_type,
    "description": lambda subtask: subtask.description,
    "inputs": lambda subtask: "\n\n".join(f"{_heading(i)}\n{input_as_text(i)}" for i in subtask.inputs),
    "input": lambda subtask: input_as_text(subtask.inputs[-1]) if subtask.inputs else "",
    "parameters": lambda subtask: f"Parameters: {as_text(dict(subtask.parameters))}" if subtask.parameters else "",
}
"""The variables of a template. `inputs` is all that a subtask works on, with headings; `input` the last of it."""
INPUT, PARAMETER = "input.", "param."
"""Prefixes of variables: an input of the workflow, and a parameter, by name."""


def workflow_input(subtask: Subtask, name: str) -> WorkflowInput:
    """An input of the workflow by name; WorkerError if there is none."""
    if name in subtask.workflow_inputs:
        return subtask.workflow_inputs[name]
    there = ", ".join(map(repr, subtask.workflow_inputs)) or "none"
    raise WorkerError(
        f"it needs the input {name!r}, and the workflow has {there}: give the workflow an input of this name",
        fault=Fault.WRONG_INPUT,
        cost_usd=0.0,
    )


def parameter(subtask: Subtask, name: str) -> str:
    """A parameter as text; WorkerError if it is not set."""
    if name in subtask.parameters:
        return as_text(subtask.parameters[name])
    raise WorkerError(
        f"its worker uses the parameter {name!r}, which is not set: say it in the instruction, or give it a default",
        fault=Fault.WRONG_INPUT,
        cost_usd=0.0,
    )


def needs_input(*templates: Template | None) -> bool:
    """Whether templates show the input alone: without one, nothing says what is to be done."""
    variables = {name for template in templates if template for name in template.variables}
    return bool(variables & {"input", "input_file"}) and not variables & {"instruction", "inputs"}


class Template:
    """A text with variables in braces; a brace that is meant is doubled. What is filled in is never read as one."""

    def __init__(
        self, what: str, text: str, *, more: Iterable[str] = (), parameters: Collection[str] | None = None
    ) -> None:
        """`what` it is, for error messages; `more` variables, which `render` is given.

        `parameters` are those that subtasks may have; None if that is not known.
        """
        self._parts = _parsed(what, text, (*FIELDS, *more), parameters)
        self.variables = tuple(variable for _, variable in self._parts if variable)

    def render(self, subtask: Subtask, **more: str) -> str:
        if {"instruction", "inputs"} <= {*self.variables}:  # a text that it holds is not shown twice
            inputs = [i for i in subtask.inputs if not i.name or as_text(i.output) not in subtask.instruction]
            more = {"inputs": FIELDS["inputs"](replace(subtask, inputs=tuple(inputs)))} | more
        filled = more | {"": ""} | {name: _value(subtask, name) for name in self.variables if name not in more}
        return "".join(literal + filled[variable] for literal, variable in self._parts)


def _value(subtask: Subtask, variable: str) -> str:
    prefix, dot, name = variable.partition(".")
    if not dot:
        return FIELDS[variable](subtask)
    return parameter(subtask, name) if prefix + dot == PARAMETER else input_as_text(workflow_input(subtask, name))


def _is_named(variable: str, parameters: Collection[str] | None) -> bool:
    """Whether a variable is an input of the workflow, which is not known yet, or a parameter."""
    prefix, dot, name = variable.partition(".")
    if prefix + dot == PARAMETER and parameters is not None:
        return name in parameters
    return prefix + dot in (INPUT, PARAMETER) and name.isidentifier()


def _parsed(what: str, text: str, known: Sequence[str], parameters: Collection[str] | None) -> list[tuple[str, str]]:
    """Literal text and the variable after it, "" where there is none; WorkersError for what is no variable."""
    doubled = "double each brace that is meant: {{ and }}"
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise WorkersError(f"{what} cannot be read ({error}): {doubled}") from error
    for _, variable, spec, conversion in parts:
        if variable is not None and (not (variable in known or _is_named(variable, parameters)) or spec or conversion):
            close = closest(variable, (*known, *(f"{PARAMETER}{name}" for name in parameters or ())))
            guess = f"did you mean {{{close}}}? " if close is not None else ""
            shown = variable + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            named = [f"{PARAMETER}{name}" for name in (("NAME",) if parameters is None else parameters)]
            allowed = ", ".join(f"{{{name}}}" for name in (*known, f"{INPUT}NAME", *named))
            raise WorkersError(f"{what} has an unknown variable {{{shown}}}: {guess}Known are {allowed}; {doubled}")
    return [(literal, variable or "") for literal, variable, _, _ in parts]
