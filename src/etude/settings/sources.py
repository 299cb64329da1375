"""Settings from every source to one checked tree in which each value knows where it came from.

A tree is a pydantic model whose sections are the config dataclasses of the components. Of assignments to the same
setting the last counts. Nothing is read at import.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import yaml
from pydantic import BaseModel, ValidationError

from etude.contracts.errors import ConfigError
from etude.contracts.field_docs import field_docs
from etude.settings.words import describe

FILE = "etude.yaml"
PREFIX = "ETUDE_"
NOT_SETTINGS = {"ETUDE_DEBUG"}
"""Variables of ours that set nothing in a tree."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Resolved(Generic[Model]):
    settings: Model
    origins: Mapping[str, str]
    """Dotted key → where its value came from, such as `default`, `etude.yaml, line 3` or `--agents`."""


@dataclass(frozen=True)
class Assignment:
    """One value from one source. The key names a setting, `ppo.lr`, or is `curriculum`."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class Field:
    """One setting, for people."""

    key: str
    type: str
    default: Any
    doc: str


class Tree(Generic[Model]):
    """What can be set, by the model that checks it."""

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def build(self, assignments: Sequence[Assignment]) -> Resolved[Model]:
        tree: dict[str, Any] = {}
        origins = dict.fromkeys((field.key for field in self.fields), "default")
        for assignment in assignments:
            self._check_key(assignment)
            *path, name = assignment.key.split(".")
            section = tree
            for part in path:
                section = section.setdefault(part, {})
            section[name] = assignment.value
            origins[assignment.key] = assignment.origin
        try:
            settings = self.model.model_validate_json(json.dumps(tree, default=str))
        except ValidationError as error:
            raise ConfigError("\n".join(self._explain(error, origins))) from error
        return Resolved(settings=settings, origins=origins)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """Every setting in the order of the tree."""
        own = field_docs(self.model)
        found: list[Field] = []
        for name, info in self.model.model_fields.items():
            found += _fields_of(name, info.annotation, info.default, own.get(name, ""))
        return tuple(found)

    @cached_property
    def sections(self) -> frozenset[str]:
        """Every dotted prefix of a setting: `ppo`, `training`, `training.phase1_supervised`."""
        parts = (field.key.split(".") for field in self.fields)
        return frozenset(".".join(path[:i]) for path in parts for i in range(1, len(path)))

    def suggest(self, key: str) -> str:
        """What someone probably meant: this name in another section, a close one in this, a close key or section."""
        known = [field.key for field in self.fields]
        section, _, name = key.partition(".")
        here = [k.partition(".")[2] for k in known if k.startswith(f"{section}.")]
        guesses = [
            *(k for k in known if k.rpartition(".")[2] == (name or section)),
            *(f"{section}.{close}" for close in difflib.get_close_matches(name, here)),
            *difflib.get_close_matches(key, [*known, *self.sections]),
        ]
        return f"did you mean {guesses[0]!r}? " if guesses else ""

    def from_file(self, path: Path) -> Iterator[Assignment]:
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError as error:
            raise ConfigError(f"--config is {str(path)!r}: there is no such file") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}): expected a YAML file in UTF-8") from error
        tree, lines = self._read_yaml(text, path)
        for key, value in self.flatten(tree):
            yield Assignment(key, value, f"{path}, line {lines[key]}" if key in lines else str(path))

    def from_environment(self, environ: Mapping[str, str]) -> Iterator[Assignment]:
        for name in sorted(environ):
            if name.startswith(PREFIX) and name not in NOT_SETTINGS:
                key = name.removeprefix(PREFIX).lower().replace("__", ".")
                for found, value in self._flatten_value(key, _read_scalar(environ[name], where=name)):
                    yield Assignment(found, value, name)

    def from_assignment(self, text: str) -> Iterator[Assignment]:
        """Of the text after `--set`."""
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ConfigError(f"--set {text!r}: expected key=value, such as `--set ppo.lr=0.001`")
        for found, inner in self._flatten_value(key, _read_scalar(value, where=f"--set {key}")):
            yield Assignment(found, inner, f"--set {key}")

    def flatten(self, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Sections to dotted keys. A section left empty, as when all its lines are comments, sets nothing."""
        for section, values in tree.items():
            yield from self._flatten_value(str(section), values)

    def _flatten_value(self, key: str, value: Any) -> Iterator[tuple[str, Any]]:
        is_section = key in self.sections
        if is_section and (value is None or value == {}):
            return
        if isinstance(value, Mapping) and value and (is_section or "." not in key):
            for name, inner in value.items():
                yield from self._flatten_value(f"{key}.{name}", inner)
        else:
            yield key, value

    def _check_key(self, assignment: Assignment) -> None:
        known = [field.key for field in self.fields]
        if assignment.key in known:
            return
        section = assignment.key.partition(".")[0]
        if assignment.key in self.sections:
            raise ConfigError(
                f"{assignment.key} is {assignment.value!r} ({assignment.origin}): expected its settings by name, such "
                f"as `{next(key for key in known if key.startswith(f'{assignment.key}.'))}`"
            )
        if section == "curriculum":
            raise ConfigError(
                f"{assignment.key} ({assignment.origin}): curriculum is a list of stages, given whole, such as "
                "`curriculum: [{size: {agents: 2}, share: 0.3}]`"
            )
        raise ConfigError(
            f"unknown setting {assignment.key!r} ({assignment.origin}): {self.suggest(assignment.key)}"
            "`etude config explain` lists them all"
        )

    def _explain(self, error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
        """One line per wrong setting: what, where, expected what, what to do."""
        told: set[str] = set()
        known = {field.key for field in self.fields}
        misspelt = "unexpected_keyword_argument"  # told first: a missing one is then its consequence
        for wrong in sorted(error.errors(include_url=False), key=lambda e: e["type"] != misspelt):
            path = [str(part) for part in wrong["loc"]]
            key = next(k for k in (".".join(path[:i]) for i in range(1, len(path) + 1)) if k in known)
            if key in told:
                continue
            told.add(key)
            inside = path[len(key.split(".")) :]
            place = key + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in inside)
            found = "is missing" if wrong["type"] == "missing" else f"is {wrong['input']!r}"
            if wrong["type"] == misspelt:
                found = "is unknown"
            field = next(field for field in self.fields if field.key == key)
            yield f"{place} {found} ({origins[key]}): expected {field.type}; see `etude config explain {key}`"

    def _read_yaml(self, text: str, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
        """The tree, and the line of each dotted key."""
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines = dict(self._lines(node, path)) if isinstance(node, yaml.MappingNode) else {}
            tree = {} if node is None else loader.construct_document(node)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"{path}{_line_of(error)}: not valid YAML ({_problem(error)}): correct that line"
            ) from error
        finally:
            loader.dispose()
        if not isinstance(tree, dict):
            raise ConfigError(f"{path}: holds {tree!r}, expected sections such as `ppo:` with settings below them")
        return tree, lines

    def _lines(self, node: yaml.MappingNode, path: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
        seen: set[str] = set()
        for name, value in node.value:
            key = f"{prefix}{name.value}"
            if key in seen:
                raise ConfigError(
                    f"{path}, line {name.start_mark.line + 1}: {key!r} stands there twice: keep one of them"
                )
            seen.add(key)
            yield key, name.start_mark.line + 1
            if isinstance(value, yaml.MappingNode) and (not prefix or key in self.sections):
                yield from self._lines(value, path, f"{key}.")


def _fields_of(key: str, kind: Any, default: Any, doc: str) -> Iterator[Field]:
    if not isinstance(kind, type) or not is_dataclass(kind):
        yield Field(key=key, type=describe(kind), default=default, doc=doc)
        return
    hints, docs = get_type_hints(kind, include_extras=True), field_docs(kind)
    for f in dataclass_fields(kind):
        yield from _fields_of(f"{key}.{f.name}", hints[f.name], getattr(default, f.name), docs.get(f.name, ""))


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as everywhere but in YAML 1.1, and 1e6 an integer."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> float | int:
    value = float(node.value.replace("_", ""))
    return int(value) if value.is_integer() and "." not in node.value else value


_Loader.add_implicit_resolver(
    "!exponent", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_constructor("!exponent", _number)


def _read_scalar(text: str, *, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is {text!r}: not valid YAML ({_problem(error)}); quote it if it is text") from error


def _line_of(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]
