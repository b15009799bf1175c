"""Running transactions until they commit, with a queue for when writers keep aborting each other."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from embedding_store.errors import StoreUnavailable
from embedding_store.redis_store.client import Moved
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.topology import Nodes

ATTEMPTS = 3
"""Optimistic attempts before a writer queues up."""

LOCK_TTL_MS = 2000
"""A dead holder delays others by so much. A stale or stolen lock can't corrupt anything: WATCH still decides."""

PATIENCE = 12
"""Time-outs' worth of contention after which a call gives up."""

T = TypeVar("T")


@contextlib.contextmanager
def queued(nodes: Nodes, lock: bytes, deadline: float) -> Iterator[None]:
    """Hold the shard's lock, or go on without it at the deadline."""
    token = uuid.uuid4().hex
    pause_s = 0.001
    while not routed(nodes, lambda s: s.shared(lock).call("SET", lock, token, "NX", "PX", LOCK_TTL_MS)):
        if time.monotonic() > deadline:
            break
        time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 (spreads retries, hides nothing)
        pause_s = min(2 * pause_s, 0.05)
    try:
        yield
    finally:
        # after an error the TTL frees it
        with contextlib.suppress(StoreUnavailable):
            routed(nodes, lambda s: _release(s, lock, token.encode()))


def _release(session: Session, lock: bytes, token: bytes) -> None:
    wire = session.shared(lock)
    held = wire.ask(pack("WATCH", lock), pack("GET", lock))[1]
    if held == token:
        wire.ask(pack("MULTI"), pack("DEL", lock), pack("EXEC"))
    else:
        wire.call("UNWATCH")


def until_committed(
    nodes: Nodes, lock: bytes, timeout_s: float, place: str, attempt: Callable[[Session], T | None], failed: int = 0
) -> T:
    """Repeat an attempt until it returns something; after ATTEMPTS failures, `failed` included, under the lock.

    An attempt returns None when its transaction aborted. Raises StoreUnavailable after PATIENCE time-outs.
    """
    deadline = time.monotonic() + PATIENCE * timeout_s
    for _ in range(ATTEMPTS - failed):
        result = _once(nodes, attempt)
        if result is not None:
            return result
    with queued(nodes, lock, deadline):
        while time.monotonic() < deadline:
            result = _once(nodes, attempt)
            if result is not None:
                return result
    raise StoreUnavailable(f"{place} had other writers for {PATIENCE * timeout_s:.0f} s; retry, or run fewer writers")


def _once(nodes: Nodes, attempt: Callable[[Session], T | None]) -> T | None:
    try:
        with Session(nodes) as session:
            return attempt(session)
    except Moved:
        return None
