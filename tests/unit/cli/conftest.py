"""One finished run for all tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import etude, train_command


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    assert etude(*train_command(path, "--quiet", health__kl_max="1e-12")) == 0
    return path


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An etude.yaml or ETUDE_… variable of whoever runs the tests is not theirs."""
    import os

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ETUDE_")]:
        monkeypatch.delenv(name)
