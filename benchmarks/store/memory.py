"""Bytes of the server for a row, while a table of one shard fills up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from rich.progress import Progress

from benchmarks.store.data import BATCH, SOURCE, START, flush_of, gradients_of, spec_of
from benchmarks.store.servers import Served
from embedding_store.open import open_store
from embedding_store.optimizers import Optimizer
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.keys import module_key
from embedding_store.settings import RedisSettings
from embedding_store.spec import TableSpec


class Filled(NamedTuple):
    """A full table. Bytes are over those of vector and optimizer state, ids are of 12 bytes and stored in every row."""

    spec: TableSpec
    offset: int  # of SOURCE after START
    worst_bytes_over_payload: float  # by MEMORY USAGE, at any size from half of the rows on: the index's worst load
    bytes_over_payload: float  # by MEMORY USAGE, full
    used_memory_over_payload: float  # by what the server's used_memory grew

    def ratios(self) -> dict[str, float]:
        """By name."""
        return {name: value for name, value in self._asdict().items() if name.endswith("over_payload")}


def fill(module: Served, name: str, optimizer: Optimizer, rows: int, dim: int, progress: Progress) -> Filled:
    """A table of rows 0 … rows − 1, in calls of BATCH new keys as the trainer sends them."""
    spec = spec_of(name, optimizer, dim=dim)
    payload = 4 * (spec.dim + spec.state_dim)
    before = int(module.info("memory")["used_memory"])
    store = open_store(RedisSettings(url=module.url, timeout_s=60))
    store.create(spec)
    store.seek(name, 0, SOURCE, None, START, "benchmark")
    gradients = gradients_of(BATCH, dim)
    wire = module.wire()
    worst = 0.0
    for lo in progress.track(range(0, rows, BATCH), description=f"{name}: {rows:,} rows"):
        part = np.arange(lo, min(rows, lo + BATCH))
        store.apply(name, flush_of(part, gradients[: len(part)], START + lo, START + int(part[-1]) + 1))
        if part[-1] + 1 >= rows // 2:
            worst = max(worst, used(wire, name) / ((part[-1] + 1) * payload))
    full = used(wire, name) / (rows * payload)
    wire.close()
    store.close()
    grown = int(module.info("memory")["used_memory"]) - before
    return Filled(spec, rows, round(worst, 3), round(full, 3), round(grown / (rows * payload), 3))


def used(wire: Wire, table: str) -> int:
    """Bytes of a table's only shard."""
    return int(wire.call("MEMORY", "USAGE", module_key(table, 0)))
