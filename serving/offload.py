"""Blocking and heavy work off the event loop: a few threads and a short queue that refuses rather than grows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from serving.numbers import Numbers, numbers
from serving.problems import unavailable

Answer = TypeVar("Answer")


class Offload:
    """A bounded thread pool."""

    def __init__(self, threads: int, max_queue: int, cells: Numbers | None = None) -> None:
        """cells (2,): where `pending` and `refused` are kept."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="serving")
        self._limit, self._max_queue = threads + max_queue, max_queue
        self._lock = threading.Lock()
        self._cells = numbers(2) if cells is None else cells

    @property
    def pending(self) -> int:
        """Pieces of work that run or wait."""
        return int(self._cells[0])

    @property
    def refused(self) -> int:
        """Callers that were told to come back later."""
        return int(self._cells[1])

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """What `work()` returns or raises. Raises Problem 503 at once if the queue is full.

        A cancelled caller's work is dropped if it hasn't begun; else its place is given back when it ends, not before.
        """
        with self._lock:
            if self.pending >= self._limit:
                self._cells[1] += 1
                raise unavailable("busy", f"{self.pending} requests wait for the store or the ranker: retry later")
            self._cells[0] += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._release)
        return await asyncio.wrap_future(future)

    def admit(self, waiting: int) -> None:
        """Room for one more beside `waiting` others that wait for a thread. Raises Problem 503 if there is none."""
        if waiting >= self._max_queue:
            with self._lock:
                self._cells[1] += 1
            raise unavailable("busy", f"{waiting} requests wait for the store or the ranker: retry later")

    def _release(self, future: Future[Answer]) -> None:  # noqa: ARG002 - of the pool's thread, or of the canceller's
        with self._lock:
            self._cells[0] -= 1

    def close(self) -> None:
        """Wait for running work, drop the queue."""
        self._pool.shutdown(wait=True, cancel_futures=True)
