"""Processor time of an event, worker and store together, against rows of the tables and size of a micro-batch.

A worker learns from records in memory, without a broker, on a server with the module and without its append-only file:
a table of ten million rows is filled by learning an event of each user, which the file would only make slower.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.e2e.presets import PRESETS
from benchmarks.e2e.stream import FIRST_ID, Stream
from benchmarks.store.servers import Served
from embedding_store.contract import EmbeddingStore
from embedding_store.errors import UnknownTable
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from infra.config import TowlineConfig
from ingest.columns import Partition
from ingest.listed import ListedSource
from trainer.metrics import Metrics
from trainer.warm_up import warm_up
from trainer.worker import Worker

PRESET = "no_dense"
ITEMS = 50_000
PER_RECORD = 100
FILL_EVENTS = 16_384  # of a micro-batch while the tables are filled
_TURN = 1_000_000  # events that are made at once
_WARM_UP = 0.1


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. µs of processor time an event."""

    users: int  # rows of the user and of the history table
    batch_events: int
    events: int
    worker_us: float
    store_us: float
    events_per_s: float
    worker_mib: int  # its largest resident set so far
    store_mib: int  # used_memory

    @property
    def cpu_us(self) -> float:
        """Of both."""
        return self.worker_us + self.store_us


class Scaled:
    """Tables that grow, and a worker that is measured on them as they are."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._config = TowlineConfig.model_validate(PRESETS[PRESET].config())
        self._store: EmbeddingStore = open_store(RedisSettings(url=served.url, backend="module", timeout_s=60))
        self._numbers = itertools.count()
        self.users = 0
        warm_up(self._config.model, self._config.trainer, self._config.ingest)

    def grow(self, users: int) -> Iterator[int]:
        """An event of each further user, until there are so many; yields users so far."""
        rng = np.random.default_rng(users)
        while self.users < users:
            new = np.arange(self.users, min(users, self.users + _TURN))
            items = rng.integers(0, ITEMS, len(new))
            for _ in self._learned(Stream(FIRST_ID + new, FIRST_ID + items), FILL_EVENTS):
                pass
            self.users += len(new)
            yield self.users

    def measure(self, batch_events: int, events: int, seed: int) -> Point:
        """Learn so many events of users of the table, each as likely: what is asked for is where it was not before."""
        drawn = Stream.drawn(events, 1, ITEMS, seed)
        users = np.random.default_rng(seed).integers(0, self.users, events)
        stream = Stream(FIRST_ID + users, drawn.item)
        begun: tuple[float, float, int] | None = None
        learned, started = 0, 0.0
        for learned in self._learned(stream, batch_events):
            if begun is None and learned >= _WARM_UP * events:
                begun, started = (time.process_time(), self._served.cpu_ns() / 1e9, learned), time.perf_counter()
        if begun is None or learned == begun[2]:
            raise RuntimeError(f"{events} events are too few for micro-batches of {batch_events}")
        wall_s = time.perf_counter() - started
        n = learned - begun[2]
        return Point(
            users=self.users,
            batch_events=batch_events,
            events=n,
            worker_us=round(1e6 * (time.process_time() - begun[0]) / n, 3),
            store_us=round(1e6 * (self._served.cpu_ns() / 1e9 - begun[1]) / n, 3),
            events_per_s=round(n / wall_s, 1),
            worker_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            store_mib=int(self._served.info("memory")["used_memory"]) >> 20,
        )

    def _learned(self, stream: Stream, batch_events: int) -> Iterator[int]:
        """Events learned so far, after each micro-batch. Raises RuntimeError if not all are in the store at the end."""
        now_ms = np.full(len(stream), time.time_ns() // 1_000_000)
        records = [value for _, value in stream.records(now_ms, 1, PER_RECORD)]
        ingest = self._config.ingest.model_copy(update={"batch_events": max(1, batch_events // PER_RECORD)})
        source = ListedSource({Partition(f"scale-{next(self._numbers)}", 0): records}, ingest)
        worker = Worker(self._store, source, self._config.model, self._config.trainer, Metrics())
        before = self._clock()
        while not source.exhausted:
            worker.step()
            yield min(len(stream), (len(records) - source.lag()) * PER_RECORD)
        worker.leave()
        if (applied := self._clock() - before) != len(stream):
            raise RuntimeError(f"{applied} events were applied, {len(stream)} were to be")

    def _clock(self) -> int:
        try:
            return min(status.clock for status in self._store.status("history"))
        except UnknownTable:
            return 0

    def close(self) -> None:
        """Of the store."""
        self._store.close()
