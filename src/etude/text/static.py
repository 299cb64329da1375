"""Static word vectors: a table look-up per token, some hundredths of a millisecond per sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.contracts.errors import MissingExtraError
from etude.contracts.ports import Vectors
from etude.text.packages import package_file, version
from etude.text.tokeniser import read_tokeniser, token_ids

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENISER = "tokenizers/l2_supercat_tokenizer_config.json"


class StaticEncoder:
    """The vectors of the `wordllama` wheel, not normalised: more informative words have longer vectors."""

    def __init__(self, *, max_tokens: int = 256) -> None:
        missing = MissingExtraError(needs="wordllama", extra="text")
        weights = package_file("wordllama", WEIGHTS, missing=missing)
        self._tokeniser = read_tokeniser(package_file("wordllama", TOKENISER, missing=missing))
        try:
            from safetensors.numpy import load_file
        except ModuleNotFoundError as error:
            raise MissingExtraError(needs="safetensors", extra="text") from error
        self._table = load_file(weights)["embedding.weight"].astype(np.float32)  # (vocabulary, width)
        self.width = int(self._table.shape[1])
        self.max_tokens = max_tokens
        self.name = f"wordllama-{version('wordllama')}/{self.width}/{max_tokens}"

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        found = token_ids(self._tokeniser, texts, self.max_tokens)
        none = np.zeros((1, self.width), np.float32)
        return [self._table[ids] if ids else none.copy() for ids in found]
