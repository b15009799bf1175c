"""How long the longest call takes while a table grows: CPU time of the server's thread inside the module.

Every call is asked about by itself, so that the longest ones can be told apart: what they took of memory beyond the
usual says what doubled. The table is grown several times over. A call does the same work each time; what takes long in
one of the growths only is the machine's (a host that has to find pages takes milliseconds of our thread's time), so a
call counts with the least of its times, and the plain longest stands beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.store import requests
from benchmarks.store.data import BATCH, OPTIMIZERS, SOURCE, START, gradients_of, spec_of
from benchmarks.store.exchange import Exchange
from benchmarks.store.servers import Served
from embedding_store.open import open_store
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.keys import module_key
from embedding_store.settings import RedisSettings
from embedding_store.spec import TableSpec

NAME = "growth"
LOOKUP_EVERY = 8
TOLD = 5
"""Calls that are told one by one."""
SPARE_GIB = 3.0
ROW_BYTES = 110
"""Beyond the vector: more than enough."""


def fitting_dim(rows: int, dim: int) -> int:
    """`dim`, or as large a one as memory has room for."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    room = (available - SPARE_GIB * 2**30) / rows - ROW_BYTES
    while dim > 1 and 4 * dim > room:
        dim //= 2
    return dim


def measure(module: Served, rows: int, dim: int, times: int, progress: Progress) -> dict[str, Any]:
    """Grow a table to `rows` rows `times` times; figures of its calls."""
    spec = spec_of(NAME, OPTIMIZERS["sgd"], dim=fitting_dim(rows, dim))
    runs = [
        _grow(module, spec, rows, f"growth {k + 1}/{times} to {rows:,} rows × {spec.dim}", progress)
        for k in range(times)
    ]
    applies = np.array([run.apply_ns for run in runs]) / 1e6  # (times, calls)
    lookups = np.array([run.lookup_ns for run in runs]) / 1e6
    least, extra = applies.min(axis=0), runs[0].extra_bytes
    longest = np.argsort(least)[::-1][:TOLD]
    return {
        "worst_call_ms": round(float(least.max()), 3),
        "worst_call_ms_of_all_runs": round(float(applies.max()), 3),
        "median_call_ms": round(float(np.median(least)), 3),
        "worst_lookup_ms": round(float(lookups.min(axis=0).max()), 3),
        "worst_lookup_ms_of_all_runs": round(float(lookups.max()), 3),
        "rows": rows,
        "dim": spec.dim,
        "keys_per_call": BATCH,
        "runs": times,
        "worst_calls": [
            {
                "rows": (int(k) + 1) * BATCH,
                "ms": [round(float(ms), 3) for ms in applies[:, k]],
                "extra_kib": round(float(extra[k]) / 1024),
                "page_faults": [run.faults[k] for run in runs],
            }
            for k in longest
        ],
        "histogram_us": {"apply": runs[-1].histograms["tow.apply"], "lookup": runs[-1].histograms["tow.lookup"]},
    }


class _Run:
    """What was told of each call of one growth."""

    def __init__(self) -> None:
        self.apply_ns: list[int] = []
        self.lookup_ns: list[int] = []
        self.faults: list[int] = []
        self.memory: list[int] = []
        self.histograms: dict[str, dict[str, int]] = {"tow.apply": {}, "tow.lookup": {}}

    @property
    def extra_bytes(self) -> Any:
        """(calls,) bytes of the table that a call added beyond the median of calls."""
        grown = np.diff(np.array([0, *self.memory]))
        return grown - np.median(grown)

    def ask(self, wire: Wire) -> dict[str, int]:
        """The longest call of each command since the last time, its histogram added to ours."""
        longest = {}
        for name, calls, ns, buckets in wire.call("TOW.HISTOGRAM"):
            name = name.decode()
            longest[name] = ns
            for k, count in enumerate(buckets if calls and name in self.histograms else ()):
                if count:
                    told = self.histograms[name]
                    below = f"<{1 << k}"
                    told[below] = told.get(below, 0) + count
        wire.call("TOW.HISTOGRAM", "RESET")
        return longest


def _grow(module: Served, spec: TableSpec, rows: int, title: str, progress: Progress) -> _Run:
    store = open_store(RedisSettings(url=module.url, timeout_s=60))
    store.create(spec)
    store.status(spec.name)  # makes the shard again that the last growth's end deleted
    store.seek(spec.name, 0, SOURCE, None, START, "benchmark")
    rng = np.random.default_rng(5)
    gradients = gradients_of(BATCH, spec.dim)
    wire, run = module.wire(), _Run()
    exchange = Exchange(module.socket, requests.module_lookup(spec, np.arange(BATCH)).reply_bytes or 0)
    wire.call("TOW.HISTOGRAM", "ON")
    wire.call("TOW.HISTOGRAM", "RESET")
    for call in progress.track(range(rows // BATCH), description=title):
        faults = _page_faults(module)
        new = np.arange(call * BATCH, (call + 1) * BATCH)
        request, _ = requests.ModuleApply(spec, new, gradients).at(START + call * BATCH)
        exchange.seconds(request)
        if not exchange.reply.startswith(requests.APPLIED):
            raise RuntimeError(f"a call of the growth was not applied: {exchange.reply!r}")
        run.apply_ns.append(run.ask(wire)["tow.apply"])
        run.faults.append(_page_faults(module) - faults)
        run.memory.append(int(wire.call("MEMORY", "USAGE", module_key(spec.name, 0))))
        if call % LOOKUP_EVERY == LOOKUP_EVERY - 1:
            known = rng.choice((call + 1) * BATCH, BATCH, replace=False)
            exchange.seconds(requests.module_lookup(spec, known))
            run.lookup_ns.append(run.ask(wire)["tow.lookup"])
    wire.call("TOW.HISTOGRAM", "OFF")
    stored = store.status(spec.name)[0].rows
    if stored != rows // BATCH * BATCH:
        raise RuntimeError(f"{stored} rows where {rows // BATCH * BATCH} were inserted")
    wire.call("DEL", module_key(spec.name, 0))
    for closing in (exchange, wire, store):
        closing.close()
    return run


def _page_faults(served: Served) -> int:
    """Of the server so far, those that did not need the disk."""
    return int(Path(f"/proc/{served.record.pid}/stat").read_text().rpartition(")")[2].split()[7])
