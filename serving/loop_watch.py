"""How late the event loop is: a call asked for every 20 ms, and how long after its time it came.

Work that blocks the loop stalls every request at once, and no request's own time tells whose fault it was.
"""

from __future__ import annotations

import asyncio

from serving.histogram import Histogram
from serving.numbers import Numbers

_EVERY_S = 0.02
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class LoopWatch:
    """Counts on the loop's thread; read from any."""

    bounds = _BOUNDS
    """Upper bounds of `lags`."""

    def __init__(self, cells: Numbers | None = None) -> None:
        self.lags = Histogram(_BOUNDS, cells)
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """On the running loop, until `stop`."""
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(_EVERY_S, self._came, loop, loop.time() + _EVERY_S)

    def stop(self) -> None:
        """Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _came(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self.lags.observe(max(0.0, now - due))
        self._handle = loop.call_later(_EVERY_S, self._came, loop, now + _EVERY_S)
