"""Where the demo stands: numbers from the store, the trainer's metrics and the probe."""

from __future__ import annotations

import time
import urllib.request
from collections import deque
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreUnavailable, UnknownTable
from infra.demo.probe import FreshnessProbe
from infra.demo.replay import Replay

_RATE_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Standing:
    """One look at the running demo. None: not known yet."""

    sent: int
    applied: int  # usable events that every shard of the item and history tables has
    dead_letters: int
    events_per_s: float  # over the last seconds
    tests: int
    hr10: float | None
    hr10_popularity: float | None
    loss: float | None
    freshness_p50_ms: float | None
    freshness_p99_ms: float | None
    store_away: bool


class Observer:
    """Looks at everything from outside, as an operator would."""

    def __init__(self, store: EmbeddingStore, metrics_url: str, replay: Replay, probe: FreshnessProbe) -> None:
        self._store, self._url, self._replay, self._probe = store, metrics_url, replay, probe
        self._recent: deque[tuple[float, int]] = deque()
        self._applied = 0
        self.first_s: float | None = None
        self.last_s: float | None = None

    def look(self) -> Standing:
        """Read the store and the trainer; either may be away."""
        away = self._count()
        values = self._metrics()
        tests = int(values.get("towline_prequential_tests", 0))
        hits, popular = (values.get(f"towline_prequential_hits{{{r}}}", 0) for r in ("model", "popularity"))
        return Standing(
            sent=self._replay.sent,
            applied=self._applied,
            dead_letters=int(values.get("towline_trainer_dead_letters_total", 0)),
            events_per_s=self._rate(),
            tests=tests,
            hr10=hits / tests if tests else None,
            hr10_popularity=popular / tests if tests else None,
            loss=values.get("towline_trainer_loss") if values.get("towline_trainer_batches_total") else None,
            freshness_p50_ms=self._probe.percentile_ms(50),
            freshness_p99_ms=self._probe.percentile_ms(99),
            store_away=away,
        )

    def trainer_answers(self) -> bool:
        """Whether the trainer runs far enough to be asked."""
        return bool(self._metrics())

    def mean_events_per_s(self) -> float:
        """From the first event applied to the last."""
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return 0.0
        return self._applied / (self.last_s - self.first_s)

    def _count(self) -> bool:
        try:
            applied = min(s.clock for table in ("item", "history") for s in self._store.status(table))
        except UnknownTable:
            return False  # no trainer has declared them yet
        except StoreUnavailable:
            return True
        now = time.monotonic()
        if applied != self._applied:
            self.first_s = self.first_s or now
            self.last_s = now
        self._applied = applied
        self._recent.append((now, applied))
        while now - self._recent[0][0] > _RATE_WINDOW_S:
            self._recent.popleft()
        return False

    def _rate(self) -> float:
        if len(self._recent) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._recent[0], self._recent[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def _metrics(self) -> dict[str, float]:
        try:
            with urllib.request.urlopen(self._url, timeout=2) as response:  # noqa: S310 - our own http URL
                text = response.read().decode()
        except OSError:
            return {}  # the trainer is still importing TensorFlow; its end is seen by whoever supervises it
        out = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                label = sample.labels.get("ranking")
                out[f"{sample.name}{{{label}}}" if label else sample.name] = float(sample.value)
        return out
