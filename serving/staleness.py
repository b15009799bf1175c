"""What answers say about how far they are behind the stream."""

from __future__ import annotations

import math

from serving.schemas import Index
from serving.service import Live, Service
from serving.times import iso


def as_of(live: Live) -> str | None:
    """Event time up to which the stream is reflected; None before the first event."""
    return iso(live.mirror.event_time_ms)


def stale_headers(service: Service, live: Live, *, stale: bool = False) -> dict[str, str]:
    """`X-Stale: 1` and `X-As-Of` where the answer may miss more than the configured lag; nothing otherwise."""
    if not (stale or service.stale):
        return {}
    return {"X-Stale": "1", "X-As-Of": as_of(live) or ""}


def index_of(service: Service, live: Live) -> Index:
    """What was searched."""
    lag_ms = service.freshness.lag_s * 1000
    return Index(
        kind="exact",
        size=live.mirror.size,
        as_of=as_of(live),
        lag_ms=round(lag_ms, 1) if math.isfinite(lag_ms) else -1.0,
    )
