"""One time budget for a start or a stop: wait for a condition, never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.02


class Deadline:
    """A point in time after which waiting is over; shared by all the steps of one operation."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def wait(self, condition: Callable[[], bool]) -> bool:
        """Polls `condition` until it holds (True) or time is up (False); it is asked at least once."""
        while not condition():
            if not self.left_s:
                return False
            time.sleep(min(_POLL_S, self.left_s))
        return True
