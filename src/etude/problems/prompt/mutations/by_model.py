"""A mutation carried out by a language model, with the rules as its check and its fallback.

The model's text is used where it loses nothing of the prompt and adds no variable; else the rules' result is, and the
reason is kept. Anything that answers a text with a text can be the model.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from etude.contracts.errors import EtudeError
from etude.problems.prompt.mutations.constraints import NAME as CONSTRAINTS
from etude.problems.prompt.mutations.decomposition import NAME as DECOMPOSITION
from etude.problems.prompt.mutations.edits import Edit, Mutated, mutated
from etude.problems.prompt.mutations.expansion import NAME as EXPANSION
from etude.problems.prompt.mutations.fallbacks import NAME as FALLBACKS
from etude.problems.prompt.mutations.invariants import violations
from etude.problems.prompt.mutations.prompts import Prompt
from etude.problems.prompt.mutations.reduction import NAME as REDUCTION
from etude.problems.prompt.mutations.rules import mutate
from etude.problems.prompt.mutations.task import task_of

MAX_GROWTH = 4
"""A result may be this many times as long as the prompt, and GROWTH_CHARS longer."""
GROWTH_CHARS = 4_000
TOKEN = re.compile(r"\s+|\w+|[^\w\s]")
WRAPPED = re.compile(r"\A\s*<prompt>[ \t]*\n?(.*?)\n?[ \t]*</prompt>\s*\Z", re.S)

INSTRUCTIONS: Mapping[str, str] = {
    FALLBACKS: "add instructions that say what to do when something is missing, unclear or impossible",
    REDUCTION: (
        "remove politeness, filler, repetition and background that the task does not need, but no instruction, "
        "constraint, number or name"
    ),
    EXPANSION: "add details that a good result needs: what the inputs are, the form of the output, what is good",
    CONSTRAINTS: "add constraints that it lacks, such as format, length, scope or sources, but contradict none",
    DECOMPOSITION: "divide the task into numbered sub-tasks, in the words of the prompt",
}
REQUEST = """\
Rewrite a prompt for a language model. Do not carry the prompt out: change its wording alone.

What to change: {instruction}.

Keep every placeholder (such as {{name}} or ${{NAME}}), tag, code block, link, number, quotation and table exactly as it
is, and add no placeholder. Keep the language and the Markdown of the prompt. Answer with the new prompt between
<prompt> and </prompt>, and with nothing else.

<prompt>
{text}
</prompt>"""

Ask = Callable[[str], str]
"""Sends a text to a language model and returns its answer; EtudeError where there is none."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A language model that carries mutations out."""

    name: str
    ask: Ask


def mutate_by_model(prompt: Prompt, mutation: str, model: Model, *, seed: int = 0) -> Mutated:
    """The model's mutation of the text that instructs; the rules' where it cannot be used, with the reason.

    The model is not asked where the mutation makes no sense by the rules.
    """
    by_rules = mutate(prompt, mutation, seed=seed)
    if not by_rules.changed:
        return by_rules
    task = task_of(prompt, seed=seed)
    target = task.texts[task.target]
    try:
        answer = model.ask(REQUEST.format(instruction=INSTRUCTIONS[mutation], text=target.text))
    except EtudeError as error:
        return replace(by_rules, reason=f"{model.name} gave no answer, so the rules were used: {error}")
    text = _read(answer, target.text)
    edits = [replace(edit, message=target.message, part=target.part) for edit in _edits(target.text, text)]
    found = replace(mutated(prompt, mutation, edits), by=model.name)
    wrong = _wrong(prompt, found, text, target.text)
    if wrong:
        return replace(by_rules, reason=f"the answer of {model.name} was not used, but the rules: {wrong}")
    return found


def _read(answer: str, original: str) -> str:
    """The prompt in an answer, ending as the original does."""
    wrapped = WRAPPED.match(answer)
    text = (wrapped[1] if wrapped else answer).strip()
    body = original.strip()
    start = original.find(body) if body else 0
    return original[:start] + text + original[start + len(body) :]


def _wrong(prompt: Prompt, found: Mutated, text: str, original: str) -> str:
    """Why a result cannot be used; empty where it can."""
    if not found.changed:
        return "it changed nothing"
    if not text.strip():
        return "it is empty"
    if len(text) > MAX_GROWTH * len(original) + GROWTH_CHARS:
        return f"it has {len(text):,} characters, and the prompt {len(original):,}"
    if found.mutation == REDUCTION and len(text) >= len(original):
        return "it is not shorter than the prompt"
    try:
        return "; ".join(violations(prompt, found.prompt)[:3])
    except EtudeError as error:
        return str(error)


def _edits(before: str, after: str) -> Iterator[Edit]:
    """The difference word by word."""
    old, new = TOKEN.findall(before), TOKEN.findall(after)
    starts = [0]
    for token in old:
        starts.append(starts[-1] + len(token))
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield Edit(start=starts[i], removed="".join(old[i:j]), added="".join(new[k:m]))
