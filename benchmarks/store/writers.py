"""The store's own client, by one and by two writer processes, on both backends; afterwards every row is counted.

lookup + apply of random keys of a table with the default's four shards, as the trainer sends them. Blocks of store
calls and of plain MGET and MSET of the same bytes take turns in the same processes, so a busy machine slows both.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.store.data import ID_BYTES, keys_of, spec_of
from benchmarks.store.servers import Served
from benchmarks.store.writer import Figures, Job, fill_plain, flush_from, write
from embedding_store.contract import EmbeddingStore, Source
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from embedding_store.spec import Adagrad, Sgd, TableSpec
from native.rows import HEADER_BYTES

FILLER = Source("fill", 0)
OPTIMIZERS = {
    "sgd": Sgd(learning_rate=1.0),  # w = −Σg: whole numbers, exact in float32
    "adagrad": Adagrad(initial_accumulator=1.0),  # s = 1 + number of updates by ±1: exact too
}
CHUNK = 50_000


def measure(
    served: Served, plain: Served, optimizer: str, arguments: argparse.Namespace, progress: Progress
) -> dict[str, Any]:
    """Figures of one backend and optimizer: `one` and `two` writers, and `lost`."""
    store = open_store(RedisSettings(url=served.url, timeout_s=60))
    bar = progress.add_task(f"{store.backend}, {optimizer}: writers", total=5)
    spec = spec_of(f"writers_{optimizer}", OPTIMIZERS[optimizer], arguments.shards, arguments.dim)
    store.create(spec)
    sources = [Source("bench", writer) for writer in range(2)]
    for shard in range(spec.shards):
        for source in (FILLER, *sources):
            store.seek(spec.name, shard, source, None, 0, "benchmark")
    for lo in range(0, arguments.rows, CHUNK):
        rows = np.arange(lo, min(arguments.rows, lo + CHUNK))
        ones = np.ones((len(rows), spec.dim), np.float32)
        store.apply(spec.name, flush_from(FILLER, rows, ones, lo, int(rows[-1]) + 1))
    progress.advance(bar)
    record_bytes = HEADER_BYTES + 4 * (spec.dim + spec.state_dim) + ID_BYTES
    jobs = [
        Job(
            served.url, plain.url, spec.name, arguments.rows, spec.dim, min(arguments.keys, arguments.rows),
            arguments.rounds, arguments.blocks, record_bytes, source,
        )
        for source in sources
    ]  # fmt: skip
    fill_plain(jobs[0])
    progress.advance(bar)
    out: dict[str, Any] = {}
    sums = np.ones(arguments.rows, np.int64)
    updates = np.ones(arguments.rows, np.int64)
    for title, writers in (("one", jobs[:1]), ("two", jobs)):
        figures = _run(writers)
        out[title] = _summary(figures, jobs[0])
        sums += sum(f.sums for f in figures)
        updates += sum(f.updates for f in figures)
        progress.advance(bar)
    out["lost"] = _lost(store, spec, sums, updates)
    progress.remove_task(bar)
    store.close()
    return out


def _run(jobs: list[Job]) -> list[Figures]:
    """All writers at once, each a process."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(jobs))
    ends = [context.Pipe(duplex=False) for _ in jobs]
    writers = [
        context.Process(target=write, args=(job, barrier, sender)) for job, (_, sender) in zip(jobs, ends, strict=True)
    ]
    for writer in writers:
        writer.start()
    for _, sender in ends:
        sender.close()  # so that a dead writer is an EOFError here, not a wait for ever
    figures: list[Figures] = [receiver.recv() for receiver, _ in ends]
    for writer in writers:
        writer.join()
    return figures


def _summary(figures: list[Figures], job: Job) -> dict[str, float]:
    """Rows per second of all writers together; medians over blocks and rounds."""
    rows = job.keys * job.rounds * len(figures)
    store, plain = (float(np.median(figures[0].seconds[kind])) for kind in ("store", "plain"))
    rounds = {
        f"{kind}_ms": round(1e3 * float(np.median([s for f in figures for s in f.seconds[kind]])), 2)
        for kind in ("lookup", "apply", "mget", "mset")
    }
    return {
        "rows_per_s": round(rows / store),
        "plain_rows_per_s": round(rows / plain),
        "over_plain": round(plain / store, 2),
        **rounds,
    }


def _lost(store: EmbeddingStore, spec: TableSpec, sums: np.ndarray, updates: np.ndarray) -> int:
    """Updates that rows don't show, or show twice: of every row, from its exact sum and its count of own events."""
    missing = 0
    for lo in range(0, len(sums), CHUNK):
        part = np.arange(lo, min(len(sums), lo + CHUNK))
        rows = store.lookup(spec.name, keys_of(part), with_state=True)
        if isinstance(spec.optimizer, Sgd):
            wrong = np.abs(-rows.vectors - sums[part, None]).max(axis=1)
        else:
            wrong = np.abs(rows.state - 1 - updates[part, None]).max(axis=1)
        missing += int(np.maximum(wrong, np.abs(rows.count - updates[part])).sum())
    return missing
