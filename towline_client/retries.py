"""When a request is sent again, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass

from towline_client.calls import Call
from towline_client.errors import ProblemError, TowlineError, Unavailable, Unreachable


@dataclass(frozen=True)
class Retry:
    """After 429 and 503, no sooner than their Retry-After says, and after a broken connection.

    Events are only sent again where the service refused to look at them: they would count twice.
    """

    attempts: int = 4
    """Tries in all; 1: none again."""
    first_wait_s: float = 0.1
    """Where nothing is said; doubled each time."""
    max_wait_s: float = 10.0
    """A service that asks for a longer wait is believed to be away."""

    def wait_s(self, call: Call, error: TowlineError, tried: int) -> float | None:
        """Seconds to wait before the next try, up to a quarter of it drawn at random; None: give up."""
        if tried >= self.attempts or not _worth(call, error):
            return None
        asked = error.retry_after_s if isinstance(error, ProblemError) else None
        wait = self.first_wait_s * 2 ** (tried - 1) if asked is None else asked
        if wait > self.max_wait_s:
            return None
        return wait * random.uniform(1.0, 1.25)  # noqa: S311  jitter


def _worth(call: Call, error: TowlineError) -> bool:
    if isinstance(error, Unavailable):
        return call.repeatable or error.kind == "busy"
    return call.repeatable and isinstance(error, Unreachable)
