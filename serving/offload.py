"""Blocking and heavy work off the event loop: a few threads and a short queue that refuses rather than grows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from serving.problems import unavailable

Answer = TypeVar("Answer")


class Offload:
    """A bounded thread pool."""

    def __init__(self, threads: int, max_queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="serving")
        self._limit, self._max_queue = threads + max_queue, max_queue
        self._lock = threading.Lock()
        self.pending = 0
        self.refused = 0

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """What `work()` returns or raises. Raises Problem 503 at once if the queue is full.

        A cancelled caller's work is dropped if it hasn't begun; else its place is given back when it ends, not before.
        """
        with self._lock:
            if self.pending >= self._limit:
                self.refused += 1
                raise unavailable("busy", f"{self.pending} requests wait for the store or the ranker: retry later")
            self.pending += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._release)
        return await asyncio.wrap_future(future)

    def admit(self, waiting: int) -> None:
        """Room for one more beside `waiting` others that wait for a thread. Raises Problem 503 if there is none."""
        if waiting >= self._max_queue:
            with self._lock:
                self.refused += 1
            raise unavailable("busy", f"{waiting} requests wait for the store or the ranker: retry later")

    def _release(self, future: Future[Answer]) -> None:  # noqa: ARG002 - of the pool's thread, or of the canceller's
        with self._lock:
            self.pending -= 1

    def close(self) -> None:
        """Wait for running work, drop the queue."""
        self._pool.shutdown(wait=True, cancel_futures=True)
