"""Texts to token ids, with the tokeniser that comes with a model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from etude.contracts.errors import MissingExtraError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHARACTERS = 32
"""Characters that are read per token allowed: tokens are rarely longer, and tokenising megabytes takes seconds."""


@cache
def read_tokeniser(path: Path) -> Tokenizer:
    """The tokeniser in a `tokenizer.json`; it neither pads nor truncates."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(needs="tokenizers", extra="text") from error
    tokeniser = Tokenizer.from_file(str(path))
    tokeniser.no_padding()
    tokeniser.no_truncation()
    return tokeniser


def token_ids(tokeniser: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """At most `max_tokens` ids for each text, without special tokens; none for a blank one."""
    # One by one: encode_batch starts threads, after which the process cannot fork safely. Lone surrogates are no UTF-8.
    known = [text.strip()[: max_tokens * CHARACTERS].encode("utf-8", "replace").decode() for text in texts]
    encoded = [tokeniser.encode(text, add_special_tokens=False).ids if text else [] for text in known]
    return [list(ids[:max_tokens]) for ids in encoded]
