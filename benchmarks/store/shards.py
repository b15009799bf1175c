"""What a table's shards cost who calls them: every flush goes to each, however few rows it has there."""

from __future__ import annotations

import statistics
import time

from rich.progress import Progress

from benchmarks.store.data import OPTIMIZERS, SOURCE, batches, flush_of, gradients_of, keys_of, spec_of
from benchmarks.store.servers import Served
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings

KEYS = 2048
SHARDS = (1, 64)
_WARM = 5


def measure(module: Served, dim: int, times: int, progress: Progress) -> dict[str, float]:
    """Processor time of the store's client for lookup + apply of `KEYS` rows, µs: by shards, and for one more shard."""
    store = open_store(RedisSettings(url=module.url, backend="module"))
    task = progress.add_task("calls of many shards", total=len(SHARDS) * (times + _WARM))
    costs: dict[int, float] = {}
    try:
        for shards in SHARDS:
            spec = spec_of(f"shards{shards}", OPTIMIZERS["adagrad"], shards, dim)
            store.create(spec)
            for shard in range(shards):
                store.seek(spec.name, shard, SOURCE, None, 0, "benchmark")
            spent = []
            for call, rows in enumerate(batches(100 * KEYS, times + _WARM, KEYS)):
                flush = flush_of(rows, gradients_of(len(rows), dim), call, call + 1)
                before_ns = time.thread_time_ns()
                store.lookup(spec.name, keys_of(rows))
                replies = store.apply(spec.name, flush)
                spent.append((time.thread_time_ns() - before_ns) / 1e3)
                if any(reply.outcome != "applied" for reply in replies):
                    raise RuntimeError(f"a call of the only writer was not applied: {replies}")
                progress.advance(task)
            costs[shards] = statistics.median(spent[_WARM:])
    finally:
        store.close()
    few, many = SHARDS
    figures = {f"client_us_of_{shards}_shards": round(us, 1) for shards, us in costs.items()}
    return figures | {"client_us_of_a_shard": round((costs[many] - costs[few]) / (many - few), 1)}
