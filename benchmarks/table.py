"""The Redis module's table structure alone, beside a floor program in the same run: no server, no socket.

    python -m benchmarks.table [--rows 1000000] [--seconds 2]

4096 random keys a call out of `rows` rows of 64 float32 with 12-byte ids. The last line is one JSON object: thread CPU
in ns a row (best of many calls and their median), the same of the floor (random 256-byte gather and update of a flat
array), bytes a row over vector and state, and the longest call while the table grew to its rows.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import mmap
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.machine import facts
from native.redis_module.compiler import build_library
from tests.native.redis_module.loaded import Table, load

DIM, BATCH = 64, 4096
KINDS = ("sgd", "adagrad", "adam")


def ns_a_row(call: Callable[[int], None], seconds: float) -> dict[str, float]:
    """Best and median thread CPU of call(k), k = 0, 1, …, over BATCH."""
    times = []
    stop = time.perf_counter() + seconds
    k = 0
    while time.perf_counter() < stop or k < 5:
        start = time.thread_time_ns()
        call(k)
        times.append((time.thread_time_ns() - start) / BATCH)
        k += 1
    return {"best": round(min(times), 1), "median": round(float(np.median(times)), 1)}


def batches(rows: int) -> list[np.ndarray]:
    """64 draws of BATCH distinct row numbers, in random order."""
    rng = np.random.default_rng(1)
    return [rng.choice(rows, BATCH, replace=False, shuffle=True) for _ in range(64)]


def floor_of(folder: Path, rows: int, seconds: float) -> dict[str, dict[str, float]]:
    """The floor program on a flat array."""
    library = c.CDLL(str(build_library(folder / "floor.so", [Path(__file__).parent / "table_floor.c"])))
    # on small pages, as a table's chunks are: Redis turns huge ones off for itself, NumPy asks for them
    memory = mmap.mmap(-1, 4 * rows * DIM)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    flat = np.frombuffer(memory, np.float32).reshape(rows, DIM)
    flat[:] = 0.5
    at = batches(rows)
    out, gradients = np.empty((2, BATCH, DIM), np.float32)
    gradients[:] = 0.01

    def gather(k: int) -> None:
        library.floor_gather(
            c.c_void_p(flat.ctypes.data), c.c_void_p(at[k % 64].ctypes.data), c.c_int64(BATCH), c.c_int64(DIM),
            c.c_void_p(out.ctypes.data),
        )  # fmt: skip

    def update(k: int) -> None:
        library.floor_update(
            c.c_void_p(flat.ctypes.data), c.c_void_p(at[k % 64].ctypes.data), c.c_int64(BATCH), c.c_int64(DIM),
            c.c_void_p(gradients.ctypes.data), c.c_float(0.05),
        )  # fmt: skip

    def both(k: int) -> None:
        gather(k)
        update(k)

    return {name: ns_a_row(f, seconds) for name, f in (("lookup", gather), ("apply", update), ("both", both))}


def filled(library: c.CDLL, kind: str, keys: np.ndarray) -> tuple[Table, np.ndarray, float]:
    """A table with a row for each key, the ns that each call took, and the largest bytes over payload on the way."""
    table = Table(library, DIM, kind, fast=True)
    took, most_bytes = [], 0.0
    ones, width = np.ones(BATCH, np.int64), 4 * (DIM + table.state_dim)
    for start in range(0, len(keys), BATCH):
        part = keys[start : start + BATCH]
        call = table.prepared(part, counts=ones[: len(part)], ids=[b"%012d" % (start + i) for i in range(len(part))])
        begin = time.thread_time_ns()
        call()
        took.append(time.thread_time_ns() - begin)
        if table.rows > 50_000:
            most_bytes = max(most_bytes, table.held / (table.rows * width))
    return table, np.array(took), most_bytes


def grown(library: c.CDLL, kind: str, keys: np.ndarray) -> tuple[Table, dict[str, float]]:
    """`filled` three times, and figures of its growth.

    Each call does the same work each time, so what only one of the three shows is the machine's: the host of a virtual
    machine that has to find pages takes 20 ms of our thread's time now and then.
    """
    times, tables = [], []
    for _ in range(3):
        if tables:
            tables.pop().close()
        table, took, most_bytes = filled(library, kind, keys)
        tables.append(table)
        times.append(took)
    least = np.min(times, axis=0)
    return table, {
        "growth_worst_call_ms": round(float(least.max()) / 1e6, 3),
        "growth_worst_call_ms_with_the_machines": round(float(np.max(times)) / 1e6, 3),
        "growth_ns_a_row": round(float(least.sum()) / len(keys), 1),
        "bytes_over_payload": round(table.held / (table.rows * 4 * (DIM + table.state_dim)), 3),
        "bytes_over_payload_worst": round(most_bytes, 3),
    }


def table_of(library: c.CDLL, kind: str, rows: int, seconds: float) -> dict[str, object]:
    """One optimizer's figures."""
    keys = np.random.default_rng(3).permutation(rows).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table, growth = grown(library, kind, keys)
    rng = np.random.default_rng(4)
    parts = [keys[at] for at in batches(rows)]
    gradients = rng.normal(size=(BATCH, DIM)).astype(np.float32)
    counts = rng.integers(0, 2, BATCH)
    lookups = [table.prepared_lookup(part, plain=True) for part in parts]
    applies = [table.prepared(part, gradients, counts=counts) for part in parts]

    def both(k: int) -> None:
        lookups[k % 64]()
        applies[k % 64]()

    figures: dict[str, object] = {
        "lookup": ns_a_row(lambda k: lookups[k % 64](), seconds),
        "apply": ns_a_row(lambda k: applies[k % 64](), seconds),
        "both": ns_a_row(both, seconds),
    }
    table.check()
    table.close()
    return figures | growth


def main() -> None:
    """Prints the JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = load(Path(folder))
        floor = floor_of(Path(folder), options.rows, options.seconds)
        print("floor", floor)
        kinds = {}
        for kind in options.kinds:
            kinds[kind] = table_of(library, kind, options.rows, options.seconds)
            print(kind, kinds[kind])
    result: dict[str, object] = {"rows": options.rows, "dim": DIM, "batch": BATCH, "floor": floor, "table": kinds}
    if "sgd" in kinds:
        best = {name: kinds["sgd"][name]["best"] / floor[name]["best"] for name in floor}  # type: ignore[index]
        result["sgd_over_floor"] = {name: round(ratio, 2) for name, ratio in best.items()}
    print(json.dumps(result | {"machine": facts()}))


if __name__ == "__main__":
    main()
