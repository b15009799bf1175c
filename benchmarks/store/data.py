"""Rows and flushes as a trainer has them: row i has a key, a 12-byte id and its check bits. Pure."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, ORDER, U32, U64, Flush, OwnEvents, Range, Source
from embedding_store.optimizers import Adagrad, Adam, Optimizer, Sgd
from embedding_store.spec import TableSpec
from native.ragged import Ragged

ID_BYTES = 12
DIM = 64
BATCH = 4096
SOURCE = Source("bench", 0)
START = 10**9
"""First offset of SOURCE: offsets and clocks of a run then have one number of digits, and replies one length."""

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(learning_rate=0.05),
    "adagrad": Adagrad(learning_rate=0.05),
    "adam": Adam(learning_rate=0.001),
}


def spec_of(name: str, optimizer: Optimizer, shards: int = 1, dim: int = DIM) -> TableSpec:
    """A table without limits."""
    return TableSpec(name=name, dim=dim, shards=shards, optimizer=optimizer)


def keys_of(rows: npt.NDArray[np.integer]) -> U64:
    """Distinct keys without order, as hashes of ids are."""
    return (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def ids_of(rows: npt.NDArray[np.integer]) -> Ragged:
    """Twelve decimal digits each."""
    digits = rows[:, None] // 10 ** np.arange(ID_BYTES - 1, -1, -1, dtype=np.int64) % 10 + ord("0")
    return Ragged(np.arange(len(rows) + 1) * ID_BYTES, digits.astype(np.uint8).reshape(-1))


def checks_of(rows: npt.NDArray[np.integer]) -> U32:
    """Check bits that are no one else's."""
    return (keys_of(rows) >> np.uint64(32)).astype(np.uint32)


def batches(rows: int, n: int, keys: int, seed: int = 1) -> list[I64]:
    """n draws of `keys` distinct rows, in random order."""
    rng = np.random.default_rng(seed)
    return [rng.choice(rows, min(keys, rows), replace=False, shuffle=True) for _ in range(n)]


def gradients_of(n: int, dim: int, seed: int = 2) -> F32:
    """(n, dim), small."""
    return np.random.default_rng(seed).normal(0, 0.01, (n, dim)).astype(np.float32)


def flush_of(
    rows: npt.NDArray[np.integer], gradients: F32 | None, start: int, stop: int, events_of: I64 | None = None
) -> Flush:
    """What the trainer sends for a micro-batch: the own events of its rows one by one, ids and check bits with them.

    events_of (e,): index into `rows` of each own event; None: each row has one. Every event is positive.
    """
    n = len(rows)
    own = np.arange(n) if events_of is None else events_of
    counts = np.bincount(own, minlength=n).astype(np.int64)
    now_ms = time.time_ns() // 1_000_000
    orders = np.zeros(len(own), ORDER)
    orders["time_ms"], orders["place"] = now_ms, start * 65536 + np.arange(len(own))
    return Flush(
        generation=0,
        ranges=(Range(SOURCE, start, stop),),
        events=stop - start,
        event_time_ms=now_ms,
        produced_ms=now_ms,
        now_ms=now_ms,
        keys=keys_of(rows),
        counts=counts,
        positives=counts.astype(np.float32),
        checks=checks_of(rows),
        ids=ids_of(rows),
        gradients=gradients,
        own_events=OwnEvents(own, orders, np.ones(len(own), np.float32)),
    )
