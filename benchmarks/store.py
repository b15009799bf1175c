"""The stock backend beside plain MGET and MSET of the same row bytes, on a server of its own: `make bench-store`.

lookup + apply of --keys random keys out of --rows rows, by one and by two writer processes, for sgd and adagrad. Blocks
of store calls and of plain calls take turns in the same processes, so a busy machine slows both. Afterwards every row
is read and compared with the exact sum of what the writers sent: `lost` is the number of updates that are missing.

Beside it, the aggregation kernel over a copy of its data. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.machine import facts
from benchmarks.store_writer import Figures, Job, fill_plain, flush_of, write
from embedding_store.contract import EmbeddingStore, Source
from embedding_store.open import open_store
from embedding_store.redis_store.client import Wire, address_of
from embedding_store.settings import RedisSettings
from embedding_store.spec import Adagrad, Sgd, TableSpec
from infra.local.ports import ephemeral
from infra.local.process import stop
from infra.local.server import await_answer
from infra.local.store_server import RedisServer, find_store_program
from native.aggregate import aggregate
from native.rows import HEADER_BYTES

FILLER = Source("fill", 0)
OPTIMIZERS = {
    "sgd": Sgd(learning_rate=1.0),  # w = −Σg: whole numbers, exact in float32
    "adagrad": Adagrad(initial_accumulator=1.0),  # s = 1 + number of updates by ±1: exact too
}


def main() -> None:
    """Run once and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--keys", type=int, default=4096)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12, help="lookup + apply calls of a block")
    parser.add_argument("--blocks", type=int, default=7, help="the median of blocks is reported")
    parser.add_argument("--aof", action="store_true", help="with the append-only file, fsync every second")
    arguments = parser.parse_args()
    program = find_store_program("auto", os.environ)
    load_before = round(os.getloadavg()[0], 2)
    people = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as folder:
        server = RedisServer(program, Path(folder), ephemeral())
        record = server.start()
        try:
            await_answer(server, record, 30, 5, lambda: False)
            if not arguments.aof:
                Wire(RedisSettings(), address_of(server.address)).call("CONFIG", "SET", "appendonly", "no")
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            with Progress(*columns, console=people, transient=True) as bar:
                task = bar.add_task("", total=3 * len(OPTIMIZERS) + 1)

                def tell(what: str) -> None:
                    bar.update(task, description=f"{what:<40}", advance=1)

                measured = {name: measure(server.address, name, arguments, tell) for name in OPTIMIZERS}
                tell("aggregation")
                ratio, aggregation = aggregation_over_copy()
        finally:
            stop(record, 10)
    people.print(table_of(measured, arguments))
    figures = {name: {k: v for k, v in of.items() if k != "lost"} for name, of in measured.items()}
    best = figures["adagrad"]
    print(json.dumps({
        "rows_per_s_one_writer": best["one"]["rows_per_s"],
        "rows_per_s_two_writers": best["two"]["rows_per_s"],
        "plain_rows_per_s_one_writer": best["one"]["plain_rows_per_s"],
        "plain_rows_per_s_two_writers": best["two"]["plain_rows_per_s"],
        "lost": sum(of["lost"] for of in measured.values()),
        "aggregation_over_copy": ratio,
        "aggregation": aggregation,
        **figures,
        "rows": arguments.rows,
        "keys": arguments.keys,
        "dim": arguments.dim,
        "shards": arguments.shards,
        "aof": arguments.aof,
        "store": program.name,
        "load_before": load_before,
        **facts(),
    }))  # fmt: skip


def measure(url: str, name: str, arguments: argparse.Namespace, tell: Callable[[str], None]) -> dict[str, object]:
    """Figures of one optimizer: `one` and `two` writers, and `lost`."""
    tell(f"{name}: {arguments.rows:,} rows")
    Wire(RedisSettings(), address_of(url)).call("FLUSHALL")
    store = open_store(RedisSettings(url=url, timeout_s=60))
    spec = TableSpec(name="item", dim=arguments.dim, shards=arguments.shards, optimizer=OPTIMIZERS[name])
    store.create(spec)
    for shard in range(spec.shards):
        for source in (FILLER, Source("bench", 0), Source("bench", 1)):
            store.seek(spec.name, shard, source, None, 0, "benchmark")
    chunk = 50_000
    for i, lo in enumerate(range(0, arguments.rows, chunk)):
        keys = np.arange(lo, min(arguments.rows, lo + chunk), dtype=np.uint64)
        store.apply(spec.name, flush_of(keys, np.ones((len(keys), spec.dim), np.float32), FILLER, i))
    jobs = [
        Job(
            url, spec.name, arguments.rows, spec.dim, arguments.keys, arguments.rounds, arguments.blocks,
            HEADER_BYTES + 4 * (spec.dim + spec.state_dim), writer,
        )
        for writer in range(2)
    ]  # fmt: skip
    fill_plain(jobs[0])
    out: dict[str, object] = {}
    sums = np.ones(arguments.rows, np.int64)
    updates = np.ones(arguments.rows, np.int64)
    for title, writers in (("one", jobs[:1]), ("two", jobs)):
        tell(f"{name}: {title} writer{'s' if len(writers) > 1 else ''}")
        figures = run(writers)
        out[title] = summary(figures, arguments)
        sums += sum(f.sums for f in figures)
        updates += sum(f.updates for f in figures)
    out["lost"] = lost(store, spec, sums, updates)
    store.close()
    return out


def run(jobs: list[Job]) -> list[Figures]:
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


def summary(figures: list[Figures], arguments: argparse.Namespace) -> dict[str, float]:
    """Rows per second of all writers together; medians over blocks and rounds."""
    rows = arguments.keys * arguments.rounds * len(figures)
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


def lost(store: EmbeddingStore, spec: TableSpec, sums: np.ndarray, updates: np.ndarray) -> int:
    """Updates that rows don't show, or show twice: of every row, from its exact sum."""
    missing = 0
    for lo in range(0, len(sums), 50_000):
        keys = np.arange(lo, min(len(sums), lo + 50_000), dtype=np.uint64)
        rows = store.lookup(spec.name, keys, with_state=True)
        if isinstance(spec.optimizer, Sgd):
            missing += int(np.abs(-rows.vectors - sums[lo : lo + 50_000, None]).max(axis=1).sum())
        else:
            missing += int(np.abs(rows.state - 1 - updates[lo : lo + 50_000, None]).max(axis=1).sum())
    return missing


def aggregation_over_copy() -> tuple[float, dict[str, float]]:
    """Median time of `aggregate` of 8192 × 64 gradients of 5728 keys over that of a copy of them, taken in turns."""
    rng = np.random.default_rng(0)
    keys = rng.permutation(np.concatenate([np.arange(5728), rng.integers(0, 5728, 8192 - 5728)])).astype(np.uint64)
    gradients = rng.normal(size=(8192, 64)).astype(np.float32)
    target = np.empty_like(gradients)
    copies, sums = [], []
    for _ in range(400):
        started = time.perf_counter()
        np.copyto(target, gradients)
        between = time.perf_counter()
        aggregate(keys, gradients)
        copies.append(between - started)
        sums.append(time.perf_counter() - between)
    copy_us, sum_us = (1e6 * float(np.median(s)) for s in (copies, sums))
    return round(sum_us / copy_us, 2), {"copy_us": round(copy_us), "aggregate_us": round(sum_us)}


def table_of(measured: dict[str, dict[str, object]], arguments: argparse.Namespace) -> Table:
    """For people."""
    table = Table(title=f"{arguments.keys} random keys of {arguments.rows:,} rows × {arguments.dim}")
    for column in ("optimizer", "writers", "rows/s", "plain rows/s", "over plain", "lookup ms", "apply ms", "lost"):
        table.add_column(column, justify="right")
    for name, of in measured.items():
        for writers in ("one", "two"):
            f = of[writers]
            table.add_row(
                name, writers, f"{f['rows_per_s']:,}", f"{f['plain_rows_per_s']:,}", f"{f['over_plain']}",
                f"{f['lookup_ms']}", f"{f['apply_ms']}", str(of["lost"]),
            )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
