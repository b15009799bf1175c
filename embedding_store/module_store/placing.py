"""Which tables are sent the places of own events with the first try. Thread-safe."""

from __future__ import annotations

import threading

CALLS = 256
"""To a table that asked: as many more carry them, so that an id that came back after it was forgotten, and is busy,
costs a second try once in so many calls."""


class Placing:
    """A shard asks for places where an own event is of a key that was forgotten: rare, and then often the same key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, int] = {}

    def asked(self, table: str) -> None:
        """A shard of the table asked."""
        with self._lock:
            self._left[table] = CALLS

    def due(self, table: str) -> bool:
        """Whether the next call to the table carries them; counts it."""
        with self._lock:
            left = self._left.get(table, 0)
            self._left[table] = max(0, left - 1)
            return left > 0
