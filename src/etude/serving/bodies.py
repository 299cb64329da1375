"""JSON bodies of requests: what cannot be read, or is nested without an end, is the request's fault."""

from __future__ import annotations

from typing import Any

from litestar import Request

from etude.contracts.errors import DataError

MAX_DEPTH = 100
"""Levels of objects and lists within each other; what reads and redacts a body goes as deep."""


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is checked before it is validated."""

    async def json(self) -> Any:
        """DataError for text that is not UTF-8, and for a body that is nested too deeply."""
        try:
            found = await super().json()
        except UnicodeDecodeError as error:
            raise DataError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
        except RecursionError as error:
            raise _too_deep() from error
        body = await self.body()
        if may_be_deep(body):
            _check_depth(found)
        return found


def may_be_deep(body: bytes) -> bool:
    """Whether a body has as many brackets as it takes to be nested too deeply."""
    return body.count(b"[") + body.count(b"{") > MAX_DEPTH


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise _too_deep()
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one if isinstance(one, list) else one.values())
        ]


def _too_deep() -> DataError:
    return DataError(f"the body is nested too deeply: expected at most {MAX_DEPTH} levels of objects and lists")
