"""YAML files: what they hold, with the line of each thing, or an error that names the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.contracts.errors import ConfigError
from etude.files.yaml_source import LoaderWithoutAliases, Source, read_source


def read(folder: Path, text: str, **options: Any) -> tuple[Source, dict[str, Any]]:
    (folder / "a.yaml").write_text(text)
    return read_source(folder / "a.yaml", kind=ConfigError, expected="sections", **options)


def test_everything_has_its_value_and_its_line(tmp_path: Path) -> None:
    text = "a:\n  lr: 1e-3\n  steps: 1e6\n  on: true\n  names:\n    - x\n    - 2026-11-16x\nb:\n"
    source, tree = read(tmp_path, text)
    assert tree == {"a": {"lr": 0.001, "steps": 1_000_000, "on": True, "names": ["x", "2026-11-16x"]}, "b": None}
    assert isinstance(tree["a"]["steps"], int)
    assert source.lines == {
        (): 1,
        ("…",): 8,
        ("a",): 1,
        ("a", "…"): 5,
        ("a", "lr"): 2,
        ("a", "steps"): 3,
        ("a", "on"): 4,
        ("a", "names"): 5,
        ("a", "names", 0): 6,
        ("a", "names", 1): 7,
        ("b",): 8,
    }
    assert str(source.error(("a", "names", 1), "is wrong")) == f"{tmp_path}/a.yaml:7: a.names.1: is wrong"


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "# later\n")[1] == {}


def test_what_is_merged_in_counts_where_the_mapping_itself_says_nothing(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n"
    assert read(tmp_path, text)[1]["c"] == {"x": 3, "y": 1, "z": 2}
    with pytest.raises(ConfigError, match=r"a\.yaml:4: .*found the alias \*a"):
        read(tmp_path, text, loader=LoaderWithoutAliases)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a: 1\nb: [\n", "a.yaml:3: cannot be read as YAML"),
        ("a:\n  b: 1\n  b: 2\n", "a.yaml:3: a.b: stands there twice"),
        ("- 1\n", "a.yaml:1: holds [1]: expected sections"),
        ("a: !!set {b, c}\n", "a.yaml:1: a: found the tag"),
        ("a: &a [*a]\n", "nested too deep"),
        ("a: b\n<<: c\n", "a.yaml:2: …: found the key '<<'"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(text: str, reported: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert reported in str(refused.value)
