"""An encoder for any OpenAI-compatible embeddings service: batches of texts over HTTP in, one vector per text out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from etude.contracts.errors import EndpointError
from etude.contracts.ports import Vectors
from etude.text.service import JsonService


class EndpointEncoder:
    """One token per text. It connects with the first call, also of `width`."""

    def __init__(
        self,
        url: str,  # …/v1 or …/v1/embeddings
        model: str,
        *,
        api_key: str | None = None,  # sent only to this URL; never in a name, message or log
        batch: int = 64,  # texts in one request
        max_bytes: int = 8000,  # per text in UTF-8: a token has at least one byte, and services take about 8,000 tokens
        timeout_s: float = 30.0,
        attempts: int = 5,  # on 408, 429, 5xx and broken connections
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._service = JsonService(
            url,
            "/embeddings",
            of="an embeddings service",
            api_key=api_key,
            timeout_s=timeout_s,
            attempts=attempts,
            sleep=sleep,
        )
        self._model = model
        self._batch, self._max_bytes = batch, max_bytes
        self._width: int | None = None
        self.name = f"{self._service.shown}#{model}/{max_bytes}"

    @property
    def width(self) -> int:
        if self._width is None:
            self._ask(["width"])
        assert self._width is not None
        return self._width

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        # Services reject empty texts, texts that are too long, and lone surrogates, which are invalid in UTF-8.
        most = self._max_bytes
        known = {i: text.strip()[:most].encode("utf-8", "replace") for i, text in enumerate(texts) if text.strip()}
        cut = {i: text[:most].decode("utf-8", "ignore") for i, text in known.items()}
        order = list(cut)
        found: dict[int, Vectors] = {}
        for start in range(0, len(order), self._batch):
            batch = order[start : start + self._batch]
            found.update(zip(batch, self._ask([cut[i] for i in batch]), strict=True))
        return [found[i] if i in found else np.zeros((1, self.width), np.float32) for i in range(len(texts))]

    def _ask(self, texts: list[str]) -> list[Vectors]:
        service = self._service
        reply = service.post({"model": self._model, "input": texts})
        try:
            vectors = _vectors(json.loads(reply), len(texts))
        except (ValueError, OverflowError, RecursionError) as error:
            raise EndpointError(f"{service.shown} answered {service.readable(reply)!r}: {error}") from error
        width = vectors[0].shape[1]
        if width != (self._width or width):
            raise EndpointError(f"{service.shown} answered vectors of width {width}: expected {self._width}")
        self._width = width
        return vectors


def _vectors(reply: Any, count: int) -> list[Vectors]:
    """The vectors of a reply in the order of the texts, each (1, width); ValueError where one is missing."""
    rows = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected an object with a list 'data' of objects")
    if len(rows) != count:
        raise ValueError(f"it has {len(rows)} vectors, expected {count}")
    index = [row.get("index", i) for i, row in enumerate(rows)]
    if not all(isinstance(i, int) for i in index) or sorted(index) != list(range(count)):
        raise ValueError(f"its indexes are {index[:10]}, expected each of 0 to {count - 1} once")
    found = [rows[place].get("embedding") for place in np.argsort(index)]
    if not all(isinstance(v, list) and v and all(type(x) in (int, float) for x in v) for v in found):
        raise ValueError("expected every 'embedding' to be a list of numbers")
    if len({len(vector) for vector in found}) > 1:
        raise ValueError("its vectors have several widths")
    with np.errstate(over="ignore"):
        vectors = np.array(found, float).astype(np.float32)[:, None]  # (texts, 1, width)
    if not np.isfinite(vectors).all():
        raise ValueError("expected finite numbers")
    return [vector.copy() for vector in vectors]  # a view would keep the whole batch
