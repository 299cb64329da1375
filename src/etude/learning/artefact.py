"""Writes and reads policy artefacts, folders of tensors, files and a manifest: atomic, checked by hash, no pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from etude.contracts.errors import CheckpointError
from etude.contracts.policy import FORMAT, Manifest, version_of
from etude.learning.checkpoint import MANIFEST, TENSORS, read_tensors, save_tensors, under, write_folder

if TYPE_CHECKING:  # torch takes seconds to import, and listing runs needs none of it
    from torch import Tensor


@dataclass(frozen=True)
class Artefact:
    """A trained policy in a folder. Every file is checked against its hash when it is read."""

    path: Path
    in_force: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """By dotted key, settings that hold in place of those it learned with."""

    def under(self, settings: Mapping[str, Any]) -> Artefact:
        """The same policy, with these settings in force."""
        return replace(self, in_force=settings)

    @property
    def manifest(self) -> Manifest:
        return self._read[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The sections that it learned with, with what is in force now."""
        found = {name: dict(section) for name, section in self.manifest.settings.items()}
        for key, value in self.in_force.items():
            section, _, name = key.partition(".")
            found.setdefault(section, {})[name] = value
        return found

    @property
    def version(self) -> str:
        """Hash of the bytes of manifest.json: a field that a later Etude adds to manifests changes no version."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[Manifest, str]:
        file = self.path / MANIFEST
        try:
            data = file.read_bytes()
            found = msgspec.json.decode(data).get("format")
            if found != FORMAT:
                raise CheckpointError(
                    f"{self.path}: policy format {found!r}, expected {FORMAT}: it was trained by another version of "
                    "Etude; train it again, or use that version"
                )
            return msgspec.json.decode(data, type=Manifest), version_of(data)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(f"{self.path}: no policy here: {MANIFEST} is missing; train one") from error
        except (msgspec.DecodeError, AttributeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: not a policy's manifest ({error}): restore it, or train again") from error

    def tensors(self) -> dict[str, Tensor]:
        return read_tensors(self.file(TENSORS), self.path / TENSORS)

    def file(self, name: str) -> bytes:
        path = self.path / name
        if name not in self.manifest.files:
            raise CheckpointError(f"{self.path}: holds no {name}: it is a policy of another kind")
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing: restore it, or train again") from error
        if hashlib.sha256(data).hexdigest() != self.manifest.files[name]:
            raise CheckpointError(
                f"{path}: {len(data)} bytes do not match the manifest's SHA-256: restore it, or train again"
            )
        return data


def load_weights(network: Any, artefact: Artefact) -> None:
    """Load the weights of an artefact into a network; CheckpointError if they do not fit."""
    try:
        network.load_state_dict(under("policy.", artefact.tensors()))
    except RuntimeError as error:
        raise CheckpointError(
            f"{artefact.path}: its weights do not fit the network that its settings describe ({error!s:.200}): train "
            "it again"
        ) from error


def write_artefact(
    folder: Path, *, tensors: Mapping[str, Tensor], files: Mapping[str, bytes], about: Mapping[str, Any]
) -> Artefact:
    """Write an artefact to `folder` by one rename; `about` are the manifest's other fields."""
    contents = {TENSORS: save_tensors(tensors), **files}
    manifest = Manifest(files={name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}, **about)
    write_folder(folder, contents | {MANIFEST: manifest.encode()})
    return Artefact(folder)
