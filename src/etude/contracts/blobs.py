"""The port to files that are written once: datasets, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class BlobStore(Protocol):
    """Maps keys such as `datasets/a/manifest.json` to bytes. A reader sees all of a blob or none of it.

    StoreError if the blob store cannot be reached, read or written.
    """

    @property
    def url(self) -> str:
        """Location, for people; it holds no secret."""

    def put(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        """Store a blob durably. Without `replace` an existing blob stays unchanged, and the result is False."""

    def get(self, key: str) -> bytes | None: ...

    def stream(self, key: str) -> Iterator[bytes]:
        """The blob in pieces, in order; StoreError if there is none."""

    def keys(self, prefix: str = "") -> list[str]:
        """Sorted keys that begin with `prefix`."""

    def delete(self, key: str) -> bool:
        """Delete a blob; return whether it existed."""
