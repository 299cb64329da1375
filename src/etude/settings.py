"""Settings from every source to one checked tree in which each value knows where it came from.

Later sources win: defaults, the variant's defaults, a preset, etude.yaml, ETUDE_… variables, command-line flags.
Nothing is read at import; `resolve` reads what it is given.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import field as dataclass_field
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ConfigDict, ValidationError

from etude.contracts.errors import ConfigError
from etude.learning.health import HealthConfig
from etude.learning.imitation import ImitationConfig
from etude.learning.outcomes import OutcomesConfig
from etude.learning.ppo import DOCUMENT, PPOConfig
from etude.learning.train import RunConfig, Stage
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.world import AllocationConfig
from etude.problems.workflow.network import PlannerConfig
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.world import OfficeConfig

FILE = "etude.yaml"
PREFIX = "ETUDE_"
NOT_SETTINGS = {"ETUDE_DEBUG"}
"""Variables of ours that set nothing in the tree."""
OF_THE_RUN = {"problem", "phase", "data"}
"""What config.json keeps beside settings: what a run is about."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "document": {"ppo": DOCUMENT, "network": {"hidden": [256, 256, 128], "activation": "relu"}},
    "wide": {
        "ppo": {"envs": 1024, "epochs": 4, "minibatch": 8192, "lr": 5e-3},
        "run": {"max_steps": 3_000_000, "eval_every": 250_000, "checkpoint_every": 500_000},
    },
    "office": {
        "limits": {"max_nodes": 10, "max_corrections": 3},
        "planner": {"width": 64, "layers": 2, "dropout": 0.0, "word_dropout": 0.0},
        "training": {
            "phase1_supervised": {
                "batch_size": 64,
                "learning_rate": 3e-4,
                "num_epochs": 12,
                "validation_share": 0.05,
                "synthetic_augmentations": 0,
                "final_epochs": 2,
            }
        },
    },
}
"""Named groups of settings; `document` has the source document's hyper-parameters, `wide` large batches for a GPU,
`office` what suits the many plain examples of the simulated office."""

VARIANT_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "document": {},
    "matched": {
        "allocation": {"agents": 16, "slots": 64},
        "ppo": {"envs": 128, "epochs": 2, "gamma": 0.95, "entropy_coef": 0.001},
        "run": {"max_steps": 450_000, "eval_every": 50_000},
    },
}
"""Defaults that depend on allocation.variant."""

FLAGS = {
    "--variant": "allocation.variant",
    "--agents": "allocation.agents",
    "--slots": "allocation.slots",
    "--seed": "run.seed",
    "--target-return": "run.target_return",
    "--max-steps": "run.max_steps",
    "--device": "run.device",
    "--tracker": "run.trackers",
    "--encoder": "planner.encoder",
    "--epochs": "training.phase1_supervised.num_epochs",
    "--batch-size": "training.phase1_supervised.batch_size",
    "--episodes": "training.phase2_rl.num_episodes",
    "--shift": "office.shift",
}
"""Command-line flags with a name of their own; `--set key=value` reaches the rest."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The two phases in which a planner learns, under the source document's names."""

    phase1_supervised: ImitationConfig = dataclass_field(default_factory=ImitationConfig)
    phase2_rl: OutcomesConfig = dataclass_field(default_factory=OutcomesConfig)


class Settings(BaseModel):
    """Everything that can be set. A section is the config dataclass of the component it belongs to."""

    # Strict: "3" or true is no integer. Read as JSON, where an integer may be a number and a list a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    allocation: AllocationConfig = AllocationConfig()
    network: NetworkConfig = NetworkConfig()
    office: OfficeConfig = OfficeConfig()
    limits: Limits = Limits()
    planner: PlannerConfig = PlannerConfig()
    training: TrainingSettings = TrainingSettings()
    ppo: PPOConfig = PPOConfig()
    run: RunConfig = RunConfig()
    health: HealthConfig = HealthConfig()
    curriculum: tuple[Stage, ...] = ()
    """Smaller problems to learn first, in order, each for a share of the budget; the full problem takes the rest."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    settings: Settings
    origins: Mapping[str, str]
    """Dotted key → where its value came from, such as `default`, `etude.yaml, line 3` or `--agents`."""


@dataclass(frozen=True)
class Assignment:
    """One value from one source. The key names a setting, `ppo.lr`, or is `curriculum`."""

    key: str
    value: Any
    origin: str


def resolve(
    *,
    preset: str | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> Resolved:
    """Settings from all sources, the later ones winning; ConfigError for the first source with something wrong.

    `config` is a file that must exist; `flags` maps names of `FLAGS` to values, None for those not given; `assignments`
    are the texts after `--set`.
    """
    chosen = [
        *(_from_file(config) if config else ()),
        *_from_environment(environ or {}),
        *_from_flags(flags or {}),
        *(assignment for text in assignments for assignment in _from_assignment(text)),
    ]
    if preset is not None:
        chosen = [*_from_preset(preset), *chosen]
    variant = next((a.value for a in reversed(chosen) if a.key == "allocation.variant"), "document")
    own = _flatten(VARIANT_DEFAULTS.get(variant, {}) if isinstance(variant, str) else {})
    return _build([*(Assignment(key, value, f"default for {variant}") for key, value in own), *chosen])


def restore(tree: Mapping[str, Any], *, source: Path) -> Settings:
    """Settings as config.json keeps them; the same checks as for a file."""
    values = {key: value for key, value in tree.items() if key not in OF_THE_RUN}
    return _build([Assignment(key, value, str(source)) for key, value in _flatten(values)]).settings


def _build(assignments: Sequence[Assignment]) -> Resolved:
    tree: dict[str, Any] = {}
    origins = dict.fromkeys((field.key for field in fields()), "default")
    for assignment in assignments:
        _check_key(assignment)
        *path, name = assignment.key.split(".")
        section = tree
        for part in path:
            section = section.setdefault(part, {})
        section[name] = assignment.value
        origins[assignment.key] = assignment.origin
    try:
        return Resolved(settings=Settings.model_validate_json(json.dumps(tree, default=str)), origins=origins)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, origins))) from error


def _check_key(assignment: Assignment) -> None:
    known = [field.key for field in fields()]
    if assignment.key in known:
        return
    section = assignment.key.partition(".")[0]
    if assignment.key in sections():
        raise ConfigError(
            f"{assignment.key} is {assignment.value!r} ({assignment.origin}): expected its settings by name, such as "
            f"`{next(key for key in known if key.startswith(f'{assignment.key}.'))}`"
        )
    if section == "curriculum":
        raise ConfigError(
            f"{assignment.key} ({assignment.origin}): curriculum is a list of stages, given whole, such as "
            "`curriculum: [{size: {agents: 2}, share: 0.3}]`"
        )
    raise ConfigError(
        f"unknown setting {assignment.key!r} ({assignment.origin}): {suggest(assignment.key)}"
        "`etude config explain` lists them all"
    )


def suggest(key: str) -> str:
    """What someone probably meant: the same name in another section, a close one in this, a close key or section."""
    known = [field.key for field in fields()]
    section, _, name = key.partition(".")
    here = [k.partition(".")[2] for k in known if k.startswith(f"{section}.")]
    guesses = [
        *(k for k in known if k.rpartition(".")[2] == (name or section)),
        *(f"{section}.{close}" for close in difflib.get_close_matches(name, here)),
        *difflib.get_close_matches(key, [*known, *sections()]),
    ]
    return f"did you mean {guesses[0]!r}? " if guesses else ""


def _explain(error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    """One line per wrong setting: what, where, expected what, what to do."""
    told: set[str] = set()
    known = {field.key for field in fields()}
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
        field = next(field for field in fields() if field.key == key)
        yield f"{place} {found} ({origins[key]}): expected {field.type}; see `etude config explain {key}`"


def _from_preset(name: str) -> Iterator[Assignment]:
    if name not in PRESETS:
        raise ConfigError(f"--preset is {name!r}: expected one of {', '.join(map(repr, PRESETS))}")
    for key, value in _flatten(PRESETS[name]):
        yield Assignment(key, value, f"preset {name}")


def _from_file(path: Path) -> Iterator[Assignment]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"--config is {str(path)!r}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}): expected a YAML file in UTF-8") from error
    tree, lines = _read_yaml(text, path)
    for key, value in _flatten(tree):
        yield Assignment(key, value, f"{path}, line {lines[key]}" if key in lines else str(path))


def _from_environment(environ: Mapping[str, str]) -> Iterator[Assignment]:
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            for found, value in _flatten_value(key, _read_scalar(environ[name], where=name)):
                yield Assignment(found, value, name)


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Assignment]:
    for flag, value in flags.items():
        if value is not None:
            yield Assignment(FLAGS[flag], value, flag)


def _from_assignment(text: str) -> Iterator[Assignment]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"--set {text!r}: expected key=value, such as `--set ppo.lr=0.001`")
    for found, inner in _flatten_value(key, _read_scalar(value, where=f"--set {key}")):
        yield Assignment(found, inner, f"--set {key}")


def _flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Sections to dotted keys. A section left empty, as when all its lines are comments, sets nothing."""
    for section, values in tree.items():
        yield from _flatten_value(str(section), values)


def _flatten_value(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    is_section = key in sections()
    if is_section and (value is None or value == {}):
        return
    if isinstance(value, Mapping) and value and (is_section or "." not in key):
        for name, inner in value.items():
            yield from _flatten_value(f"{key}.{name}", inner)
    else:
        yield key, value


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as everywhere but in YAML 1.1, and 1e6 an integer."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> float | int:
    value = float(node.value.replace("_", ""))
    return int(value) if value.is_integer() and "." not in node.value else value


_Loader.add_implicit_resolver(
    "!exponent", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_constructor("!exponent", _number)


def _read_yaml(text: str, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The tree, and the line of each dotted key."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines = dict(_lines(node, path)) if isinstance(node, yaml.MappingNode) else {}
        tree = {} if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_line_of(error)}: not valid YAML ({_problem(error)}): correct that line") from error
    finally:
        loader.dispose()
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: holds {tree!r}, expected sections such as `ppo:` with settings below them")
    return tree, lines


def _lines(node: yaml.MappingNode, path: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    seen: set[str] = set()
    for name, value in node.value:
        key = f"{prefix}{name.value}"
        if key in seen:
            raise ConfigError(f"{path}, line {name.start_mark.line + 1}: {key!r} stands there twice: keep one of them")
        seen.add(key)
        yield key, name.start_mark.line + 1
        if isinstance(value, yaml.MappingNode) and (not prefix or key in sections()):
            yield from _lines(value, path, f"{key}.")


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


@dataclass(frozen=True, kw_only=True)
class Field:
    """One setting, for people."""

    key: str
    type: str
    default: Any
    doc: str


@cache
def fields() -> tuple[Field, ...]:
    """Every setting in the order of the tree."""
    own = _docs(Settings)
    found: list[Field] = []
    for name, info in Settings.model_fields.items():
        found += _fields_of(name, info.annotation, info.default, own.get(name, ""))
    return tuple(found)


def _fields_of(key: str, kind: Any, default: Any, doc: str) -> Iterator[Field]:
    if not isinstance(kind, type) or not is_dataclass(kind):
        yield Field(key=key, type=describe(kind), default=default, doc=doc)
        return
    hints, docs = get_type_hints(kind, include_extras=True), _docs(kind)
    for f in dataclass_fields(kind):
        yield from _fields_of(f"{key}.{f.name}", hints[f.name], getattr(default, f.name), docs.get(f.name, ""))


@cache
def sections() -> frozenset[str]:
    """Every dotted prefix of a setting: `ppo`, `training`, `training.phase1_supervised`."""
    parts = (field.key.split(".") for field in fields())
    return frozenset(".".join(path[:i]) for path in parts for i in range(1, len(path)))


def _docs(kind: type) -> dict[str, str]:
    """The text below each field of a class and of those it inherits from; Python itself does not keep it."""
    found = {}
    for own in reversed([base for base in kind.__mro__ if base is kind or is_dataclass(base)]):
        body = ast.parse(inspect.getsource(own)).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def describe(annotation: Any) -> str:
    """A type in words: `Annotated[int, Ge(2), Le(64)]` is "an integer from 2 to 64"."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        filled = ", not empty" if any(isinstance(c, MinLen) for c in args[1:]) else ""
        return describe(args[0]) + _bounds(args[1:]) + filled
    if origin in (Union, UnionType):
        return " or ".join("null" if arg is NoneType else describe(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in args)
    if origin is tuple:
        return f"a list of {_plural(args[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "names with integers"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _plural(annotation: Any) -> str:
    if is_dataclass(annotation):
        names = " and ".join(f.name for f in dataclass_fields(annotation))
        return f"stages, each with {names}"
    single = describe(annotation)
    first, _, rest = single.removeprefix("an ").removeprefix("a ").partition(" ")
    return f"{first}s {rest}".strip() if first in ("integer", "number") else f"values, each {single}"


def _bounds(constraints: Sequence[Any]) -> str:
    low = next((c.ge for c in constraints if isinstance(c, Ge)), None)
    high = next((c.le for c in constraints if isinstance(c, Le)), None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    words = []
    for constraint in constraints:
        match constraint:
            case Ge(ge=value):
                words.append(f"of {value} or more")
            case Gt(gt=value):
                words.append(f"above {value}")
            case Le(le=value):
                words.append(f"of at most {value}")
            case Lt(lt=value):
                words.append(f"below {value}")
    return "".join(f" {word}" if i == 0 else f" and {word}" for i, word in enumerate(words))
