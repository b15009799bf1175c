"""A trainer that dies is started again, but not for ever."""

from __future__ import annotations

from infra.local.restarts import Restarts


def test_so_many_within_any_window() -> None:
    now = 0.0
    restarts = Restarts(2, 60.0, lambda: now)
    assert restarts.allowed("trainer 0")
    now = 30.0
    assert restarts.allowed("trainer 0")
    now = 59.0
    assert not restarts.allowed("trainer 0")
    assert restarts.allowed("trainer 1"), "each has its own"
    now = 61.0
    assert restarts.allowed("trainer 0"), "the first is forgotten"
    assert not restarts.allowed("trainer 0")


def test_none_at_all() -> None:
    assert not Restarts(0, 60.0).allowed("trainer 0")
