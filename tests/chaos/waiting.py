"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
_STEP_S = 0.02
DEADLINE_S = 60.0


def _pause() -> None:
    time.sleep(_STEP_S)


def until(
    condition: Callable[[], Value], what: str, deadline_s: float = DEADLINE_S, meanwhile: Callable[[], None] = _pause
) -> Value:
    """The first true value of `condition`, with `meanwhile` between asking. Past the deadline AssertionError."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {deadline_s:.0f} s")
        meanwhile()
    return value
