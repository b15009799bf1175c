"""A lock that whoever waits for it gets before the one who lets it go has it again."""

from __future__ import annotations

import threading


class TurnLock:
    """As `threading.RLock`, and in turns: one who takes it time after time does not keep others out.

    A lock that is let go and taken again at once is mostly its old holder's, as who waits has yet to wake up. Here it
    is taken through a door, in which whoever is next waits. Who holds it takes it again without the door.
    """

    def __init__(self) -> None:
        self._door, self._held = threading.Lock(), threading.Lock()
        self._owner = self._depth = 0  # thread that holds it, and how often; others find any thread but themselves

    def acquire(self, blocking: bool = True) -> bool:
        """Whether it is held now; where not `blocking`, False rather than wait."""
        me = threading.get_ident()
        if self._owner == me:
            self._depth += 1
            return True
        if not self._door.acquire(blocking):
            return False
        try:
            if not self._held.acquire(blocking):
                return False
            self._owner, self._depth = me, 1
            return True
        finally:
            self._door.release()

    def release(self) -> None:
        """Once for each `acquire`. Raises RuntimeError for who does not hold it."""
        if self._owner != threading.get_ident():
            raise RuntimeError("a lock is released by who holds it")
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._held.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
