"""One look at the service a second, while somebody watches: everything the page shows but answers to its own asking."""

from __future__ import annotations

import resource
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from embedding_store.errors import StoreError
from serving.dashboard.sampled import Points, SampledItems
from serving.dashboard.trainers import Training, look
from serving.metrics import ROW_AGES, Metrics
from serving.service import Live, Service
from serving.staleness import as_of
from serving.times import now_ms

_WINDOW_S = 5.0  # of rates
_AGED = 10_000  # rows whose ages are looked at
_RESAMPLE = 1.2  # the map is drawn anew when so many times as many items are there


class TableSize(msgspec.Struct, frozen=True):
    """A table in the store."""

    name: str
    rows: int
    shards: int


class Look(msgspec.Struct, frozen=True):
    """What was seen; None: not known."""

    at_s: float  # Unix time
    reasons: list[str]  # why it is not ready
    stale: bool
    step: int
    events_per_s: float
    lag_ms: float | None
    visible_p50_ms: float | None
    visible_p99_ms: float | None
    requests_per_s: float
    request_p99_ms: float | None  # an upper bound: of a histogram's bucket
    as_of: str | None
    model: str | None
    items: int
    mirror_bytes: int
    process_bytes: int  # the most it ever had in memory
    tables: list[TableSize] | None
    ages: list[int]  # rows by age, as `age_bounds` of the first message cut it
    training: Training
    map: Points | None


class _Count(msgspec.Struct, frozen=True):
    at_s: float  # monotonic
    step: int
    requests: int
    buckets: list[int]


class Looker:
    """Takes looks. Not for the loop's thread: asks store and trainers; one caller at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._counts: deque[_Count] = deque()
        self.sampled: SampledItems | None = None

    def look(self) -> Look:
        """How things are. A store or a trainer that is away is part of the answer, not an error."""
        service, live = self._service, self._service.live
        first, last = self._counted(service.metrics.of_all(), live)
        seconds = last.at_s - first.at_s
        delays, lag_s = service.freshness.delays(), service.freshness.lag_s
        return Look(
            at_s=time.time(),
            reasons=list(service.unready()),
            stale=service.stale,
            step=last.step,
            events_per_s=max(0.0, (last.step - first.step) / seconds) if seconds else 0.0,
            lag_ms=lag_s * 1000 if lag_s < float("inf") else None,
            visible_p50_ms=delays.p50_ms,
            visible_p99_ms=delays.p99_ms,
            requests_per_s=(last.requests - first.requests) / seconds if seconds else 0.0,
            request_p99_ms=_quantile_ms(service.metrics.bounds, first.buckets, last.buckets, 0.99),
            as_of=as_of(live) if live else None,
            model=live.version if live else None,
            items=live.mirror.size if live else 0,
            mirror_bytes=live.mirror.nbytes if live else 0,
            process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            tables=self._tables(live),
            ages=_ages(live) if live else [0] * (len(ROW_AGES) + 1),
            training=look(service.settings.trainer_metrics),
            map=self._map(live),
        )

    def _counted(self, metrics: Metrics, live: Live | None) -> tuple[_Count, _Count]:
        """Counts as the window began, and now."""
        step = live.mirror.clock if live else 0
        now = _Count(time.monotonic(), step, sum(metrics.requests.values()), metrics.answered_within())
        self._counts.append(now)
        while now.at_s - self._counts[0].at_s > _WINDOW_S:
            self._counts.popleft()
        return self._counts[0], now

    def _tables(self, live: Live | None) -> list[TableSize] | None:
        if live is None or self._service.store_down:
            return None
        try:
            every = {name: live.store.status(name) for name in live.model.tables()}
        except StoreError:
            return None
        return [TableSize(name, sum(shard.rows for shard in shards), len(shards)) for name, shards in every.items()]

    def _map(self, live: Live | None) -> Points | None:
        if live is None or not live.mirror.size:
            return None
        old = self.sampled
        if old is None or old.live is not live or live.mirror.size > _RESAMPLE * old.size:
            self.sampled = SampledItems(live)
        assert self.sampled is not None  # noqa: S101
        return self.sampled.points()


def _ages(live: Live) -> list[int]:
    """Rows of the mirror by the time since their last update: all, or as many spread over them."""
    updated_ms = live.mirror.items(live.mirror.spread(_AGED)).updated_ms
    ages_s = np.maximum(now_ms() - updated_ms, 0) / 1000
    counts = np.bincount(np.searchsorted(ROW_AGES, ages_s), minlength=len(ROW_AGES) + 1)
    return [int(count) for count in counts]


def _quantile_ms(bounds: Sequence[float], before: Sequence[int], after: Sequence[int], q: float) -> float | None:
    """Upper bound of the bucket in which the q-th of what was counted in between lies; None if nothing was."""
    counts = np.subtract(after, before).cumsum()
    if not counts[-1]:
        return None
    at = bisect_left(counts.tolist(), q * float(counts[-1]))
    return 1000 * bounds[min(at, len(bounds) - 1)]
