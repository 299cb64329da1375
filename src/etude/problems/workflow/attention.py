"""Layers of a transformer that reads ragged texts and lends out what it has read."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WAVE = 100.0
"""Of the slowest turn between words."""
Pair = tuple[Tensor, Tensor]
"""Keys and values (n, heads, tokens, width / heads), or cosines and sines."""


class Block(nn.Module):
    """A transformer's layer that gives its keys and values away, so that what was read is read once."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, seen: Tensor, before: Pair) -> tuple[Tensor, Tensor, Tensor]:
        """x (n, S, d) attending to `before` and itself where `seen` (n, 1, S, keys); with its own keys and values."""
        q, k, v = (self._apart(part) for part in self._project(x))
        mixed = F.scaled_dot_product_attention(
            q, torch.cat([before[0], k], 2), torch.cat([before[1], v], 2), attn_mask=seen
        )
        return self._think(x, mixed.transpose(1, 2).flatten(2)), k, v

    def read(self, x: Tensor, words: Packing, seen: Tensor, turns: Pair) -> Tensor:
        """Words x (words, d) attending to each other, where `seen` (n, 1, 1, L), by what they are and how far apart."""
        q, k, v = self._project(x)
        q, k = (turned(part.unflatten(1, (self.heads, -1)), turns).flatten(1) for part in (q, k))
        q, k, v = (self._apart(part) for part in words.unpack(torch.cat([q, k, v], 1)).chunk(3, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self._think(x, words.pack(mixed.transpose(1, 2).flatten(2)))

    def offer(self, x: Tensor) -> Pair:
        """Keys and values of x (n, S, d), for others to attend to."""
        d = x.shape[2]
        keys, values = F.linear(self.norm_in(x), self.project.weight[d:], self.project.bias[d:]).chunk(2, -1)
        return self._apart(keys), self._apart(values)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.project(self.norm_in(x)).chunk(3, -1)  # type: ignore[no-any-return]

    def _apart(self, x: Tensor) -> Tensor:
        """(n, S, d) to (n, heads, S, d / heads)."""
        parts: Tensor = x.unflatten(2, (self.heads, -1))
        return parts.transpose(1, 2)

    def _think(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(self.merge(mixed))
        thought: Tensor = self.down(F.gelu(self.up(self.norm_out(x))))
        added: Tensor = x + self.dropout(thought)
        return added


class Packing:
    """Ragged rows of words without what fills them up: only what is there is computed."""

    def __init__(self, mask: Tensor) -> None:
        """`mask` (n, L) bool: where there is a word; each row has its first."""
        self.shape, self.index = mask.shape, mask.flatten().nonzero()[:, 0]
        self.place = self.index % mask.shape[1]  # (words,) each word's in its row

    def pack(self, x: Tensor) -> Tensor:
        """(n, L, …) to (words, …)."""
        return x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """(words, d) to (n, L, d), 0 where there is none."""
        empty = x.new_zeros((self.shape.numel(), x.shape[1]))
        padded: Tensor = empty.index_copy(0, self.index, x).unflatten(0, self.shape)
        return padded

    def neighbours(self, x: Tensor) -> Tensor:
        """(words, d) to (words, 3 d): a word between those before and after it that are there; 0 at the ends."""
        first = (self.place == 0)[:, None]
        before = F.pad(x, (0, 0, 1, -1)).masked_fill(first, 0)
        after = F.pad(x, (0, 0, -1, 1)).masked_fill(F.pad(first, (0, 0, -1, 1), value=True), 0)
        return torch.cat([before, x, after], 1)


def turns_of(place: Tensor, width: int) -> Pair:
    """Cosines and sines (words, 1, width / 2) by which words are turned: attention then sees how far apart they are.

    Su et al., 2021; instructions are short, so the slowest wave is too.
    """
    wave = WAVE ** (-torch.arange(0, width, 2, device=place.device) / width)
    angle = place[:, None, None] * wave
    return angle.cos(), angle.sin()


def turned(x: Tensor, turns: Pair) -> Tensor:
    cos, sin = turns
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
