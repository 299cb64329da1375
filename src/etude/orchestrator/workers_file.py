"""A workers file in; the catalogue it describes, and the workers and verifiers themselves, out.

Whatever is wrong with it is a WorkersError that begins with FILE:LINE, before anything runs. Files and modules that it
names are looked for in its own folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Verifier, Worker
from etude.contracts.suggestions import nearest
from etude.files.yaml_source import At, LoaderWithoutAliases, Source, read_source, shown
from etude.orchestrator.crew import Crew
from etude.orchestrator.parameters import Needs, Parameters
from etude.orchestrator.verifiers import (
    DEFAULT_QUESTION,
    AllOf,
    CallableVerifier,
    ExitCodeVerifier,
    JudgeVerifier,
    RegexVerifier,
    SchemaVerifier,
)
from etude.orchestrator.workers.callable import CallableWorker, import_callable
from etude.orchestrator.workers.command import INPUT_FILE, CommandWorker
from etude.orchestrator.workers.openai import OpenAIWorker
from etude.orchestrator.workers.recorded import RecordedWorker, read_recordings
from etude.orchestrator.workers.template import Template
from etude.problems.catalogue import MAX_AMOUNT, Catalogue, TaskType, read_catalogue
from etude.problems.catalogue import Worker as Entry
from etude.problems.workflow.plan import Limits


@dataclass(frozen=True, kw_only=True)
class WorkersFile:
    """What a workers file describes; where it asks for the simulated office, that brings the crew."""

    source: Source
    crew: Crew | None = None
    limits: Limits | None  # None: the policy's own
    human: bool  # whether a person is asked when the policy would give up
    simulated: dict[str, int] | None = None  # seeds of the simulated office
    llm: dict[str, Any] = field(default_factory=dict)  # options of a language model that plans


async def unreachable_workers(file: WorkersFile) -> dict[str, str]:
    """Asks all workers, verifiers and models at once whether they could work: by name, why a worker could not.

    Reaches out: to services, and for the programs of commands. WorkersError with a line for each where no worker is
    left, or a verifier could not work: without it, nothing says what success is.
    """
    if (crew := file.crew) is None:
        return {}
    asked: dict[At, Worker | Verifier] = {("workers", name): worker for name, worker in crew.workers.items()}
    asked |= {("task_types", name, "verify"): verifier for name, verifier in crew.verifiers.items()}
    asked |= {("verify",): crew.judge} if crew.judge else {}
    filled = {name: need.parameters for name, need in crew.needs.items() if need.parameters}
    asked |= {("task_types", name, "fill"): of.model for name, of in filled.items() if of.model}

    async def problem(at: At) -> str:
        try:
            with file.source.blaming(at):
                await asked[at].check()
        except WorkersError as error:
            return str(error)
        return ""

    reasons = await asyncio.gather(*(problem(at) for at in asked))
    found = {at: why for at, why in zip(asked, reasons, strict=True) if why}
    unreachable = {str(at[1]): why for at, why in found.items() if at[0] == "workers"}
    if len(found) > len(unreachable) or (unreachable and len(unreachable) == len(crew.workers)):
        raise WorkersError("\n".join(found.values()))
    return unreachable


Text = Annotated[str, Field(min_length=1)]
Command = Annotated[tuple[str, ...], Field(min_length=1)]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, le=MAX_AMOUNT)]
Count = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]
Some = Annotated[int, Field(ge=1, le=MAX_AMOUNT)]


class _Section(BaseModel):
    # Strict: "3" or true is no integer. Read as JSON, where an integer may be a number and a list a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _File(_Section):
    catalogue: Text | None = None
    task_types: dict[str, Any] = {}
    workers: dict[str, dict[str, Any]] = {}
    verify: Any = None
    limits: Limits | None = Field(None, examples=["{max_cost_usd: 0.5}"])
    human: bool = False
    timeout_s: Seconds = 60.0
    simulated: dict[str, Any] | None = None
    llm: dict[str, Any] = {}


class _Simulated(_Section):
    skill_seed: Count = 0
    scenario_seed: Count = 0


class _TaskType(_Section):
    description: str = ""
    input: Literal["required", "optional"] | None = None  # None: as its workers' templates say
    parameters: Any = None  # a JSON Schema of an object
    patterns: dict[str, Text] = {}
    fill: dict[str, Any] | None = None
    verify: Any = None


class _Worker(_Section):
    """What workers of every kind have."""

    kind: str = Field(examples=["command"])
    description: str = ""
    task_types: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    usd_per_call: Amount = 0.0
    latency_ms: Amount = 0.0
    success_rate: Share | None = None
    quota: Count | None = None
    size: str = ""
    timeout_s: Seconds | None = None
    concurrency: Some = 8


class _Asked(_Section):
    """How a language model is asked. The defaults are OpenAIWorker's."""

    api_key_env: str | None = None
    usd_per_call: Amount = 0.0
    usd_per_mtok_in: Amount = 0.0
    usd_per_mtok_out: Amount = 0.0
    max_tokens: Some = 1024
    temperature: Amount | None = None
    stream: bool = True
    stall_s: Seconds = 20.0
    attempts: Some = 3
    extra: dict[str, Any] = {}


class _LLM(_Asked):
    """A language model that plans; `url` and `model` name that of the policy llm. The defaults are LanguageModel's."""

    url: Text | None = Field(None, examples=["http://localhost:11434/v1"])
    model: Text | None = Field(None, examples=["qwen3"])
    max_tokens: Some = 4096
    stall_s: Seconds = 60.0
    timeout_s: Seconds = 180.0


class _Model(_Asked):
    """A language model at a URL."""

    url: Text = Field(examples=["http://localhost:11434/v1"])
    model: Text = Field(examples=["llama3.2"])
    system: str = ""


class _OpenAI(_Worker, _Model):
    prompt: Text | None = None
    prompts: dict[str, Text] = {}


class _Command(_Worker):
    command: Command = Field(examples=["[wc, -w]"])
    stdin: str | None = None
    cwd: Text = "."
    env: dict[str, str] = {}
    max_bytes: Some = 1_000_000


class _Callable(_Worker):
    callable: Text = Field(examples=["mypackage.tools:translate"])


class _Recorded(_Worker):
    file: Text = Field(examples=["recordings.jsonl"])


class _Judge(_Model):
    question: Text = "Is it what the step asks for?"
    threshold: Share = 0.5


class _Verify(_Section):
    json_schema: Any = Field(None, alias="schema")
    regex: str | None = None
    full: bool = False  # of regex: the whole output, not a part of it
    callable: Text | None = None
    command: Command | None = None
    timeout_s: Seconds = 30.0  # of command
    judge: dict[str, Any] | None = None


KINDS: dict[str, type[_Worker]] = {
    "openai": _OpenAI,
    "command": _Command,
    "callable": _Callable,
    "recorded": _Recorded,
}


EXPECTED = "`task_types:` and `workers:`, as in examples/workers.yaml"


def read_workers(path: Path, *, env: Mapping[str, str] | None = None) -> WorkersFile:
    """A workers file, checked, with its workers ready; `env` holds the variables that API keys are taken from.

    Files that it names are read and the modules of its callables imported; nothing is connected to.
    """
    env = os.environ if env is None else env
    source, tree = read_source(
        path,
        kind=WorkersError,
        expected=EXPECTED,
        loader=LoaderWithoutAliases,
        scalar=_number_or_text,
        check=lambda text: f"what looks like an API key {NO_SECRETS}" if SECRET.search(text) else None,
    )
    if not tree:
        raise source.error((), f"is empty: expected {EXPECTED}")
    tree = {key: value for key, value in tree.items() if value is not None}  # its lines may all be comments
    file = _parse(_File, tree, source, ())
    if file.simulated is not None:
        return _simulated(file, file.simulated, source)
    types = _task_types(file, source)
    entries = _entries(file, source, types)
    needs = {name: _needs(of, source, ("task_types", name), env) for name, of in types.items()}
    crew = Crew(
        _catalogue(types, entries, source),
        {name: _worker(name, entry, source, env, needs) for name, entry in entries.items()},
        verifiers={
            name: _verifier(task_type.verify, source, ("task_types", name, "verify"), env)
            for name, task_type in types.items()
            if task_type.verify is not None
        },
        judge=None if file.verify is None else _verifier(file.verify, source, ("verify",), env),
        concurrency={name: entry.concurrency for name, entry in entries.items()},
        timeout_s={name: entry.timeout_s or file.timeout_s for name, entry in entries.items()},
        needs=needs,
    )
    return WorkersFile(source=source, crew=crew, limits=file.limits, human=file.human, llm=_llm(file, source))


Workers = Crew | Path | str | Mapping[str, Worker | Callable[..., Any]]
"""A crew, a workers file, or workers and callables by name."""


def enlist(workers: Workers, catalogue: Catalogue) -> Crew:
    """A crew of these workers. Workers by name get their prices and descriptions from the catalogue if it has them."""
    if isinstance(workers, Crew):
        return workers
    if isinstance(workers, Path | str):
        crew = read_workers(Path(workers)).crew
        if crew is None:
            raise WorkersError(f"{workers}: its workers are simulated: they are for `etude run` and `collect`")
        return crew
    known = {entry.name: entry for entry in catalogue.workers}
    entries = tuple(known.get(name, Entry(name=name)) for name in workers)
    found = {
        name: cast(Worker, one) if hasattr(one, "do") else CallableWorker(name, one) for name, one in workers.items()
    }
    return Crew(msgspec.structs.replace(catalogue, workers=entries), found)


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
WORDS = {
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type"), "a mapping"),
    **dict.fromkeys(("too_short", "string_too_short"), "something in it"),
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    "float_type": "a number",
    "tuple_type": "a list",
    "bool_type": "true or false",
    "string_type": "text, in quotes where it looks like something else",
}
"""What pydantic expects, in the words of YAML."""

S = TypeVar("S", bound=_Section)


def _parse(kind: type[S], value: Any, source: Source, at: At) -> S:
    """A part of the file as what it should be."""
    try:
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        # Where one key is misspelt another may be missing: the misspelt one is reported.
        wrong = min(error.errors(include_url=False), key=lambda e: e["type"] not in UNKNOWN)
    here = (*at, *wrong["loc"])
    key, within = str(("", *here)[-1]), here[:-1]
    known = _keys(Limits if within == ("limits",) else kind)
    # Raised without its cause, which shows values that may be secrets.
    if wrong["type"] in UNKNOWN:
        raise source.error(here, _unknown(key, known, kind))
    if wrong["type"] == "missing":
        raise source.error(within, f"{key!r} is missing: add it, {known[key]}")
    expected = WORDS.get(wrong["type"], wrong["msg"].removeprefix("Input should be "))
    hint = f", {known[key]}" if within in (at, ("limits",)) and key in known else ""
    raise source.error(here, f"found {shown(wrong['input'])}, expected {expected}: correct it{hint}")


def _keys(kind: type[_Section] | type[Limits]) -> dict[str, str]:
    """Every key of a section with what may be done about it."""
    if issubclass(kind, Limits):
        return {f.name: f"or leave it out for {json.dumps(f.default)}" for f in dataclass_fields(kind)}
    return {
        f.alias or name: f"such as `{name}: {f.examples[0]}`"
        if f.examples
        else f"or leave it out for {json.dumps(f.default)}"
        for name, f in kind.model_fields.items()
    }


def _unknown(key: str, known: Iterable[str], kind: type[_Section]) -> str:
    """The message about a key that does not belong there; it does not show the value."""
    if re.fullmatch(r"(api|access|secret)?[-_]?(key|token|secret|password|authorization)", key, re.IGNORECASE):
        return f"an API key does not belong in this file; it {NO_SECRETS}"
    others = [name for name, other in KINDS.items() if issubclass(kind, _Worker) and key in _keys(other)]
    if others:
        return f"{key!r} is for workers of kind {' or '.join(others)}: remove it, or correct `kind`"
    return f"unknown key {key!r}{nearest(key, known)}; known are {', '.join(known)}"


def _number_or_text(value: Any, text: str) -> Any:
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    return value if value is None or is_number else text


SECRET = re.compile(r"(?<![\w-])(sk|gsk|hf|ghp|xai|nvapi|pplx)[-_](?=\S*\d)[\w-]{16,}")
NO_SECRETS = "is not shown; put it into a variable, `export NAME=…`, and write `api_key_env: NAME`"


def _simulated(file: _File, seeds: dict[str, Any], source: Source) -> WorkersFile:
    for key in ("catalogue", "task_types", "workers", "verify"):
        if key in file.model_fields_set:
            raise source.error((key,), "is there together with `simulated`, which brings its own: remove one of them")
    simulated = _parse(_Simulated, seeds, source, ("simulated",)).model_dump()
    return WorkersFile(source=source, limits=file.limits, human=file.human, simulated=simulated, llm=_llm(file, source))


def _llm(file: _File, source: Source) -> dict[str, Any]:
    """Those of its options that are there."""
    return _parse(_LLM, file.llm, source, ("llm",)).model_dump(exclude_unset=True)


def _task_types(file: _File, source: Source) -> dict[str, _TaskType]:
    if file.catalogue is not None:
        if file.task_types:
            raise source.error(("task_types",), "are there twice, `catalogue` has them too: remove one of them")
        with source.blaming(("catalogue",)):
            read = read_catalogue(source.file(file.catalogue))
        types = {of.name: _TaskType(description=of.description) for of in read.task_types}
    else:
        given = {name: {"description": of} if isinstance(of, str) else of for name, of in file.task_types.items()}
        types = {name: _parse(_TaskType, of, source, ("task_types", name)) for name, of in given.items()}
    if not types:
        raise source.error(
            ("catalogue" if file.catalogue else "task_types",),
            "there are no task types: add some, such as `task_types: {summarise: Write a summary of a text}`",
        )
    return types


def _entries(file: _File, source: Source, types: Collection[str]) -> dict[str, _Worker]:
    if not file.workers:
        raise source.error(("workers",), "there are none: add some, such as `workers: {wc: {kind: command, …}}`")
    entries = {}
    for name, value in file.workers.items():
        at = ("workers", name)
        entries[name] = entry = _parse(_kind(value, source, at), value, source, at)
        _check_types({(*at, "task_types", i): t for i, t in enumerate(entry.task_types or ())}, source, types)
        if isinstance(entry, _OpenAI):
            _check_types({(*at, "prompts", t): t for t in entry.prompts}, source, types)
    return entries


def _kind(value: Mapping[str, Any], source: Source, at: At) -> type[_Worker]:
    kind, kinds = value.get("kind"), ", ".join(KINDS)
    if kind == "simulated":
        instead = "`simulated: {skill_seed: 0, scenario_seed: 0}` instead of workers and task_types"
        raise source.error((*at, "kind"), f"'simulated' workers come as a whole: write {instead}")
    if "kind" not in value:
        raise source.error(at, f"'kind' is missing: add it, one of {kinds}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise source.error(
            (*at, "kind"), f"found {shown(kind)}, expected one of {kinds}{nearest(str(kind), KINDS)}; correct it"
        )
    return KINDS[kind]


def _check_types(named: Mapping[At, str], source: Source, types: Collection[str]) -> None:
    """That each is a task type, named once."""
    seen: set[str] = set()
    for at, name in named.items():
        if name not in types:
            near = nearest(name, types) or f": expected one of {shown(sorted(types))}"
            raise source.error(at, f"{name!r} is no task type{near}; correct it, or add it to the task types")
        if name in seen:
            raise source.error(at, f"{name!r} stands there twice: keep one of them")
        seen.add(name)


def _catalogue(types: Mapping[str, _TaskType], entries: Mapping[str, _Worker], source: Source) -> Catalogue:
    described = tuple(
        Entry(name=name, **{key: getattr(entry, key) for key in Entry.__struct_fields__ if hasattr(entry, key)})
        for name, entry in entries.items()
    )
    task_types = tuple(TaskType(name=name, description=of.description) for name, of in types.items())
    catalogue = Catalogue(task_types=task_types, workers=described)
    for name in types:
        if not any(catalogue.able(worker, name) for worker in described):
            at = ("task_types", name) if ("task_types",) in source.lines else ("catalogue",)
            raise source.error(at, f"no worker is able to do {name!r}: add it to one's task_types, or remove it")
    return catalogue


def _needs(of: _TaskType, source: Source, at: At, env: Mapping[str, str]) -> Needs:
    """What subtasks of a task type need."""
    for key in ("patterns", "fill"):
        if key in of.model_fields_set and of.parameters is None:
            raise source.error((*at, key), "is for 'parameters', which are not there: add them, or remove it")
    parameters = None
    if of.parameters is not None:
        schema = _schema(of.parameters, source, (*at, "parameters"))
        fill = (*at, "fill")
        model = None if of.fill is None else _model("fill", _parse(_Model, of.fill, source, fill), source, fill, env)
        with source.blaming((*at, "parameters"), remedy="; correct the schema"):
            Parameters(schema)
        with source.blaming((*at, "patterns")):
            parameters = Parameters(schema, patterns=of.patterns, model=model)
    return Needs(input=None if of.input is None else of.input == "required", parameters=parameters)


def _worker(name: str, entry: _Worker, source: Source, env: Mapping[str, str], needs: Mapping[str, Needs]) -> Worker:
    at, usd = ("workers", name), entry.usd_per_call
    able = [needs[task_type].parameters for task_type in entry.task_types or needs]
    known = {name: all(of and name in of.always_set for of in able) for of in able if of for name in of.properties}
    if isinstance(entry, _OpenAI):
        _check_templates(
            {(*at, "prompts", task_type): text for task_type, text in entry.prompts.items()}, source, known
        )
        _check_templates({(*at, "prompt"): entry.prompt or ""}, source, known)
        return _model(name, entry, source, at, env)
    if isinstance(entry, _Command):
        _check_templates({(*at, "command", i): text for i, text in enumerate(entry.command)}, source, known, INPUT_FILE)
        _check_templates({(*at, "stdin"): entry.stdin or ""}, source, known, INPUT_FILE)
        cwd = source.file(entry.cwd).resolve()
        with source.blaming(at):
            given = entry.model_dump(include={"command", "stdin", "env", "usd_per_call", "max_bytes"})
            return CommandWorker(name, cwd=cwd, **given)
    if isinstance(entry, _Callable):
        call = _import(entry.callable, source, (*at, "callable"))
        with source.blaming((*at, "callable")):
            return CallableWorker(name, call, usd_per_call=usd, parameters=known)
    assert isinstance(entry, _Recorded)
    with source.blaming((*at, "file")):
        return RecordedWorker(name, read_recordings(source.file(entry.file)))


def _check_templates(templates: Mapping[At, str], source: Source, parameters: Collection[str], *more: str) -> None:
    for at, text in templates.items():
        with source.blaming(at):
            Template("the template", text, parameters=parameters, more=more)


def _model(name: str, entry: _Model, source: Source, at: At, env: Mapping[str, str]) -> OpenAIWorker:
    keys = {*_Model.model_fields, "prompt", "prompts"} - {"api_key_env"}
    given = {key: getattr(entry, key) for key in keys & entry.model_fields_set}
    given = {key: value for key, value in given.items() if value is not None}
    with source.blaming(at):
        return OpenAIWorker(name, api_key=_api_key(entry.api_key_env, source, (*at, "api_key_env"), env), **given)


def _api_key(name: str | None, source: Source, at: At, env: Mapping[str, str]) -> str | None:
    if name is None:
        return None
    key = env.get(name, "")
    if key and key.isascii() and key.isprintable() and " " not in key:
        return key
    # A key itself, put where the name of its variable belongs, must not end up on a screen.
    is_name = re.fullmatch("[A-Z_][A-Z0-9_]{,63}", name)
    found = f"the variable {name!r}" if is_name else "the variable named here (not shown, it may be a key)"
    wrong = "holds no key, but blanks, line ends or the like" if key else "is not set"
    raise source.error(at, f"{found} {wrong}: `export {name if is_name else 'NAME'}=…`, or remove api_key_env")


def _import(name: str, source: Source, at: At) -> Callable[..., Any]:
    """A callable by its name, `package.module:function`, from the file's folder or from wherever Python looks."""
    before, folder = list(sys.path), str(source.path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        with source.blaming(at, remedy=f"; modules are looked for in {folder}, then among the installed"):
            return import_callable(name)
    finally:
        sys.path[:] = before


def _verifier(value: Any, source: Source, at: At, env: Mapping[str, str]) -> Verifier:
    parts = {(*at, i): part for i, part in enumerate(value)} if isinstance(value, list) else {at: value}
    checks = [check for here, part in parts.items() for check in _checks(part, source, here, env)]
    with source.blaming(at):
        return checks[0] if len(checks) == 1 else AllOf(checks)


def _checks(value: Any, source: Source, at: At, env: Mapping[str, str]) -> list[Verifier]:
    """The verifiers in one mapping."""
    given = _parse(_Verify, value, source, at)
    for option, of in (("full", "regex"), ("timeout_s", "command")):
        if option in given.model_fields_set and getattr(given, of) is None:
            raise source.error((*at, option), f"is for {of!r}, which is not there: remove it")
    checks: list[Verifier] = []
    if given.json_schema is not None:
        schema = _schema(given.json_schema, source, (*at, "schema"))
        with source.blaming((*at, "schema"), remedy="; correct the schema"):
            checks.append(SchemaVerifier(schema))
    if given.regex is not None:
        with source.blaming((*at, "regex"), remedy="; correct the pattern"):
            checks.append(RegexVerifier(given.regex, full=given.full))
    if given.callable is not None:
        call = _import(given.callable, source, (*at, "callable"))
        with source.blaming((*at, "callable")):
            checks.append(CallableVerifier(call))
    if given.command is not None:
        with source.blaming((*at, "command")):
            checks.append(ExitCodeVerifier(_found(given.command, source), timeout_s=given.timeout_s))
    if given.judge is not None:
        checks.append(_judge(given.judge, source, (*at, "judge"), env))
    if not checks:
        raise source.error(at, "checks nothing: add schema, regex, callable, command or judge")
    return checks


def _schema(value: Any, source: Source, at: At) -> dict[str, Any]:
    """A JSON Schema that stands in the file, or in another."""
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(source.file(value).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise source.error(at, f"{value!r} cannot be read ({error}): expected a JSON Schema in a file") from error
    if not isinstance(schema, dict):
        raise source.error(at, f"found {shown(schema)}, expected a JSON Schema, or the name of a file with one")
    return schema


def _found(command: Sequence[str], source: Source) -> list[str]:
    """A command that can be run from any folder: files of this one that it names, by their whole path."""
    paths = [os.path.abspath(source.file(part)) for part in command]
    is_file = [os.path.isfile(path) and (i > 0 or os.sep in command[0]) for i, path in enumerate(paths)]
    return [path if file else part for part, path, file in zip(command, paths, is_file, strict=True)]


def _judge(value: dict[str, Any], source: Source, at: At, env: Mapping[str, str]) -> Verifier:
    given = _parse(_Judge, value, source, at)
    question = given.question
    if "{output}" not in question:  # it takes the place of the usual one; with {output}, it is all that is asked
        question = DEFAULT_QUESTION.replace(_Judge.model_fields["question"].default, question)
    with source.blaming((*at, "question")):
        return JudgeVerifier(_model("judge", given, source, at, env), question=question, threshold=given.threshold)
