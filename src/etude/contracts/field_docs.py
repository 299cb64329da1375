"""The docstring below each field of a class, which Python itself discards: used in help texts and schemas."""

from __future__ import annotations

import ast
import inspect


def field_docs(kind: type) -> dict[str, str]:
    """Docstrings by field name, inherited fields included; empty for a class that is not written in Python."""
    found = {}
    for own in reversed([base for base in kind.__mro__ if base.__module__.partition(".")[0] == "etude"]):
        body = ast.parse(inspect.getsource(own)).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found
