from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from etude.contracts.ports import Vectors
from etude.text.cache import CachedEncoder


class Counted:
    """Vectors that float16 rounds; it counts what it is asked."""

    def __init__(self, name: str = "counted", width: int = 3, scale: float = 1.0) -> None:
        self.name, self._width, self.scale = name, width, scale
        self.asked: list[str] = []
        self.measured = 0

    @property
    def width(self) -> int:
        self.measured += 1
        return self._width

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        self.asked += texts
        rng = [np.random.default_rng(len(text)) for text in texts]
        return [
            self.scale * draw.standard_normal((1 + len(text) % 4, self._width)).astype(np.float32)
            for draw, text in zip(rng, texts, strict=True)
        ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache.sqlite"


TEXTS = ["a", "bb", "ccc", "", "\ud800", "bb"]


def expected(encoder: Counted, texts: Sequence[str]) -> list[np.ndarray]:
    made = Counted(width=encoder.width, scale=encoder.scale).tokens(texts)
    return [vectors.astype(np.float16).astype(np.float32) for vectors in made]


def check(cached: CachedEncoder, texts: Sequence[str]) -> None:
    assert isinstance(cached.encoder, Counted)
    for found, right in zip(cached.tokens(texts), expected(cached.encoder, texts), strict=True):
        assert found.dtype == np.float32
        assert_array_equal(found, right)


def test_a_text_is_encoded_once_and_is_the_same_ever_after(path: Path) -> None:
    first, second = Counted(), Counted()
    check(CachedEncoder(first, path), TEXTS)
    assert first.asked == TEXTS[:-1]
    check(CachedEncoder(second, path), TEXTS)
    assert second.asked == []


def test_only_what_is_new_is_asked_for(path: Path) -> None:
    encoder = Counted()
    cached = CachedEncoder(encoder, path)
    cached.tokens(["a", "bb"])
    check(cached, ["new", "bb", "a", "newer"])
    assert encoder.asked == ["a", "bb", "new", "newer"]


def test_encoders_do_not_share_vectors(path: Path) -> None:
    CachedEncoder(Counted("one", scale=2), path).tokens(["a"])
    check(CachedEncoder(Counted("other"), path), ["a"])


def test_a_full_cache_needs_no_encoder(path: Path) -> None:
    """A service that is away, say: neither its vectors nor their width are asked for."""
    CachedEncoder(Counted(), path).tokens(["a"])
    encoder = Counted()
    cached = CachedEncoder(encoder, path)
    assert len(cached.tokens(["a"])) == 1
    assert cached.width == 3
    assert encoder.measured == 0


def test_many_texts(path: Path) -> None:
    texts = [f"{i} {'x' * (i % 11)}" for i in range(1203)]
    encoder = Counted()
    cached = CachedEncoder(encoder, path)
    check(cached, texts)
    check(cached, texts[::-1])
    assert encoder.asked == texts


def test_what_float16_cannot_hold_is_not_kept(path: Path) -> None:
    encoder = Counted(scale=1e6)
    cached = CachedEncoder(encoder, path)
    for _ in range(2):
        (found,) = cached.tokens(["a"])
        assert_array_equal(found, Counted(scale=1e6).tokens(["a"])[0])
    assert encoder.asked == ["a", "a"]


def alter(path: Path, change: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(f"UPDATE vectors SET {change}").rowcount == 2


@pytest.mark.parametrize(
    "change",
    [
        "data = CAST(substr(data, 1, 2) || x'ff' || substr(data, 4) AS BLOB)",
        "data = substr(data, 1, length(data) - 6)",
        "data = x''",
        "data = 'texte'",
        "data = CAST(x'ff' || substr(data, 2) AS TEXT)",
        "width = 1",
        "width = 0",
        "width = 'three'",
        "crc = crc + 1",
        "digest = randomblob(32)",
    ],
)
def test_an_altered_row_is_made_again(path: Path, change: str) -> None:
    CachedEncoder(Counted(), path).tokens(["bb", "ccc"])
    alter(path, change)
    encoder = Counted()
    check(CachedEncoder(encoder, path), ["bb", "ccc"])
    assert encoder.asked == ["bb", "ccc"]
    check(CachedEncoder(encoder, path), ["bb", "ccc"])
    assert encoder.asked == ["bb", "ccc"]  # and cached again


def test_swapped_rows_are_noticed(path: Path) -> None:
    CachedEncoder(Counted(), path).tokens(["a", "a b c"])  # of the same shape
    with closing(sqlite3.connect(path)) as connection, connection:
        one, other = connection.execute("SELECT data, crc, digest FROM vectors").fetchall()
        for whole, digest in ((one, other[2]), (other, one[2])):
            connection.execute("UPDATE vectors SET data = ?, crc = ? WHERE digest = ?", (*whole[:2], digest))
    check(CachedEncoder(Counted(), path), ["a", "a b c"])


def spoil(path: Path, how: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if how == "no database":
        path.write_bytes(b"not a database, not at all " * 100)
    elif how == "a folder":
        path.mkdir()
    elif how == "a file above it":
        path.parent.rmdir()
        path.parent.write_text("")
    elif how == "another table":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE vectors (other TEXT)")
    else:
        CachedEncoder(Counted(), path).tokens(["a"] + ["x" * i for i in range(300)])
        data = bytearray(path.read_bytes())
        data[4096:] = bytes(len(data) - 4096) if how == "zeroed" else b"\xa5" * (len(data) - 4096)
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["no database", "a folder", "a file above it", "another table", "zeroed", "damaged"])
def test_a_file_of_no_use_is_left_alone(path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    spoil(path, how)
    encoder = Counted()
    cached = CachedEncoder(encoder, path)
    for _ in range(3):
        check(cached, ["a", "bb"])
    assert encoder.asked == ["a", "bb"] * 3
    assert len(caplog.records) == 1  # said once, not at every call
    assert str(path) in caplog.text


def test_a_locked_file_is_passed_over_and_used_again_later(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Counted()
    cached = CachedEncoder(encoder, path, timeout_s=0.01)
    cached.tokens(["a"])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        check(cached, ["a", "bb"])  # read, and not written
        assert encoder.asked == ["a", "bb"]
        assert "locked" in caplog.text
    check(cached, ["a", "bb"])
    check(cached, ["a", "bb"])
    assert encoder.asked == ["a", "bb", "bb"]


def test_a_file_locked_against_reading(path: Path) -> None:
    encoder = Counted()
    cached = CachedEncoder(encoder, path, timeout_s=0.01)
    cached.tokens(["a"])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        check(cached, ["a", "bb"])
        assert encoder.asked == ["a", "a", "bb"]
    check(cached, ["a", "bb"])
    assert encoder.asked == ["a", "a", "bb", "bb"]


def test_a_file_that_is_full_is_still_read(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Counted(width=1000)
    cached = CachedEncoder(encoder, path, max_bytes=100_000)
    cached.tokens(["a"])
    for i in range(50):
        check(cached, ["a", f"{i} more"])
    assert encoder.asked.count("a") == 1
    assert len(caplog.records) == 1
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 400_000


def fill(path: Path, start: int, ready: object) -> None:
    ready.wait()  # type: ignore[attr-defined]
    for i in range(start, start + 20):
        check(CachedEncoder(Counted(), path, timeout_s=20), [f"{n} {'x' * (n % 5)}" for n in range(i, i + 10)])


def test_several_processes_share_a_file(path: Path) -> None:
    check(CachedEncoder(Counted(), path), ["the file is there"])  # two that make it may be in each other's way once
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(3)
    started = [context.Process(target=fill, args=(path, start, ready)) for start in (0, 5, 10)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 0, 0]
    encoder = Counted()
    check(CachedEncoder(encoder, path), [f"{n} {'x' * (n % 5)}" for n in range(39)])
    assert encoder.asked == []
