from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from etude.contracts.errors import ConfigError, MissingExtraError
from etude.text.cache import CachedEncoder
from etude.text.encoders import make_encoder
from etude.text.endpoint import EndpointEncoder
from etude.text.ngrams import NGramEncoder
from etude.text.static import StaticEncoder
from tests.unit.text.service import Service
from tests.unit.text.weights import needs_minilm, needs_static


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def test_ngrams_need_no_file(tmp_path: Path) -> None:
    encoder = make_encoder("ngrams", tmp_path / "cache.sqlite")
    assert isinstance(encoder, NGramEncoder)
    encoder.tokens(["a"])
    assert list(tmp_path.iterdir()) == []


@needs_static
def test_fast_is_static() -> None:
    assert isinstance(make_encoder("fast"), StaticEncoder)
    assert make_encoder("fast") is make_encoder("fast")  # policies share its table


@needs_minilm
def test_minilm_is_cached(tmp_path: Path) -> None:
    from etude.text.minilm import MiniLMEncoder

    encoder = make_encoder("minilm")
    assert isinstance(encoder, CachedEncoder)
    assert isinstance(encoder.encoder, MiniLMEncoder)
    assert encoder.path == tmp_path / "xdg" / "etude" / "embeddings.sqlite"


def test_a_url_is_a_service_and_its_model(service: Service, tmp_path: Path) -> None:
    encoder = make_encoder(f"{service.url}#org/model", api_key="sk-1")
    assert isinstance(encoder, CachedEncoder)
    assert isinstance(encoder.encoder, EndpointEncoder)
    encoder.tokens(["a"])
    encoder.tokens(["a"])
    assert [asked["model"] for asked in service.asked] == ["org/model"]
    assert service.headers[0]["Authorization"] == "Bearer sk-1"
    assert (tmp_path / "xdg" / "etude" / "embeddings.sqlite").exists()


@pytest.mark.parametrize(("xdg", "path"), [("", "home/.cache"), ("relative", "home/.cache"), (None, "home/.cache")])
def test_where_vectors_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, xdg: str | None, path: str) -> None:
    if xdg is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    encoder = make_encoder("http://host/v1#m")
    assert isinstance(encoder, CachedEncoder)
    assert encoder.path == tmp_path / path / "etude" / "embeddings.sqlite"


def test_another_file_may_be_named(tmp_path: Path) -> None:
    encoder = make_encoder("http://host/v1#m", tmp_path / "mine")
    assert isinstance(encoder, CachedEncoder)
    assert encoder.path == tmp_path / "mine"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "home", nowhere)
    assert isinstance(make_encoder("http://host/v1#m"), EndpointEncoder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minlm", r"unknown encoder 'minlm': did you mean 'minilm'\? expected one of ngrams, fast, minilm or https"),
        ("NGRAM", r"did you mean 'ngrams'\?"),
        ("", "unknown encoder '': expected"),
        ("file:///etc/passwd#m", "unknown encoder"),
        ("https://host/v1", "names no model: expected https://host/v1#model"),
        ("https://host/v1#", "names no model"),
        ("https://#m", "expected that of an embeddings service"),
    ],
)
def test_what_is_no_encoder(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_encoder(name)


def test_without_torch_minilm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "etude.text.minilm", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"'torch'.*etude\[train\]"):
        make_encoder("minilm")


def test_the_other_encoders_bring_no_torch() -> None:
    code = "import sys; from etude.text.encoders import make_encoder; make_encoder('ngrams').tokens(['a']); "
    code += "print([name for name in ('torch', 'tokenizers', 'scipy', 'safetensors') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
