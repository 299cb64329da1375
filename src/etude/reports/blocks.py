"""The parts of a page: sections, tiles and views, rendered by templates in which all text is escaped.

A template is named `package:file`, so a problem may bring templates of its own next to its report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from etude.contracts import formats

INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
"""Control characters, characters that change the text direction, and non-characters."""


FORMATS = ("duration", "fixed", "percent", "percent_range", "plural", "signed", "usd", "whole")
"""Filters of templates: functions of `formats`."""


class Block(Protocol):
    """Anything that a template can render."""

    def __html__(self) -> str: ...


@dataclass(frozen=True)
class View:
    """A template and its values."""

    template: str
    values: Mapping[str, Any]

    def __html__(self) -> str:
        return _templates().get_template(self.template).render(self.values)


def view(template: str, **values: Any) -> View:
    """A view of a template of this package by name, or of another package as `package:file`."""
    return View(template if ":" in template else f"etude.reports:templates/{template}.html.jinja", values)


@dataclass(frozen=True)
class Tile:
    """One of the main numbers, at the top of the page; `kind` is a class of the style sheet."""

    label: str
    value: str
    note: str
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a page; `name` is its id."""

    title: str
    note: str = ""
    body: Sequence[Block] = ()
    name: str = ""

    def __html__(self) -> str:
        return view("section", section=self).__html__()


class Strong(str):
    """Text in bold."""

    def __html__(self) -> str:
        return Markup("<b>{}</b>").format(_visible(str(self)))


class Code(str):
    """Text in code style."""

    def __html__(self) -> str:
        return Markup("<code>{}</code>").format(_visible(str(self)))


Text = str | Sequence[str]
"""Text of a page; parts of a sequence may be Strong or Code."""


def code(text: str) -> list[str]:
    """Text in which parts between backticks become Code."""
    return [Code(part) if i % 2 else part for i, part in enumerate(text.split("`"))]


def table(heads: Sequence[str], rows: Sequence[Sequence[Text]], *, name: str = "") -> View:
    """A table; the first column has the names of the rows, `heads` are the names of the other columns."""
    return view("table", heads=heads, rows=rows, name=name)


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    made.filters |= {"words": _words, "width": _width}
    made.filters |= {name: getattr(formats, name) for name in FORMATS}
    return made


def _source(name: str) -> str:
    package, _, file = name.partition(":")
    return files(package).joinpath(file).read_text("utf-8")


def _words(text: Text) -> str:
    return text if isinstance(text, str) else Markup().join(Markup.escape(_visible(part)) for part in text)


def _width(share: float, most: float = 100) -> str:
    """A share as a CSS percentage of `most`."""
    return f"{most * min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0:.1f}%"


def _visible(value: object) -> object:
    """The value without invisible characters; a value with its own HTML is unchanged."""
    return INVISIBLE.sub("", value) if isinstance(value, str) and not hasattr(value, "__html__") else value
