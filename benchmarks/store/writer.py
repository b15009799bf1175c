"""One writer process: its own source, random keys, and gradients of ±1, whose sums are exact."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import redis

from benchmarks.store.data import flush_of, keys_of
from benchmarks.store.requests import plain_names
from embedding_store.contract import F32, I64, Flush, Range, Source
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings


@dataclass(frozen=True)
class Job:
    """What a writer does: `blocks` times, `rounds` of lookup + apply, then as many of plain MGET + MSET."""

    url: str
    plain_url: str  # of a stock server, whose strings have `record_bytes`
    table: str
    rows: int
    dim: int
    keys: int
    rounds: int
    blocks: int
    record_bytes: int
    source: Source


@dataclass(frozen=True)
class Figures:
    """Seconds of every round of one writer, of its blocks, and what it added to each row."""

    seconds: dict[str, list[float]]  # lookup, apply, mget, mset: per round; store, plain: per block
    sums: np.ndarray  # (rows,) i64: Σ of this writer's ±1
    updates: np.ndarray  # (rows,) i64


def flush_from(source: Source, rows: I64, gradients: F32, start: int, stop: int) -> Flush:
    """As the trainer sends it, of a source of its own."""
    return replace(flush_of(rows, gradients, start, stop), ranges=(Range(source, start, stop),))


def write(job: Job, barrier: Any, results: Connection) -> None:
    """Run the job in step with the other writers at the barrier; send Figures."""
    store = open_store(RedisSettings(url=job.url))
    plain = redis.Redis.from_url(job.plain_url)
    rng = np.random.default_rng(job.source.partition)
    seconds: dict[str, list[float]] = {k: [] for k in ("lookup", "apply", "mget", "mset", "store", "plain")}
    sums, updates = np.zeros(job.rows, np.int64), np.zeros(job.rows, np.int64)
    offset = store.status(job.table)[0].offsets[job.source]

    def timed(name: str, call: Any) -> Any:
        started = time.perf_counter()
        answer = call()
        seconds[name].append(time.perf_counter() - started)
        return answer

    for _ in range(job.blocks):
        batches = [rng.choice(job.rows, job.keys, replace=False) for _ in range(job.rounds)]
        signs = [rng.choice([-1, 1], job.keys) for _ in range(job.rounds)]
        gradients = [np.repeat(s.astype(np.float32)[:, None], job.dim, 1) for s in signs]
        names = [plain_names(rows) for rows in batches]
        barrier.wait()
        started = time.perf_counter()
        for i, rows in enumerate(batches):
            keys = keys_of(rows)
            timed("lookup", lambda keys=keys: store.lookup(job.table, keys, with_ids=False))
            flush = flush_from(job.source, rows, gradients[i], offset, offset + job.keys)
            replies = timed("apply", lambda flush=flush: store.apply(job.table, flush))
            if {r.outcome for r in replies} != {"applied"}:
                raise RuntimeError(f"a call of a source's only writer was not applied: {replies}")
            offset += job.keys
        barrier.wait()
        seconds["store"].append(time.perf_counter() - started)
        started = time.perf_counter()
        for chosen in names:
            values = timed("mget", lambda chosen=chosen: plain.mget(chosen))
            pairs = dict(zip(chosen, values, strict=True))
            timed("mset", lambda pairs=pairs: plain.mset(pairs))
        barrier.wait()
        seconds["plain"].append(time.perf_counter() - started)
        for rows, sign in zip(batches, signs, strict=True):
            sums[rows] += sign
            updates[rows] += 1
    store.close()
    results.send(Figures(seconds, sums, updates))


def fill_plain(job: Job) -> None:
    """Strings with as many bytes as a row record."""
    plain = redis.Redis.from_url(job.plain_url)
    value = np.random.default_rng(0).bytes(job.record_bytes)
    for lo in range(0, job.rows, 16_384):
        plain.mset(dict.fromkeys(plain_names(np.arange(lo, min(job.rows, lo + 16_384))), value))
