"""Pages of a list: where the next one begins is an opaque cursor, and ids are checked before they are looked up."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from litestar.params import PathParameter, QueryParameter

from etude.contracts.errors import RequestError

T = TypeVar("T")
MAX_CURSOR = 1024

Limit = Annotated[int, QueryParameter(ge=1, le=500, description="Maximum number of rows.")]
Cursor = Annotated[
    str | None, QueryParameter(max_length=MAX_CURSOR, description="`next` of the page before; absent for the first.")
]
END = r"$(?!\n)"
"""The end of a text: without the second part, a last line break would pass."""
SLOT = r"^[a-z][a-z0-9_-]{0,63}(:[^\x00-\x1f\x7f/\\%]{1,128})?" + END
VERSION = "^[0-9a-f]{4,16}" + END
ID = r"^[A-Za-z0-9][A-Za-z0-9_.:@+-]{0,127}" + END
SlotPath = Annotated[
    str, PathParameter(pattern=SLOT, description="Slot: PROBLEM or PROBLEM:NAME, such as `choice:model`.")
]
VersionPath = Annotated[
    str, PathParameter(pattern=VERSION, description="Version: 16 hexadecimal digits, or at least the first four.")
]
IdPath = Annotated[str, PathParameter(pattern=ID, description="Id, as a list shows it.")]
SlotQuery = Annotated[str | None, QueryParameter(pattern=SLOT, description="Only of this slot.")]


def encode_cursor(key: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).rstrip(b"=").decode()


def decode_cursor(cursor: str | None, kind: type[T]) -> T | None:
    """The key that a cursor holds; RequestError for a text that is none."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=kind)
    except (binascii.Error, UnicodeError, msgspec.DecodeError) as error:
        raise RequestError(
            f"the cursor {cursor[:40]!r} is not one of this list: give `next` of the page before, or leave it out",
            status=400,
        ) from error


def page(
    rows: Iterable[T], key: Callable[[T], tuple[Any, ...]], *, cursor: str | None, kind: Any, limit: int
) -> tuple[list[T], str | None]:
    """A part of all rows, which are sorted by their unique keys, and the cursor of the next part."""
    after = decode_cursor(cursor, kind)
    found = [row for row in rows if after is None or key(row) > after][: limit + 1]
    more = len(found) > limit
    return found[:limit], encode_cursor(key(found[limit - 1])) if more else None
