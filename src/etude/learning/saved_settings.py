"""The settings that an artefact was trained with, as its problem's dataclass. Reading them needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from etude.contracts.errors import CheckpointError

Own = TypeVar("Own")


def read_own(kind: type[Own], tree: Mapping[str, Any], *, source: object) -> Own:
    """The settings of a problem, read from an artefact or a run."""
    try:
        kept = {f.name: tree[f.name] for f in fields(kind)}  # type: ignore[arg-type]
        return TypeAdapter(kind).validate_json(json.dumps(kept))
    except KeyError as error:
        wrong = f"there is no {error}"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        wrong = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"
    raise CheckpointError(f"{source}: its settings are not those of this version of Etude ({wrong}): train it again")
