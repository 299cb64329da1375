"""An encoder by its name: `ngrams`, `fast`, `minilm`, or the URL of an embeddings service."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from etude.contracts.errors import ConfigError, MissingExtraError
from etude.contracts.ports import TextEncoder
from etude.contracts.suggestions import did_you_mean
from etude.text.cache import CachedEncoder
from etude.text.endpoint import EndpointEncoder
from etude.text.ngrams import NGramEncoder
from etude.text.static import StaticEncoder

NAMES = ("ngrams", "fast", "minilm")


def make_encoder(name: str, cache: Path | None = None, *, api_key: str | None = None) -> TextEncoder:
    """`ngrams` needs nothing, `fast` and `minilm` a package each, `https://host/v1#model` a service and its `api_key`.

    The vectors of `minilm` and of services are cached in the file `cache`, by default in the user's cache folder; the
    other encoders are faster than reading a cache.
    """
    if name == "ngrams":
        return NGramEncoder()
    if name == "fast":
        return _static()
    if name == "minilm":
        return _cached(_minilm(), cache)
    if name.startswith(("http://", "https://")):
        url, _, model = name.partition("#")
        if not model:
            raise ConfigError(f"encoder {name!r} names no model: expected {url}#model")
        return _cached(EndpointEncoder(url, model, api_key=api_key), cache)
    hint = did_you_mean(name.lower(), NAMES)
    raise ConfigError(f"unknown encoder {name!r}: {hint}expected one of {', '.join(NAMES)} or https://host/v1#model")


@lru_cache(1)
def _static() -> StaticEncoder:
    """One for the process: nothing of it changes, and its table takes 33 MB."""
    return StaticEncoder()


def _minilm() -> TextEncoder:
    try:
        from etude.text.minilm import MiniLMEncoder
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("etude"):
            raise
        raise MissingExtraError(needs=error.name, extra="train") from error
    return MiniLMEncoder()


def _cached(encoder: TextEncoder, cache: Path | None) -> TextEncoder:
    folder = os.environ.get("XDG_CACHE_HOME", "")  # the XDG specification ignores relative paths
    try:
        base = Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return CachedEncoder(encoder, cache) if cache else encoder
    return CachedEncoder(encoder, cache or base / "etude" / "embeddings.sqlite")
