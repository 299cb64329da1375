"""A cache for encoders: vectors are stored in a SQLite file as float16 and read from it the next time.

Several processes may share the file. Where it cannot be read or written, the encoder works without it.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.contracts.ports import TextEncoder, Vectors

Stored = NDArray[np.float16]

SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    name TEXT NOT NULL, digest BLOB NOT NULL, width INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (name, digest)
)
"""
PAGE_BYTES = 4096
KEYS = 500
"""Keys per query: SQLite limits the number of parameters."""

log = logging.getLogger(__name__)


class CachedEncoder:
    """The vectors of `encoder`, rounded to float16 whether they come from the file or not.

    Each call opens its own connection, so an encoder may be used by several threads and after a fork. A file that is
    locked for `timeout_s` is skipped for this call; a file that fails otherwise (damaged, or as large as `max_bytes`)
    is not used again. When all vectors are in the file, `encoder` is not called.
    """

    def __init__(self, encoder: TextEncoder, path: Path, *, timeout_s: float = 2.0, max_bytes: int = 4 * 2**30) -> None:
        self.encoder, self.path = encoder, path
        self.name = f"{encoder.name}/float16"
        self._timeout_s, self._max_pages = timeout_s, max(1, max_bytes // PAGE_BYTES)
        self._reads = self._writes = True
        self._width: int | None = None

    @property
    def width(self) -> int:
        if self._width is None:
            rows = self._select("LIMIT 1", ())
            self._width = rows[0][1] if rows else self.encoder.width
        return self._width

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        found = self._read(digests)
        known = found or {}
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
        if missing:
            made = dict(zip(missing, self.encoder.tokens(list(missing.values())), strict=True))
            with np.errstate(over="ignore", under="ignore"):
                rounded = {digest: vectors.astype(np.float16) for digest, vectors in made.items()}
            # Vectors that float16 cannot represent are not cached.
            kept = {digest: vectors for digest, vectors in rounded.items() if np.isfinite(vectors).all()}
            if found is not None:
                self._write(kept)
            known |= made | {digest: vectors.astype(np.float32) for digest, vectors in kept.items()}
        return [known[digest].copy() for digest in digests]

    def _read(self, digests: Sequence[bytes]) -> dict[bytes, Vectors] | None:
        """The cached vectors by digest; None when the file cannot be read."""
        found: dict[bytes, Vectors] = {}
        for start in range(0, len(digests), KEYS):
            some = digests[start : start + KEYS]
            rows = self._select(f"AND digest IN ({','.join('?' * len(some))})", some)
            if rows is None:
                return None
            for digest, width, data in rows:
                if width == self.width:
                    found[digest] = np.frombuffer(data, "<f2").reshape(-1, width).astype(np.float32)
        return found

    def _select(self, condition: str, parameters: Sequence[bytes]) -> list[tuple[bytes, int, bytes]] | None:
        if not self._reads:
            return None
        query = f"SELECT digest, width, crc, data FROM vectors WHERE name = ? {condition}"
        try:
            with self._connection() as connection:
                rows = connection.execute(query, (self.encoder.name, *parameters)).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._reads = _is_locked(error)
            log.warning("the embedding cache %s cannot be read, embeddings are computed: %s", self.path, error)
            return None
        return [(digest, width, data) for digest, width, crc, data in rows if _is_whole(digest, width, crc, data)]

    def _write(self, vectors: Mapping[bytes, Stored]) -> None:
        if not self._writes:
            return
        blobs = {digest: (stored.shape[1], stored.astype("<f2").tobytes()) for digest, stored in vectors.items()}
        rows = [(self.encoder.name, key, width, _crc(key, width, data), data) for key, (width, data) in blobs.items()]
        try:
            with self._connection() as connection, connection:
                connection.execute(f"PRAGMA max_page_count = {self._max_pages}")
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._writes = _is_locked(error)
            log.warning("the embedding cache %s cannot be written, embeddings are not cached: %s", self.path, error)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=self._timeout_s)) as connection:
            connection.text_factory = bytes  # a damaged value may be invalid UTF-8
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # a lost transaction only costs computing it again
            connection.execute(SCHEMA)
            yield connection


def _is_whole(digest: object, width: object, crc: object, data: object) -> bool:
    """Whether a row is as it was written: SQLite does not detect a changed byte."""
    if not isinstance(digest, bytes) or not isinstance(width, int) or not isinstance(data, bytes):
        return False
    return width > 0 and len(data) > 0 and len(data) % (2 * width) == 0 and crc == _crc(digest, width, data)


def _crc(digest: bytes, width: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d" % width, zlib.crc32(digest)))


def _is_locked(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)  # the higher bits give the reason
