"""A YAML file in; the tree that it holds and the line of each thing in it out.

Whatever is wrong with it is a WorkersError that begins with FILE:LINE. What looks like an API key is refused unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from etude.contracts.errors import EtudeError, WorkersError

MOST_BYTES = 1_000_000
MOST_LEVELS = 50
"""Of one thing inside another."""

At = tuple[str | int, ...]
"""A path from the top of the file: ("workers", "small-model", "task_types", 0)."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file, and the line of each thing in it."""

    path: Path
    lines: dict[At, int]

    def error(self, at: At, problem: str) -> WorkersError:
        """Names the line of what stands at `at`, or of the nearest thing around it that is there."""
        place = ".".join(map(str, at)) + ": " if at else ""
        while at not in self.lines:
            at = at[:-1]
        return WorkersError(f"{self.path}:{self.lines[at]}: {place}{problem}")

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


class _Loader(yaml.SafeLoader):
    """YAML without aliases, a few of which can stand for gigabytes, and in which 1e-3 is a number."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()  # type: ignore[no-untyped-call]
            problem = f"found the alias *{alias.anchor}, expected what it stands for"
            raise yaml.composer.ComposerError(None, None, problem, alias.start_mark)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_source(path: Path) -> tuple[Source, dict[str, Any]]:
    """The tree in a file, and its lines."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise WorkersError(f"{path}: cannot be read ({why}): expected a file such as examples/workers.yaml") from error
    if len(data) > MOST_BYTES:
        raise WorkersError(f"{path}: has more than {MOST_BYTES:,} bytes: expected a workers file; is it another one?")
    source = Source(path=path, lines={(): 1})
    try:
        loader = _Loader(data.decode("utf-8-sig"))
        root = loader.get_single_node()
        tree = None if root is None else _plain(root, loader, (), source)
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
        raise source.error((), f"nested too deep: expected {MOST_LEVELS} levels at most") from None
    if not isinstance(tree, dict):
        found = "is empty" if tree is None else f"holds {shown(tree)}"
        raise source.error((), f"{found}: expected `task_types:` and `workers:`, as in examples/workers.yaml")
    return source, {key: value for key, value in tree.items() if value is not None}  # its lines may all be comments


def _plain(node: yaml.Node, loader: _Loader, at: At, source: Source) -> Any:
    """A node as dicts, lists and scalars, keys as they are written; notes the lines of what is in it."""
    if len(at) > MOST_LEVELS:
        raise source.error(at[:3], f"nested too deep: expected {MOST_LEVELS} levels at most")
    if isinstance(node, yaml.SequenceNode):
        source.lines.update({(*at, i): item.start_mark.line + 1 for i, item in enumerate(node.value)})
        return [_plain(item, loader, (*at, i), source) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        tree: dict[str, Any] = {}
        for key, value in node.value:
            source.lines[*at, "…"] = key.start_mark.line + 1  # until its name is known to be one
            name = _text(key.value, source, (*at, "…")) if isinstance(key, yaml.ScalarNode) else ""
            if not name.strip() or not name.isprintable() or name == "<<":
                raise source.error((*at, "…"), f"found the key {name!r}, expected a name: correct it")
            source.lines[*at, name] = key.start_mark.line + 1
            if name in tree:
                raise source.error((*at, name), "stands there twice: keep one of them")
            tree[name] = _plain(value, loader, (*at, name), source)
        return tree
    text = _text(node.value, source, at)
    try:
        value = loader.construct_object(node)
    except (ValueError, LookupError, AttributeError):  # such as the 99th of May, or `!!bool maybe`
        return text
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    return value if value is None or is_number else text


SECRET = re.compile(r"(?<![\w-])(sk|gsk|hf|ghp|xai|nvapi|pplx)[-_](?=\S*\d)[\w-]{16,}")
NO_SECRETS = "is not shown; put it into a variable, `export NAME=…`, and write `api_key_env: NAME`"


def _text(text: str, source: Source, at: At) -> str:
    if SECRET.search(text):
        raise source.error(at, f"what looks like an API key {NO_SECRETS}")
    if re.search("[\ud800-\udfff]", text):
        raise source.error(at, "holds half a character (a lone surrogate): remove it")
    return text


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
