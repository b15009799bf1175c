"""Concurrent requests answered in one piece of work: what comes while one lot is worked on makes up the next.

Nothing waits for others to come: an idle service takes each request at once, a busy one shares the passes over its
rows among those that wait anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from serving.offload import Offload

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


class Together(Generic[Ask, Answer]):
    """Lots of at most `most` requests, one lot after another on a thread of `offload`. For one event loop."""

    def __init__(
        self, offload: Offload, work: Callable[[Sequence[Ask]], Sequence[Answer | Exception]], most: int
    ) -> None:
        """work: an answer, or the exception to raise, for each request of a lot, in order."""
        self._offload, self._work, self._most = offload, work, most
        self._waiting: list[tuple[Ask, asyncio.Future[Answer]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def run(self, ask: Ask) -> Answer:
        """The answer to one request. Raises what `work` gave for it, or Problem 503 at once if the queue is full.

        A cancelled caller's request is dropped if its lot hasn't begun.
        """
        if self._worker is not None:
            self._offload.admit(len(self._waiting))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work_off())
        return await future

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                lot, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                lot = [(ask, future) for ask, future in lot if not future.done()]
                if lot:
                    await self._settle(lot)
        finally:
            self._worker = None

    async def _settle(self, lot: list[tuple[Ask, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._offload.run(partial(self._work, [ask for ask, _ in lot]))
        except Exception as error:  # noqa: BLE001 - each caller raises it: nobody may wait for ever
            answers = [error] * len(lot)
        for (_, future), answer in zip(lot, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
