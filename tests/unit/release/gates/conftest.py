from __future__ import annotations

from pathlib import Path

import pytest

from etude.learning.artefact import Artefact
from tests.unit.release.gates.policies import make_artefact


@pytest.fixture
def artefact(tmp_path: Path) -> Artefact:
    return make_artefact(tmp_path / "candidate", data=["c" * 64])
