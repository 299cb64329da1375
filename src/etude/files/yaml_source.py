"""A YAML file in; the tree that it holds and the line of each thing in it out.

Whatever is wrong with it is an error that begins with FILE:LINE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from etude.contracts.errors import EtudeError

MAX_BYTES = 1_000_000
MAX_LEVELS = 50
"""Of one thing inside another."""

At = tuple[str | int, ...]
"""A path from the top of the file: ("workers", "small-model", "task_types", 0)."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file, the line of each thing in it, and the error that says what is wrong with it."""

    path: Path
    lines: dict[At, int]
    kind: type[EtudeError]

    def error(self, at: At, problem: str) -> EtudeError:
        """Names the line of what stands at `at`, or of the nearest thing around it that is there."""
        place = ".".join(map(str, at)) + ": " if at else ""
        while at not in self.lines:
            at = at[:-1]
        return self.kind(f"{self.path}:{self.lines[at]}: {place}{problem}")

    @contextmanager
    def blaming(self, at: At, *, remedy: str = "") -> Iterator[None]:
        """What is raised inside is the fault of what stands at `at`, or of its key that the message begins with."""
        try:
            yield
        except EtudeError as error:
            if str(error).startswith(f"{self.path}:"):  # it has its line
                raise
            key = (*at, str(error).partition(" ")[0])
            raise self.error(key if key in self.lines else at, f"{error}{remedy}") from error

    def file(self, name: str) -> Path:
        """One that is named in this one."""
        return self.path.parent / name


class Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as everywhere but in YAML 1.1, and 1e6 an integer."""


def _number(loader: Loader, node: yaml.ScalarNode) -> float | int:
    value = float(node.value.replace("_", ""))
    return int(value) if "." not in node.value and value.is_integer() and abs(value) < 2**63 else value


Loader.add_implicit_resolver(
    "!exponent", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
Loader.add_constructor("!exponent", _number)


class LoaderWithoutAliases(Loader):
    """A few aliases can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()  # type: ignore[no-untyped-call]
            problem = f"found the alias *{alias.anchor}, expected what it stands for"
            raise yaml.composer.ComposerError(None, None, problem, alias.start_mark)
        return super().compose_node(parent, index)


PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
MERGE_TAG = "tag:yaml.org,2002:merge"

Scalar = Callable[[Any, str], Any]
"""What a scalar becomes, from its value in YAML and from its text."""
Check = Callable[[str], str | None]
"""What is wrong with a text, if anything."""


def read_source(
    path: Path,
    *,
    kind: type[EtudeError],
    expected: str,
    loader: type[Loader] = Loader,
    scalar: Scalar = lambda value, text: value,
    check: Check = lambda text: None,
) -> tuple[Source, dict[str, Any]]:
    """The tree in a file, {} where it is empty, and its lines; `expected` says what such a file holds."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise kind(f"{path}: cannot be read ({why}): expected {expected}") from error
    if len(data) > MAX_BYTES:
        raise kind(f"{path}: has more than {MAX_BYTES:,} bytes: expected {expected}; is it another file?")
    source = Source(path=path, lines={(): 1}, kind=kind)
    try:
        tree = _Reading(loader(data.decode("utf-8-sig")), source, scalar, check).tree()
    except UnicodeDecodeError as error:
        source.lines[()] = data.count(b"\n", 0, error.start) + 1
        raise source.error((), f"byte {data[error.start]:#x} is not UTF-8: save the file as UTF-8") from error
    except yaml.reader.ReaderError as error:
        source.lines[()] = data.decode("utf-8-sig")[: error.position].count("\n") + 1
        raise source.error((), f"the character {chr(error.character)!r} cannot stand in YAML: remove it") from error
    except yaml.MarkedYAMLError as error:
        source.lines[()] = error.problem_mark.line + 1 if error.problem_mark else 1
        raise source.error((), f"cannot be read as YAML: {error.problem}; correct that line") from None
    except RecursionError:
        raise source.error((), f"nested too deep: expected {MAX_LEVELS} levels at most") from None
    if not isinstance(tree, dict):
        raise source.error((), f"holds {shown(tree)}: expected {expected}")
    return source, tree


@dataclass(frozen=True)
class _Reading:
    loader: Loader
    source: Source
    scalar: Scalar
    check: Check

    def tree(self) -> Any:
        root = self.loader.get_single_node()
        return {} if root is None else self._plain(root, ())

    def _plain(self, node: yaml.Node, at: At) -> Any:
        """A node as dicts, lists and scalars, keys as they are written; notes the lines of what is in it."""
        lines = self.source.lines
        if len(at) > MAX_LEVELS:
            raise self.source.error(at[:3], f"nested too deep: expected {MAX_LEVELS} levels at most")
        if isinstance(node, yaml.CollectionNode) and node.tag not in PLAIN_TAGS:
            raise self.source.error(at, f"found the tag {node.tag!r}: remove it")
        if isinstance(node, yaml.SequenceNode):
            lines.update({(*at, i): item.start_mark.line + 1 for i, item in enumerate(node.value)})
            return [self._plain(item, (*at, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            tree: dict[str, Any] = {}
            merged: dict[str, Any] = {}  # by `<<: *name`; what the mapping itself says counts
            for key, value in node.value:
                if key.tag == MERGE_TAG and not isinstance(self.loader, LoaderWithoutAliases):
                    found = self._plain(value, at)
                    others = found if isinstance(found, list) else [found]
                    if all(isinstance(other, dict) for other in others):
                        merged = {k: v for other in (*others[::-1], merged) for k, v in other.items()}
                        continue
                lines[*at, "…"] = key.start_mark.line + 1  # until its name is known to be one
                name = self._text(key.value, (*at, "…")) if isinstance(key, yaml.ScalarNode) else ""
                if not name.strip() or not name.isprintable() or name == "<<":
                    raise self.source.error((*at, "…"), f"found the key {name!r}, expected a name: correct it")
                lines[*at, name] = key.start_mark.line + 1
                if name in tree:
                    raise self.source.error((*at, name), "stands there twice: keep one of them")
                tree[name] = self._plain(value, (*at, name))
            return merged | tree
        text = self._text(node.value, at)
        try:
            value = self.loader.construct_object(node)
        except (ValueError, LookupError, AttributeError):  # such as the 99th of May, or `!!bool maybe`
            return text
        return self.scalar(value, text)

    def _text(self, text: str, at: At) -> str:
        problem = self.check(text)
        if problem is not None:
            raise self.source.error(at, problem)
        if re.search("[\ud800-\udfff]", text):
            raise self.source.error(at, "holds half a character (a lone surrogate): remove it")
        return text


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
