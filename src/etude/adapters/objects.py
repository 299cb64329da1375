"""Blob stores: a folder, or an S3-compatible bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from uuid import uuid4

from etude.contracts.blobs import BlobStore
from etude.contracts.errors import ConfigError, MissingExtraError, StoreError
from etude.contracts.services import mask_url
from etude.contracts.suggestions import did_you_mean
from etude.files.durable import make_folder, sync_folder, write_file

if TYPE_CHECKING:
    from obstore.store import S3Store

PIECE = 1 << 20
"""Size of a piece of a stream, in bytes."""
OPTIONS = ("endpoint", "region")
"""Query parameters of a bucket's URL."""


def open_blobs(url: str | Path, under: str = "") -> BlobStore:
    """A folder by its path, or `s3://bucket/prefix?endpoint=https://…&region=…`; `under` is a further prefix.

    Credentials of a bucket come from where AWS's own tools take them (AWS_ACCESS_KEY_ID and so on), never from the URL.
    """
    scheme = urlsplit(str(url)).scheme if "://" in str(url) else ""
    if scheme == "s3":
        return _open_bucket(str(url), under)
    if scheme not in ("", "file"):
        raise ConfigError(
            f"{mask_url(str(url))!r}: blobs live in a folder or in s3://bucket/prefix, not in {scheme}://"
        )
    return FolderBlobs(Path(urlsplit(str(url)).path if scheme else url) / under)


class FolderBlobs:
    """A blob store in a folder: a blob is a file that only its owner may read; names with a leading dot are drafts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def url(self) -> str:
        return str(self.folder)

    def put(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        path = self._path(key)
        with self._named(key):
            if not replace and path.exists():
                return False
            make_folder(path.parent)
            draft = path.with_name(f".{uuid4().hex}.draft")
            try:
                write_file(draft, data)
                if replace:
                    os.replace(draft, path)
                else:
                    os.link(draft, path)  # unlike a rename, it fails if the name exists
                sync_folder(path.parent)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
        return True

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        with self._named(key):
            try:
                return path.read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    def stream(self, key: str) -> Iterator[bytes]:
        with self._named(key), self._path(key).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    def keys(self, prefix: str = "") -> list[str]:
        below = PurePosixPath(prefix.rpartition("/")[0])  # other folders are not looked at: a registry has many
        start = self.folder if ".." in below.parts or below.is_absolute() else self.folder / below
        with self._named(prefix):
            names = (path.relative_to(self.folder) for path in start.rglob("*") if path.is_file())
            keys = (name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))
            return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> bool:
        path = self._path(key)
        with self._named(key):
            try:
                path.unlink()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return False
            sync_folder(path.parent)
        return True

    def _path(self, key: str) -> Path:
        return self.folder / checked_key(key)

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{self.folder / key}: {error.strerror or error} (errno {error.errno}): make sure that it can be read "
                "and written and the disk has room, or choose another folder"
            ) from error


class ObjectBlobs:
    """A blob store in a bucket."""

    def __init__(self, bucket: S3Store, *, url: str) -> None:
        import obstore

        self._bucket, self._url, self._obstore = bucket, url, obstore

    @property
    def url(self) -> str:
        return self._url

    def put(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        with self._named(key):
            try:
                self._obstore.put(self._bucket, checked_key(key), data, mode="overwrite" if replace else "create")
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, key: str) -> bytes | None:
        with self._named(key):
            try:
                return bytes(self._obstore.get(self._bucket, checked_key(key)).bytes())
            except FileNotFoundError:
                return None

    def stream(self, key: str) -> Iterator[bytes]:
        with self._named(key):
            for piece in self._obstore.get(self._bucket, checked_key(key)).stream(min_chunk_size=PIECE):
                yield bytes(piece)

    def keys(self, prefix: str = "") -> list[str]:
        folder = prefix.rpartition("/")[0]  # a bucket lists by whole folder names
        with self._named(prefix):
            pages = self._obstore.list(self._bucket, folder or None)
            return sorted(entry["path"] for page in pages for entry in page if entry["path"].startswith(prefix))

    def delete(self, key: str) -> bool:
        with self._named(key):
            try:
                self._obstore.head(self._bucket, checked_key(key))
            except FileNotFoundError:
                return False
            self._obstore.delete(self._bucket, key)
        return True

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError) as error:
            message = str(error).partition("\n\nDebug source")[0]
            raise StoreError(
                f"{self.url}: {key!r}: {message}: make sure that the bucket is there, its address right, and the "
                "credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY may read and write it"
            ) from error


def checked_key(key: str) -> str:
    """The key; StoreError if it could lead out of the store, or to a draft."""
    parts = PurePosixPath(key).parts
    if "/".join(parts) != key or not key or any(part.startswith((".", "/")) for part in parts) or "\0" in key:
        raise StoreError(f"key {key!r}: expected names separated by slashes, none of which begins with a dot")
    return key


def _open_bucket(url: str, under: str) -> ObjectBlobs:
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ConfigError(
            f"s3://…@{parts.hostname}: a URL is shown and logged, so it holds no credentials: put them into "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not parts.netloc:
        raise ConfigError(f"{mask_url(url)!r}: names no bucket: expected s3://bucket/prefix")
    options = dict(parse_qsl(parts.query))
    for name in options.keys() - set(OPTIONS):
        hint = did_you_mean(name, OPTIONS)
        raise ConfigError(f"s3://{parts.netloc}: unknown option {name!r}: {hint}there are {' and '.join(OPTIONS)}")
    prefix = "/".join(part for part in (parts.path.strip("/"), under.strip("/")) if part)
    shown = f"s3://{parts.netloc}/{prefix}" + (f"?{urlencode(options, quote_via=quote, safe=':/')}" if options else "")
    return ObjectBlobs(_connect(parts.netloc, prefix, options), url=shown)


def _connect(bucket: str, prefix: str, options: dict[str, str]) -> S3Store:
    """A client for the bucket; nothing is sent yet."""
    try:
        from obstore.store import S3Store
    except ModuleNotFoundError as error:
        raise MissingExtraError(needs="obstore", extra="scale") from error
    config: dict[str, Any] = {name: value for name, value in options.items() if value}
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={
            "allow_http": options.get("endpoint", "").startswith("http://"),
            "connect_timeout": "5s",
            "timeout": "120s",
        },
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
        **config,
    )
