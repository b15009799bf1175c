"""Reentrant, and nobody has it twice while another waits."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from embedding_store.turn_lock import TurnLock

WAIT_S = 30.0


def test_who_waits_is_next() -> None:
    """However fast the holder takes it again: at the second turn after it was seen waiting, the other has had it."""
    lock, turns, asking = TurnLock(), 0, threading.Event()
    had_at: list[int] = []

    def other() -> None:
        asking.set()
        with lock:
            had_at.append(turns)

    with ThreadPoolExecutor(1) as pool:
        lock.acquire()
        waiting = pool.submit(other)
        assert asking.wait(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while lock._door.acquire(blocking=False):  # until it stands in the door
            lock._door.release()
            assert time.monotonic() < deadline
        lock.release()
        for _ in range(1000):
            with lock:
                turns += 1
        waiting.result(WAIT_S)
    assert had_at == [0]


def test_many_threads_count_right() -> None:
    lock, counts = TurnLock(), [0]

    def work() -> None:
        for _ in range(2000):
            with lock, lock:
                counts[0] += 1

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result(WAIT_S)
    assert counts == [8000]


def test_its_holder_takes_it_again_and_others_are_told() -> None:
    lock = TurnLock()
    assert lock.acquire()
    assert lock.acquire(blocking=False)
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(lock.acquire, blocking=False).result(WAIT_S)
        lock.release()
        assert not pool.submit(lock.acquire, blocking=False).result(WAIT_S)
        lock.release()

        def taken() -> bool:
            with lock:
                return True

        assert pool.submit(taken).result(WAIT_S)
        with pytest.raises(RuntimeError):
            lock.release()
        assert pool.submit(taken).result(WAIT_S)
