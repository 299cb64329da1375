"""An encoder by its name: `ngrams`, `fast`, `minilm`, or the URL of an embeddings service."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from etude.contracts.errors import ConfigError, MissingExtraError
from etude.contracts.ports import TextEncoder
from etude.text.cache import CachedEncoder
from etude.text.endpoint import EndpointEncoder
from etude.text.ngrams import NGramEncoder
from etude.text.static import StaticEncoder

NAMES = ("ngrams", "fast", "minilm")


def make_encoder(name: str, cache: Path | None = None, *, api_key: str | None = None) -> TextEncoder:
    """`ngrams` needs nothing, `fast` and `minilm` a package each, `https://host/v1#model` a service and its `api_key`.

    The vectors of `minilm` and of services are kept in `cache`, a file of the user's by default; the others are made
    faster than read.
    """
    if name == "ngrams":
        return NGramEncoder()
    if name == "fast":
        return StaticEncoder()
    if name == "minilm":
        return _cached(_minilm(), cache)
    if name.startswith(("http://", "https://")):
        url, _, model = name.partition("#")
        if not model:
            raise ConfigError(f"encoder {name!r} names no model: expected {url}#model")
        return _cached(EndpointEncoder(url, model, api_key=api_key), cache)
    close = difflib.get_close_matches(name.lower(), NAMES, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(f"unknown encoder {name!r}: {guess}expected one of {', '.join(NAMES)} or https://host/v1#model")


def _minilm() -> TextEncoder:
    try:
        from etude.text.minilm import MiniLMEncoder
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("etude"):
            raise
        raise MissingExtraError(needs=error.name, extra="train") from error
    return MiniLMEncoder()


def _cached(encoder: TextEncoder, cache: Path | None) -> TextEncoder:
    path = cache or _default_cache()
    return CachedEncoder(encoder, path) if path else encoder


def _default_cache() -> Path | None:
    folder = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"  # so says the XDG specification
    except RuntimeError:  # a user without a home
        return None
    return base / "etude" / "embeddings.sqlite"
