"""How far the trainers have come, and how long the system took to recover from each fault.

A fault is over when every shard of every table has applied, of every partition, a record that was sent after the fault:
after the moment of a kill, pause or promotion, after the end of a cut or a freeze.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from embedding_store.contract import EmbeddingStore, Source
from embedding_store.errors import StoreError
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from tests.chaos.linear import PARTITIONS
from tests.chaos.schedule import Fault
from tests.chaos.stream import Producer

_EVERY_S = 0.05


@dataclass
class Recovery:
    """The time from `since_s` until the fault was over; None as long as it is not."""

    fault: Fault
    since_s: float
    firsts: dict[int, int]
    took_s: float | None = None


@dataclass
class Watch:
    """Reads offsets over a way of its own, on a thread of its own."""

    settings: RedisSettings
    tables: tuple[str, ...]
    topic_id: str
    producer: Producer
    offsets: dict[int, int] = field(default_factory=dict)  # partition → lowest of all tables and shards
    recoveries: list[Recovery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._store: EmbeddingStore | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._store is not None:
            self._store.close()

    def measure(self, fault: Fault) -> Recovery:
        """From now on."""
        since_s = time.monotonic()
        recovery = Recovery(fault, since_s, self.producer.watch_for_firsts(since_s))
        with self._lock:
            self.recoveries.append(recovery)
        return recovery

    @property
    def open(self) -> list[Recovery]:
        """Faults that are not over."""
        with self._lock:
            return [recovery for recovery in self.recoveries if recovery.took_s is None]

    def lag(self) -> int:
        """Records acknowledged and not applied everywhere."""
        ends: dict[int, int] = {}
        for place in list(self.producer.acknowledged.values())[-4096:]:
            ends[place.partition] = max(ends.get(place.partition, 0), place.offset + 1)
        return sum(max(0, end - self.offsets.get(partition, 0)) for partition, end in ends.items())

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            try:
                self._look()
            except StoreError:
                continue  # away, as it has to be now and then

    def _look(self) -> None:
        if self._store is None:
            self._store = open_store(self.settings)
        seen = [status.offsets for table in self.tables for status in self._store.status(table)]
        now_s = time.monotonic()
        sources = [Source(self.topic_id, partition) for partition in range(PARTITIONS)]
        self.offsets = {source.partition: min(offsets.get(source, 0) for offsets in seen) for source in sources}
        for recovery in self.open:
            firsts = dict(recovery.firsts)
            if len(firsts) == PARTITIONS and all(self.offsets[p] > first for p, first in firsts.items()):
                recovery.took_s = now_s - recovery.since_s
                self.producer.done_watching(recovery.firsts)
