"""What the tests of this room share: a service to ask, and no proxy on the way to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.text.service import Service, running


@pytest.fixture(scope="module", autouse=True)
def _no_proxy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "127.0.0.1")
        yield


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service
