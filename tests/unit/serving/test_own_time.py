"""Work that others interrupt did not take the time of the interruption; work that waits took the time of the wait."""

from __future__ import annotations

import time

import pytest

from etude.serving import own_time


def test_what_others_do_meanwhile_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    began = own_time.now()
    monkeypatch.setattr(own_time, "monotonic", lambda: time.monotonic() + 60)
    assert own_time.own_s(began) < 30


def test_waiting_is_counted() -> None:
    began = own_time.now()
    time.sleep(0.02)
    assert own_time.own_s(began) >= 0.02
