"""How far what is served is behind: the feed's lag now, and the delays of what became visible."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from serving.times import now_ms

_SAMPLES = 2048


@dataclass(frozen=True, slots=True)
class Delays:
    """Production of a record → visible in the mirror, over the last refreshes that changed rows."""

    samples: int
    p50_ms: float | None
    p99_ms: float | None


class Freshness:
    """Written by the refreshing thread, read by any.

    Lag is the time since the mirror was last known to hold everything in the feed. A newest-record-based lag would
    grow whenever the stream is idle; this one is an upper bound on what an answer may miss, and an idle feed confirms
    it several times a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._confirmed_s = 0.0  # monotonic; 0: never
        self._delays: deque[float] = deque(maxlen=_SAMPLES)
        self.refreshes = 0
        self.rows_changed = 0
        self.failures = 0
        self.failure: str | None = None  # the last attempt's, None once one succeeds

    def confirm(self, at_s: float) -> None:
        """All that was in the feed at monotonic time `at_s` is in the mirror."""
        with self._lock:
            self._confirmed_s = max(self._confirmed_s, at_s)
            self.failure = None

    def refreshed(self, rows: int, produced_ms: int) -> None:
        """A refresh changed `rows` rows; the newest record it reflects was produced at `produced_ms`."""
        with self._lock:
            self.refreshes += 1
            self.rows_changed += rows
            if rows and produced_ms:
                self._delays.append(float(max(now_ms() - produced_ms, 0)))

    def failed(self, why: str) -> None:
        """An attempt to follow the feed failed."""
        with self._lock:
            self.failures += 1
            self.failure = why

    def answered(self) -> None:
        """The store answered, though there is nothing to follow yet."""
        with self._lock:
            self.failure = None

    @property
    def lag_s(self) -> float:
        """Seconds since the last confirmation; infinite before the first."""
        return time.monotonic() - self._confirmed_s if self._confirmed_s else float("inf")

    def delays(self) -> Delays:
        """Percentiles over the kept samples."""
        with self._lock:
            samples = np.array(self._delays)
        if not len(samples):
            return Delays(0, None, None)
        p50, p99 = np.percentile(samples, (50, 99))
        return Delays(len(samples), round(float(p50), 3), round(float(p99), 3))
