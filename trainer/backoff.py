"""Waiting between tries, longer each time, but never deaf to a stop."""

from __future__ import annotations

import time
from collections.abc import Callable

_TICK_S = 0.1


class Backoff:
    """Doubles from `first_s` to `most_s`: what came back is noticed that soon, and a try costs it next to nothing."""

    def __init__(self, first_s: float = 0.2, most_s: float = 2.0) -> None:
        self._first_s, self._most_s = first_s, most_s
        self.next_s = first_s

    def reset(self) -> None:
        self.next_s = self._first_s

    def wait(self, stopping: Callable[[], bool], tick: Callable[[float], object] | None = None) -> None:
        """Let the current delay pass, or return as soon as `stopping` says so.

        tick: what passes the time, a tenth of a second or less at a call; None: sleep.
        """
        pass_time = tick or time.sleep
        end = time.monotonic() + self.next_s
        self.next_s = min(self._most_s, 2 * self.next_s)
        while not stopping() and (left := end - time.monotonic()) > 0:
            pass_time(min(_TICK_S, left))
