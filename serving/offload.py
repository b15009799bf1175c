"""Blocking and heavy work off the event loop: a few threads and a short queue that refuses rather than grows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from serving.problems import unavailable

Answer = TypeVar("Answer")


class Offload:
    """A bounded thread pool. `run` belongs to the event loop's thread, so its count needs no lock."""

    def __init__(self, threads: int, max_queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="serving")
        self._limit = threads + max_queue
        self.pending = 0
        self.refused = 0

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """What `work()` returns or raises. Raises Problem 503 at once if the queue is full.

        A cancelled caller leaves its work to finish: the place in the queue is given back only then.
        """
        if self.pending >= self._limit:
            self.refused += 1
            raise unavailable("busy", f"{self.pending} requests are waiting for the store or the ranker: retry later")
        self.pending += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[Answer]) -> None:
        self.pending -= 1
        if not future.cancelled():
            future.exception()  # seen, even where the caller has gone

    def close(self) -> None:
        """Wait for running work, drop the queue."""
        self._pool.shutdown(wait=True, cancel_futures=True)
