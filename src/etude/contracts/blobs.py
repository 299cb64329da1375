"""The socket to files that are written once: datasets, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class BlobStore(Protocol):
    """Keys, as `datasets/a/manifest.json`, to bytes. A reader sees all of a blob or none of it.

    StoreError where it cannot be reached, read or written.
    """

    @property
    def url(self) -> str:
        """Where it is, for people; it holds no secret."""

    def put(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        """Durable when it returns. Without `replace`, False where the key is there already, and nothing changes."""

    def get(self, key: str) -> bytes | None: ...

    def stream(self, key: str) -> Iterator[bytes]:
        """Its pieces, in order; StoreError where there is none."""

    def keys(self, prefix: str = "") -> list[str]:
        """Sorted."""

    def delete(self, key: str) -> bool:
        """Whether it was there."""
