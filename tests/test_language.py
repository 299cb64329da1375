"""Plain words: terms that newcomers cannot search for stay out of code, docs and tests.

`python -m tests.test_language [PATH …]` prints every such term with its file, its line and what to write instead;
with `--files`, the files alone.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "docs", "examples", "benchmarks", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
ITSELF = "tests/test_language.py"
CHECKED = {".py", ".md", ".yaml"}

NOUNS = (
    "workflow|query|node|decision|call|task|subtask|second|minute|request|step|episode|row|example|line|text|agent|"
    "environment|trajectory|event|epoch|update|sentence|token|worker|run|policy|item|page|batch|entry|record|message"
)
UNITS = r"USD|cents?|dollars?|ms|µs|seconds|milliseconds|microseconds|minutes|MB|KB|bytes|points?"
GLUE = (
    "of|is|are|was|were|be|as|to|in|on|for|with|without|within|inside|into|by|from|than|at|about|after|before|between|"
    "or|and|but|not|that|which|who|has|have|gives?|makes?|a|an"
)

PROSE: dict[str, str] = {
    r"\bluck(y|ily)?\b|\bby lot\b|\bdraw(s|n|ing)? (a lot|lots)\b": "sample, at random, rng",
    r"\baside\b(?! from\b)": "held out",
    r"\bwho(ever)? logged\b": "the behaviour policy",
    r"\banew\b": "again, re-…",
    r"\bbeside\b(?! the point\b)": "compared with, next to",
    r"\btold\b": "reported, or what the message says",
    r"\bst(and|ands|ood|anding) in lines? ": "is on line …",
    r"\bnobody\b": "no worker, no one, no implementation for worker 'x'",
    rf"\b({UNITS}) an? ({NOUNS})\b": "per workflow, per query, …",
    rf"\bone (?!of\b)((?!({GLUE})\b)[\w/-]+ ){{0,3}}an? ({NOUNS})\b": "one … per line, per update, …",
    r"\w, an? (workflow|query|call|request|trajectory)(?=[.\")])": "per workflow, per query, …",
    r"\bof whom nothing\b": "users who opted out",
    r"\bat most so many\b": "maximum number of …",
    r"\b(and|then) leaves?\.": "exit",
    r"\bchanged? (their|his|her|its) mind\b": "undo an earlier …",
    r"\bhand(s|ed|ing)? over\b": "publish",
    r"\bt(ake|akes|ook|aking) in\b(?! (order|turns?|total|time|parallel|place|between|one|an?)\b)": "ingest, read, add",
    r"(?<!\bfar\s)\bapart\b(?! from\b)": "isolated, separate, without",
    r"\bsayings?\b": "ratings",
    r"\bgone on\b|\b(go|goes|going|went) on from\b": "resumed, continue from",
    r"\bsurroundings\b": "context",
    r"\bdeliberation\b": "decision session",
    r"\b(stubborn|praised)\b": "retry only, by reputation",
    r"\bdear(er|est)?\b(?! (Sir|Madam))": "expensive",
    r"\b(exams?|lessons?)\b": "validation, training set",
    r"\bnone of ours\b": "unknown …",
    r"\bwhat (becomes|became|comes|came) of\b": "the outcome",
}
"""What comments, docstrings, messages and pages say instead."""

PARTS: dict[str, str] = {
    "luck": "rng",
    "lot": "sample",
    "aside": "held_out",
    "anew": "again",
    "beside": "compared_with, next_to",
    "told": "reported",
    "nobody": "no_worker, no_one",
    "apart": "isolated, separate",
    "deliberation": "DecisionSession",
    "thinking": "deciding",
    "surroundings": "context",
    "sayings": "ratings",
    "stubborn": "retry_only",
    "patient": "retry_then_switch",
    "praised": "by_reputation",
    "praise": "by_reputation",
    "dear": "expensive",
    "dearer": "more_expensive",
    "dearest": "most_expensive",
    "lesson": "training_set",
    "lessons": "training_sets",
    "exam": "validation",
    "exams": "validations",
    "hacking": "reward_checks",
    "LEAST": "MIN_…",
    "MOST": "MAX_…",
    "FEWEST": "MIN_…",
    "LONGEST": "MAX_…",
    "SHORTEST": "MIN_…",
}
"""Parts of identifiers, as `_` and capitals divide them; those in capitals only as parts of constants."""

NAMES: dict[str, str] = {
    "Said": "Rating",
    "Beginning": "PretrainedPlanner",
    "Course": "ExampleSets",
    "Day": "EpisodeConditions",
    "Story": "TrajectoryDetail",
    "Found": "Matches",
    "Told": "what the thing is",
    "Kept": "what the thing is",
}
"""Whole identifiers."""

ATTRIBUTES: dict[str, str] = {
    "within": "with_context",
    "around": "context",
    "_around": "_context",
    "spoken": "ratings",
    "mind": "session",
}
"""Whole identifiers, as attributes, functions and methods; as variables they are plain."""

DATA = ("src/etude/problems/workflow/office/phrases.py", "src/etude/experience/redaction/")
"""Files whose strings are data (simulated instructions, word lists), not words of ours."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    path: str
    line: int
    term: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.term!r}: {self.instead}"


def violations(path: Path) -> Iterator[Violation]:
    name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
    found = _of_python(name, text) if path.suffix == ".py" else _of_page(text)
    for line, term, instead in found:
        yield Violation(path=name, line=line, term=term, instead=instead)


Hit = tuple[int, str, str]


def _of_page(text: str) -> Iterator[Hit]:
    """Code spans and blocks of code are held to their own files."""
    prose = re.sub(r"^```.*?^```", _blank, text, flags=re.M | re.S)
    yield from _of_prose(re.sub(r"`[^`\n]*`", _blank, prose), 1)


def _of_python(name: str, text: str) -> Iterator[Hit]:
    is_test, is_data = name.startswith("tests/"), name.startswith(DATA)
    before = tokenize.TokenInfo(tokenize.NEWLINE, "", (0, 0), (0, 0), "")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        starts_statement = before.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)
        if token.type == tokenize.NAME:
            yield from _of_name(token.string, token.start[0])
            if before.string in (".", "def") and token.string in ATTRIBUTES:
                yield token.start[0], token.string, ATTRIBUTES[token.string]
        elif token.type == tokenize.COMMENT:
            yield from _of_prose(token.string, token.start[0])
        elif token.type == tokenize.STRING and (starts_statement or not (is_test or is_data)):
            yield from _of_prose(re.sub(r"`[^`\n]*`|\{[^{}]*\}", _blank, token.string), token.start[0])
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token


def _blank(code: re.Match[str]) -> str:
    """A word of no meaning in place of code, on as many lines."""
    return "x" + "\n" * code[0].count("\n")


def _of_prose(text: str, first_line: int) -> Iterator[Hit]:
    text = re.sub(r"\btell(s|ing)?(\s+\S+){0,4}?\s+apart\b", _blank, text)
    for pattern, instead in PROSE.items():
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, re.I | re.M):
            yield first_line + text.count("\n", 0, match.start()), " ".join(match[0].split()), instead


def _of_name(name: str, line: int) -> Iterator[Hit]:
    if name in NAMES:
        yield line, name, NAMES[name]
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    for part in parts:
        instead = PARTS.get(part if part.isupper() and part in PARTS else part.lower())
        if instead and not (part.lower() == "apart" and {"far", "tell", "from"} & set(parts)):
            yield line, name, instead


@cache
def checked_files() -> tuple[Path, ...]:
    """In a fixed order; without caches and results."""
    inside = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    return tuple(
        path
        for path in (*(ROOT / page for page in PAGES), *inside)
        if path.suffix in CHECKED and path.is_file() and path != ROOT / ITSELF and "__pycache__" not in path.parts
    )


@pytest.mark.parametrize("path", checked_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_it_is_written_in_plain_words(path: Path) -> None:
    found = list(violations(path))
    assert not found, "\n" + "\n".join(map(str, found))


FLAGGED = [
    "# kept aside for later",
    "# 3 USD a workflow",
    '"""One query a line."""',
    '"""One item an update."""',
    'raise ValueError(f"{x} stands in line {n}")',
    'help = "wanted subtasks done, a workflow"',
    '"""The weights apart."""',
    '"""Take in one update."""'.replace("one", "the"),
    "LONGEST_WAIT_S = 3",
    "def test_that_nobody_answers(): ...",
    "class Told: ...",
    "policy.within(context)",
    "drawn_by_lot = 1",
]
ACCEPTED = [
    "# aside from that, apart from this, tell six nodes apart, beside the point, how far apart, within 3 s, around it",
    "# one of them is a node; it calls a workflow; besides, at most one is a worker",
    "# tasks are taken in order; they take in turn",
    "slot = almost = utmost = reminder = plot = 1",
    "at_most, least_squares, longest = 1, 2, 3",
    "found, kept, day = 1, 2, 3",
    "x = f'{told}'",
]


@pytest.mark.parametrize("code", FLAGGED)
def test_a_term_is_found(code: str) -> None:
    assert list(_of_python("src/x.py", code + "\n"))


@pytest.mark.parametrize("code", ACCEPTED)
def test_a_plain_word_is_not(code: str) -> None:
    assert not list(_of_python("src/x.py", code + "\n"))


def test_strings_of_tests_are_data_but_their_docstrings_are_not() -> None:
    assert not list(_of_python("tests/x.py", 'x = "nobody"\n'))
    assert list(_of_python("tests/x.py", 'def f():\n    """Nobody."""\n'))


def test_code_in_pages_is_left_out_and_lines_are_counted() -> None:
    assert [line for line, *_ in _of_page("one\n```\nnobody\n```\n`aside`\ntwo nobody\n")] == [6]


def main(arguments: list[str]) -> int:
    asked = [Path(argument).resolve() for argument in arguments if argument != "--files"]
    paths = [p for p in checked_files() if not asked or any(p.is_relative_to(folder) for folder in asked)]
    found = [violation for path in paths for violation in violations(path)]
    files = list(dict.fromkeys(violation.path for violation in found))
    print(*(files if "--files" in arguments else found), f"{len(found)} terms in {len(files)} files", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
