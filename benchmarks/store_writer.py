"""One writer process of `benchmarks.store`: its own source, random keys, and gradients of ±1, whose sums are exact."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import redis

from embedding_store.contract import Flush, Range, Source
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from native.ragged import Ragged

PLAIN = b"plain:"


@dataclass(frozen=True)
class Job:
    """What a writer does: `blocks` times, `rounds` of lookup + apply, then as many of plain MGET + MSET."""

    url: str
    table: str
    rows: int
    dim: int
    keys: int
    rounds: int
    blocks: int
    record_bytes: int
    writer: int


@dataclass(frozen=True)
class Figures:
    """Seconds of every round of one writer, of its blocks, and what it added to each row."""

    seconds: dict[str, list[float]]  # lookup, apply, mget, mset: per round; store, plain: per block
    sums: np.ndarray  # (rows,) i64: Σ of this writer's ±1
    updates: np.ndarray  # (rows,) i64


def flush_of(keys: np.ndarray, gradients: np.ndarray, source: Source, offset: int) -> Flush:
    """A flush of one record."""
    n = len(keys)
    return Flush(
        generation=0,
        ranges=(Range(source, offset, offset + 1),),
        events=1,
        event_time_ms=0,
        produced_ms=0,
        now_ms=time.time_ns() // 1_000_000,
        keys=keys,
        counts=np.zeros(n, np.int64),
        positives=np.zeros(n, np.float32),
        checks=np.zeros(n, np.uint32),
        ids=Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8)),
        gradients=gradients,
    )


def write(job: Job, barrier: Any, results: Connection) -> None:
    """Run the job in step with the other writers at the barrier; send Figures."""
    store = open_store(RedisSettings(url=job.url))
    plain = redis.Redis.from_url(job.url)
    source = Source("bench", job.writer)
    rng = np.random.default_rng(job.writer)
    seconds: dict[str, list[float]] = {k: [] for k in ("lookup", "apply", "mget", "mset", "store", "plain")}
    sums, updates = np.zeros(job.rows, np.int64), np.zeros(job.rows, np.int64)
    offset = store.status(job.table)[0].offsets[source]

    def timed(name: str, call: Any) -> Any:
        started = time.perf_counter()
        answer = call()
        seconds[name].append(time.perf_counter() - started)
        return answer

    for _ in range(job.blocks):
        batches = [rng.choice(job.rows, job.keys, replace=False).astype(np.uint64) for _ in range(job.rounds)]
        signs = [rng.choice([-1, 1], job.keys) for _ in range(job.rounds)]
        gradients = [np.repeat(s.astype(np.float32)[:, None], job.dim, 1) for s in signs]
        names = [[PLAIN + k.to_bytes(8, "little") for k in keys.tolist()] for keys in batches]
        barrier.wait()
        started = time.perf_counter()
        for i, keys in enumerate(batches):
            timed("lookup", lambda keys=keys: store.lookup(job.table, keys))
            flush = flush_of(keys, gradients[i], source, offset)
            replies = timed("apply", lambda flush=flush: store.apply(job.table, flush))
            if {r.outcome for r in replies} != {"applied"}:
                raise RuntimeError(f"a call of a source's only writer was not applied: {replies}")
            offset += 1
        barrier.wait()
        seconds["store"].append(time.perf_counter() - started)
        started = time.perf_counter()
        for chosen in names:
            values = timed("mget", lambda chosen=chosen: plain.mget(chosen))
            pairs = dict(zip(chosen, values, strict=True))
            timed("mset", lambda pairs=pairs: plain.mset(pairs))
        barrier.wait()
        seconds["plain"].append(time.perf_counter() - started)
        for keys, sign in zip(batches, signs, strict=True):
            sums[keys.astype(np.int64)] += sign
            updates[keys.astype(np.int64)] += 1
    store.close()
    results.send(Figures(seconds, sums, updates))


def fill_plain(job: Job) -> None:
    """Keys of plain strings with as many bytes as a row record."""
    plain = redis.Redis.from_url(job.url)
    value = np.random.default_rng(0).bytes(job.record_bytes)
    for lo in range(0, job.rows, 16_384):
        plain.mset({PLAIN + k.to_bytes(8, "little"): value for k in range(lo, min(job.rows, lo + 16_384))})
