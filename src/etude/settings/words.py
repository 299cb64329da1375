"""Types of settings in words, for help texts and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen


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
        return f"names with {_plural(args[1]).replace('stages', 'entries')}"
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
