"""How often something that dies may be started again. Pure but for the clock."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable


class Restarts:
    """At most `limit` of each name within any `window_s` seconds: what dies at once is not started for ever."""

    def __init__(self, limit: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._window_s, self._clock = limit, window_s, clock
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    def allowed(self, name: str) -> bool:
        """Whether `name` may be started again now; if so it counts."""
        now, times = self._clock(), self._times[name]
        while times and now - times[0] > self._window_s:
            times.popleft()
        if len(times) >= self._limit:
            return False
        times.append(now)
        return True
