"""What blocks the event loop is seen."""

from __future__ import annotations

import asyncio
import time

from serving.loop_watch import LoopWatch


def test_a_blocked_loop_is_seen_and_an_idle_one_is_not_blamed() -> None:
    watch = LoopWatch()

    async def scene() -> tuple[float, float]:
        watch.start()
        async with asyncio.timeout(10):
            while sum(watch.lags.counts) < 3:
                await asyncio.sleep(0.001)
        before = watch.lags.total
        time.sleep(0.3)  # what a handler must not do
        counted = sum(watch.lags.counts)
        async with asyncio.timeout(10):
            while sum(watch.lags.counts) == counted:
                await asyncio.sleep(0.001)
        seen = watch.lags.total
        watch.stop()
        counted = sum(watch.lags.counts)
        await asyncio.sleep(0.1)
        assert sum(watch.lags.counts) == counted, "stopped"
        return before, seen

    before, seen = asyncio.run(scene())
    assert seen - before > 0.25
    assert watch.lags.buckets()[-1] == ("+Inf", sum(watch.lags.counts))
