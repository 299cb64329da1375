"""Expert workflows to learn from: a training file in, validated examples out, and augmented examples made from them.

The file is a JSON list of `{"instruction", "targets": {"task_types", "dependencies", "model_selections"}, "rewards"}`
with names of the catalogue's task types and workers, or their ids. One invalid record makes the whole file invalid;
the error names it.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from etude.contracts.errors import DataError, PlanError
from etude.contracts.suggestions import nearest
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.plan import topological_order

SHOWN = 10
"""Names listed in a message."""


class Targets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    task_types: tuple[int, ...]
    dependencies: tuple[tuple[int, ...], ...]
    model_selections: tuple[int, ...] | None = None


class Example(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One instruction and an expert's plan for it, its nodes in topological order."""

    instruction: str
    targets: Targets
    rewards: dict[str, float] | None = None


def read_examples(path: Path, catalogue: Catalogue, *, max_nodes: int) -> list[Example]:
    try:
        records: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): expected a training file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}): expected a list of examples") from error
    if not isinstance(records, list) or not records:
        raise DataError(f"{path}: expected a list of examples, at least one, found {type(records).__name__}")
    return to_examples(records, catalogue, max_nodes=max_nodes, source=str(path))


def to_examples(records: Sequence[Any], catalogue: Catalogue, *, max_nodes: int, source: str) -> list[Example]:
    """Validated examples from the records of a training file; errors name the `source` and the record."""
    return [_example(record, f"{source}, record {i}", catalogue, max_nodes) for i, record in enumerate(records)]


def _example(record: Any, where: str, catalogue: Catalogue, max_nodes: int) -> Example:
    try:
        example = msgspec.convert(_with_ids(record, where, catalogue), Example)
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: {error}") from error
    t = example.targets
    count = len(t.task_types)
    if not example.instruction.strip():
        raise DataError(f"{where}: the instruction is empty")
    if not 1 <= count <= max_nodes:
        raise DataError(f"{where}: has {count} nodes, expected 1 to {max_nodes} (limits.max_nodes)")
    if len(t.dependencies) != count:
        raise DataError(f"{where}: has {count} task types, but dependencies for {len(t.dependencies)} nodes")
    _check_ids(t.task_types, len(catalogue.task_types), f"{where}: task type")
    for node, earlier in enumerate(t.dependencies):
        _check_ids(earlier, count, f"{where}: node {node} depends on node")
    if t.model_selections is not None:
        if len(t.model_selections) != count:
            raise DataError(f"{where}: has {count} task types, but {len(t.model_selections)} model selections")
        _check_ids(t.model_selections, len(catalogue.workers), f"{where}: worker")
    bad = [name for name, value in (example.rewards or {}).items() if not math.isfinite(value)]
    if bad:
        raise DataError(f"{where}: reward {bad[0]!r} is {(example.rewards or {})[bad[0]]!r}, expected a number")
    try:
        return _ordered(example)
    except PlanError as error:
        raise DataError(f"{where}: {error}; a plan has no cycles") from error


def _with_ids(record: Any, where: str, catalogue: Catalogue) -> Any:
    """The record with ids in place of names; what is neither is left to the check of types."""
    targets = record.get("targets") if isinstance(record, dict) else None
    if not isinstance(targets, dict):
        return record
    found = dict(targets)
    entries: dict[str, tuple[str, Sequence[TaskType | Worker]]] = {
        "task_types": ("task type", catalogue.task_types),
        "model_selections": ("worker", catalogue.workers),
    }
    for key, (kind, known) in entries.items():
        if isinstance(found.get(key), list) and any(isinstance(item, str) for item in found[key]):
            ids = {entry.name: i for i, entry in enumerate(known)}
            found[key] = [_id(item, ids, f"{where}, node {n}: the {kind}") for n, item in enumerate(found[key])]
    return {**record, "targets": found}


def _id(item: Any, ids: Mapping[str, int], what: str) -> Any:
    if not isinstance(item, str):
        return item
    if item in ids:
        return ids[item]
    hint = nearest(item, ids) or f": its names are {', '.join(list(ids)[:SHOWN]) or 'none'}{' …' * (len(ids) > SHOWN)}"
    raise DataError(f"{what} {item!r} is not in the catalogue{hint}")


def to_record(example: Example, catalogue: Catalogue) -> dict[str, Any]:
    """A record of a training file, with names of the catalogue instead of ids; dependencies stay indices."""
    rewards = {} if example.rewards is None else {"rewards": example.rewards}
    return {"instruction": example.instruction, "targets": named_targets(example.targets, catalogue), **rewards}


def named_targets(targets: Targets, catalogue: Catalogue) -> dict[str, Any]:
    """The targets of a record with names instead of ids."""
    types = [catalogue.task_types[i].name for i in targets.task_types]
    named: dict[str, Any] = {"task_types": types, "dependencies": targets.dependencies}
    if targets.model_selections is not None:
        named["model_selections"] = [catalogue.workers[i].name for i in targets.model_selections]
    return named


def _check_ids(ids: Sequence[int], count: int, what: str) -> None:
    for i in ids:
        if not 0 <= i < count:
            known = f"ids go from 0 to {count - 1}" if count else "there are none"
            raise DataError(f"{what} {i} does not exist: {known}")


def _ordered(example: Example) -> Example:
    """The example with its nodes in topological order and without repeated dependencies."""
    t = example.targets
    order = topological_order(t.dependencies)
    place = {old: new for new, old in enumerate(order)}
    targets = Targets(
        task_types=tuple(t.task_types[i] for i in order),
        dependencies=tuple(tuple(sorted({place[j] for j in t.dependencies[i]})) for i in order),
        model_selections=None if t.model_selections is None else tuple(t.model_selections[i] for i in order),
    )
    return msgspec.structs.replace(example, targets=targets)


OPENINGS = ("Please ", "I want to ", "I need to ", "Help me: ", "Could you ", "")
CONNECTIVES = (", then ", " and ", ". After that, ", ", and then ", "; next ", ", followed by ")


def augment(examples: Sequence[Example], catalogue: Catalogue, count: int, rng: random.Random) -> list[Example]:
    """`count` new examples: plans of given ones, with instructions in the words of the catalogue's descriptions.

    Plans with rare task types are sampled more often. The network so learns to read descriptions, which are all there
    is for a task type added later.
    """
    if not examples or count <= 0:
        return []
    uses = Counter(t for example in examples for t in example.targets.task_types)
    rarity = [(sum(uses[t] for t in e.targets.task_types) / len(e.targets.task_types)) ** -0.5 for e in examples]
    made = []
    for example in rng.choices(examples, rarity, k=count):
        asked = [wording(catalogue, t, rng) for t in example.targets.task_types]
        text = rng.choice(OPENINGS) + asked[0] + "".join(rng.choice(CONNECTIVES) + part for part in asked[1:])
        made.append(Example(instruction=f"{text}.", targets=example.targets))
    return made


def wording(catalogue: Catalogue, task_type: int, rng: random.Random) -> str:
    """The name or the description of a task type, at random."""
    entry = catalogue.task_types[task_type]
    name = readable(entry.name).lower()
    description = entry.description.strip().rstrip(".").lower()
    return name if not description or rng.random() < 0.3 else description


def readable(name: str) -> str:
    """A name as words, for text encoders: `send_e-mail` to "send e-mail", `Flights.FindOne` to "Flights Find One"."""
    return re.sub(r"[_.]|(?<=[a-z0-9])(?=[A-Z])", " ", name).strip()


def described(entry: TaskType | Worker) -> str:
    """The name and the description as one text, for text encoders."""
    return f"{readable(entry.name)}: {entry.description}"
