"""Reads settings from every source into one checked tree that records where each value came from.

A tree is a pydantic model whose sections are the config dataclasses of the components. The last assignment to a
setting wins. Nothing is read at import.
"""

from __future__ import annotations

import difflib
import json
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
from etude.files.yaml_source import Loader, read_source
from etude.settings.words import describe

FILE = "etude.yaml"
PREFIX = "ETUDE_"
NOT_SETTINGS = {"ETUDE_DEBUG", "ETUDE_URL", "ETUDE_API_KEY"}
"""ETUDE_… variables that are not settings."""

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
    """One setting, for help texts."""

    key: str
    type: str
    default: Any
    doc: str


class Tree(Generic[Model]):
    """The tree of settings of a pydantic model, which checks it."""

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def build(self, assignments: Sequence[Assignment]) -> Resolved[Model]:
        tree: dict[str, Any] = {}
        origins = dict.fromkeys((field.key for field in self.fields), "default")
        for assignment in assignments:
            self.check_key(assignment)
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
        """A hint for an unknown key: its name in another section, or a similar name, key or section."""
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
        if not path.exists():
            raise ConfigError(f"the settings file is {str(path)!r}: there is no such file")
        expected = "sections such as `ppo:` with settings below them"
        source, tree = read_source(path, kind=ConfigError, expected=expected)
        for key, value in self.flatten(tree):
            line = source.lines.get(tuple(key.split(".")))
            yield Assignment(key, value, f"{path}, line {line}" if line is not None else str(path))

    def read_own(self, file: Path | None, environ: Mapping[str, str]) -> Model:
        """Settings from `file` or ./etude.yaml, if there is one, and ETUDE_… variables; sections of others are left."""
        path = file or (Path(FILE) if Path(FILE).exists() else None)
        own = tuple(f"{PREFIX}{name.upper()}" for name in self.model.model_fields)
        variables = {name: value for name, value in environ.items() if name.startswith(own)}
        found = [*(self.from_file(path) if path else ()), *self.from_environment(variables)]
        return self.build([a for a in found if a.key.partition(".")[0] in self.model.model_fields]).settings

    def from_environment(self, environ: Mapping[str, str]) -> Iterator[Assignment]:
        for name in sorted(environ):
            if name.startswith(PREFIX) and name not in NOT_SETTINGS:
                key = name.removeprefix(PREFIX).lower().replace("__", ".")
                for found, value in self._flatten_value(key, _read_scalar(environ[name], where=name)):
                    yield Assignment(found, value, name)

    def from_assignment(self, text: str) -> Iterator[Assignment]:
        """Assignments from the text after `--set`."""
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ConfigError(f"--set {text!r}: expected key=value, such as `--set ppo.lr=0.001`")
        for found, inner in self._flatten_value(key, _read_scalar(value, where=f"--set {key}")):
            yield Assignment(found, inner, f"--set {key}")

    def flatten(self, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Sections as dotted keys. An empty section, such as one with only comments, sets nothing."""
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

    def check_key(self, assignment: Assignment) -> None:
        """ConfigError with a suggestion for an unknown key."""
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
        """One line per wrong setting: its value, its source, what is expected, what to do."""
        reported: set[str] = set()
        known = {field.key for field in self.fields}
        misspelt = "unexpected_keyword_argument"  # reported first: a missing one is then its consequence
        for wrong in sorted(error.errors(include_url=False), key=lambda e: e["type"] != misspelt):
            path = [str(part) for part in wrong["loc"]]
            key = next(k for k in (".".join(path[:i]) for i in range(1, len(path) + 1)) if k in known)
            if key in reported:
                continue
            reported.add(key)
            inside = path[len(key.split(".")) :]
            place = key + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in inside)
            found = "is missing" if wrong["type"] == "missing" else f"is {wrong['input']!r}"
            if wrong["type"] == misspelt:
                found = "is unknown"
            field = next(field for field in self.fields if field.key == key)
            yield f"{place} {found} ({origins[key]}): expected {field.type}; see `etude config explain {key}`"


def _fields_of(key: str, kind: Any, default: Any, doc: str) -> Iterator[Field]:
    if not isinstance(kind, type) or not is_dataclass(kind):
        yield Field(key=key, type=describe(kind), default=default, doc=doc)
        return
    hints, docs = get_type_hints(kind, include_extras=True), field_docs(kind)
    for f in dataclass_fields(kind):
        yield from _fields_of(f"{key}.{f.name}", hints[f.name], getattr(default, f.name), docs.get(f.name, ""))


def _read_scalar(text: str, *, where: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is {text!r}: not valid YAML ({_problem(error)}); quote it if it is text") from error


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]
