"""How far what is served is behind: the feed's lag now, and the delays of what became visible."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from serving.numbers import Numbers, numbers
from serving.times import now_ms

_HEAD = 9
_EPOCH_S = 1e9  # so that no time is 0, which stands for never
_SAMPLES = 2048
CELLS = _HEAD + _SAMPLES
"""Numbers that a `Freshness` is kept in."""


def _cell(at: int) -> property:
    def get(freshness: Freshness) -> float:
        return freshness._cells[at]

    def put(freshness: Freshness, value: float) -> None:
        freshness._cells[at] = value

    return property(get, put)


@dataclass(frozen=True, slots=True)
class Delays:
    """Production of a record → visible in the mirror, over the last refreshes that changed rows."""

    samples: int
    p50_ms: float | None
    p99_ms: float | None


def _time(at: int) -> property:
    """Monotonic time, which is of the machine, not of the process; a restart may tell of one before it began."""

    def get(freshness: Freshness) -> float | None:
        return freshness._cells[at] - _EPOCH_S if freshness._cells[at] else None

    def put(freshness: Freshness, value: float) -> None:
        freshness._cells[at] = value + _EPOCH_S

    return property(get, put)


class Freshness:
    """Written by the refreshing thread, read by any.

    Lag is the time since the mirror was last known to hold everything in the feed. A newest-record-based lag would
    grow whenever the stream is idle; this one is an upper bound on what an answer may miss, and an idle feed confirms
    it several times a second.
    """

    def __init__(self, cells: Numbers | None = None) -> None:
        """cells: where all of it is kept, `CELLS` of them: what one process writes others read."""
        self._lock = threading.Lock()
        self._cells = numbers(CELLS) if cells is None else cells
        self._why = ""

    _confirmed_s = _time(0)
    _failing = _cell(1)
    refreshes = _cell(2)
    rows_changed = _cell(3)
    failures = _cell(4)
    _saved_s = _time(5)
    save_failures = _cell(6)
    _samples = _cell(7)
    _refusing = _cell(8)

    @property
    def model_refused(self) -> bool:
        """Whether another model is published than is served, which this service can't read or serve."""
        return bool(self._refusing)

    @model_refused.setter
    def model_refused(self, refused: bool) -> None:
        self._refusing = float(refused)

    @property
    def failure(self) -> str | None:
        """Why the last attempt failed, None once one succeeds."""
        return (self._why or "the process that follows the store can't reach it") if self._failing else None

    def confirm(self, at_s: float) -> None:
        """All that was in the feed at monotonic time `at_s` is in the mirror."""
        with self._lock:
            self._cells[0] = max(self._cells[0], at_s + _EPOCH_S)
            self._failing = 0

    def refreshed(self, rows: int, produced_ms: int) -> None:
        """A refresh changed `rows` rows; the newest record it reflects was produced at `produced_ms`."""
        with self._lock:
            self.refreshes += 1
            self.rows_changed += rows
            if rows and produced_ms:
                self._cells[_HEAD + int(self._samples) % _SAMPLES] = max(now_ms() - produced_ms, 0)
                self._samples += 1

    def failed(self, why: str) -> None:
        """An attempt to follow the feed failed."""
        with self._lock:
            self.failures += 1
            self._failing, self._why = 1, why

    def answered(self) -> None:
        """The store answered, though there is nothing to follow yet."""
        with self._lock:
            self._failing = 0

    def saved(self, at_s: float) -> None:
        """The mirror's file holds all that was in the feed at monotonic time `at_s`."""
        self._saved_s = at_s

    def save_failed(self) -> None:
        """It could not be written."""
        self.save_failures += 1

    @property
    def confirmed_s(self) -> float | None:
        """Monotonic time of the last confirmation; None before the first."""
        at_s: float | None = self._confirmed_s
        return at_s

    @property
    def saved_age_s(self) -> float | None:
        """Seconds that the mirror's file is behind; None where there is none."""
        at_s: float | None = self._saved_s
        return None if at_s is None else time.monotonic() - at_s

    @property
    def lag_s(self) -> float:
        """Seconds since the last confirmation; infinite before the first."""
        at_s: float | None = self._confirmed_s
        return float("inf") if at_s is None else time.monotonic() - at_s

    def delays(self) -> Delays:
        """Percentiles over the kept samples."""
        samples = np.array(self._cells[_HEAD : _HEAD + min(int(self._samples), _SAMPLES)])
        if not len(samples):
            return Delays(0, None, None)
        p50, p99 = np.percentile(samples, (50, 99))
        return Delays(len(samples), round(float(p50), 3), round(float(p99), 3))
