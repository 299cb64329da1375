"""Transformer layers over ragged texts that share their keys and values with later tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROTARY_BASE = 100.0
"""Base of the rotary position embedding's wavelengths."""
Pair = tuple[Tensor, Tensor]
"""Keys and values (n, heads, tokens, width / heads), or cosines and sines."""


class Block(nn.Module):
    """A pre-norm transformer layer that also returns its keys and values, so that each text is encoded only once."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, seen: Tensor, before: Pair) -> tuple[Tensor, Tensor, Tensor]:
        """x (n, S, d) attends to `before` and to itself where `seen` (n, 1, S, keys); also returns its keys, values."""
        q, k, v = (self._split_heads(part) for part in self._project(x))
        mixed = F.scaled_dot_product_attention(
            q, torch.cat([before[0], k], 2), torch.cat([before[1], v], 2), attn_mask=seen
        )
        return self._feed_forward(x, mixed.transpose(1, 2).flatten(2)), k, v

    def read(self, x: Tensor, words: Packing, seen: Tensor, rotation: Pair) -> Tensor:
        """Words x (words, d) attend to the words of their text where `seen` (n, 1, 1, L), with rotary positions."""
        q, k, v = self._project(x)
        q, k = (rotate(part.unflatten(1, (self.heads, -1)), rotation).flatten(1) for part in (q, k))
        q, k, v = (self._split_heads(part) for part in words.unpack(torch.cat([q, k, v], 1)).chunk(3, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self._feed_forward(x, words.pack(mixed.transpose(1, 2).flatten(2)))

    def offer(self, x: Tensor) -> Pair:
        """Keys and values of x (n, S, d), for others to attend to."""
        d = x.shape[2]
        keys, values = F.linear(self.norm_in(x), self.project.weight[d:], self.project.bias[d:]).chunk(2, -1)
        return self._split_heads(keys), self._split_heads(values)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.project(self.norm_in(x)).chunk(3, -1)  # type: ignore[no-any-return]

    def _split_heads(self, x: Tensor) -> Tensor:
        """(n, S, d) to (n, heads, S, d / heads)."""
        parts: Tensor = x.unflatten(2, (self.heads, -1))
        return parts.transpose(1, 2)

    def _feed_forward(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(self.merge(mixed))
        hidden: Tensor = self.down(F.gelu(self.up(self.norm_out(x))))
        added: Tensor = x + self.dropout(hidden)
        return added


class Packing:
    """Packs ragged rows of words without their padding, so that nothing is computed for padding."""

    def __init__(self, mask: Tensor) -> None:
        """`mask` (n, L) bool: true where there is a word; the first word of each row must be there."""
        self.shape, self.index = mask.shape, mask.flatten().nonzero()[:, 0]
        self.place = self.index % mask.shape[1]  # (words,): the position of each word in its row

    def pack(self, x: Tensor) -> Tensor:
        """(n, L, …) to (words, …)."""
        return x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """(words, d) to (n, L, d), 0 for padding."""
        empty = x.new_zeros((self.shape.numel(), x.shape[1]))
        padded: Tensor = empty.index_copy(0, self.index, x).unflatten(0, self.shape)
        return padded

    def neighbours(self, x: Tensor) -> Tensor:
        """(words, d) to (words, 3 d): the word before, the word itself and the word after; 0 at the ends of a text."""
        first = (self.place == 0)[:, None]
        before = F.pad(x, (0, 0, 1, -1)).masked_fill(first, 0)
        after = F.pad(x, (0, 0, -1, 1)).masked_fill(F.pad(first, (0, 0, -1, 1), value=True), 0)
        return torch.cat([before, x, after], 1)


def rotary_angles(place: Tensor, width: int) -> Pair:
    """Cosines and sines (words, 1, width / 2) of the rotary position embedding (Su et al., 2021).

    Instructions are short, so the longest wavelength is short too.
    """
    frequency = ROTARY_BASE ** (-torch.arange(0, width, 2, device=place.device) / width)
    angle = place[:, None, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: Pair) -> Tensor:
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
