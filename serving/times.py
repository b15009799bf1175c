"""Times in answers: ISO 8601 instants and ages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from embedding_store.contract import I64, Bool

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


def now_ms() -> int:
    """Wall clock in ms since the epoch."""
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=4096)  # rows and feed positions are asked for again and again between their updates
def iso(ms: int) -> str | None:
    """`2026-01-31T12:00:00.123Z`; None for 0, which stands for never, and beyond the calendar."""
    if not 0 < ms <= _MAX_MS:
        return None
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def age_s(updated_ms: int, now: int) -> float | None:
    """Seconds since `updated_ms`, not below 0 where clocks disagree; None for 0, which stands for never."""
    return max(now - updated_ms, 0) / 1000 if updated_ms else None


def ages_s(updated_ms: I64, present: Bool, now: int) -> list[float | None]:
    """`age_s` of each row, None where not present."""
    return [age_s(ms, now) if there else None for ms, there in zip(updated_ms.tolist(), present.tolist(), strict=True)]
