"""Waits that double, end, and hear a stop."""

import time

import pytest

from trainer import backoff
from trainer.backoff import Backoff


@pytest.fixture
def slept(monkeypatch):
    """A clock that only sleeping moves."""
    now, naps = [100.0], []

    def sleep(s: float) -> None:
        naps.append(s)
        now[0] += s

    monkeypatch.setattr(backoff.time, "sleep", sleep)
    monkeypatch.setattr(backoff.time, "monotonic", lambda: now[0])
    return naps


def test_waits_double_up_to_the_most_and_start_again(slept):
    wait = Backoff(0.5, 3.0)
    waits = []
    for _ in range(5):
        before = len(slept)
        wait.wait(lambda: False)
        waits.append(sum(slept[before:]))
    assert waits == pytest.approx([0.5, 1.0, 2.0, 3.0, 3.0])
    wait.reset()
    assert wait.next_s == 0.5
    assert max(slept) <= 0.1


def test_a_stop_ends_the_wait(slept):
    Backoff(1000.0, 1000.0).wait(lambda: len(slept) >= 3)
    assert len(slept) == 3
    Backoff(1000.0).wait(lambda: True)
    assert len(slept) == 3
    assert time is backoff.time


def test_what_comes_back_after_a_long_time_is_noticed_within_two_seconds(slept):
    wait = Backoff()
    for _ in range(20):
        wait.wait(lambda: False)
    before = sum(slept)
    wait.wait(lambda: False)
    assert sum(slept) - before == pytest.approx(2.0)
