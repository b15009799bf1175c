"""lookup + apply of one batch, by turns on every server: wall time at one client, and CPU time of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from rich.progress import Progress

from benchmarks.store import requests
from benchmarks.store.data import BATCH, START, batches, gradients_of
from benchmarks.store.exchange import Exchange, Request
from benchmarks.store.servers import Served
from embedding_store.contract import F32, I64
from embedding_store.spec import TableSpec

BATCHES = 48
"""Different ones: their rows together are more than a processor's caches hold."""
IN_A_ROW = 4
"""Pairs of calls that a server gets at its turn; its CPU time is taken over them."""
SETTLE_S = 0.001
"""A server still tidies up when its reply is here; CPU time is read after that."""
WARM_UP = 2


class Cost(NamedTuple):
    """Medians. CPU is of user and system together, for both calls."""

    lookup_us: float
    apply_us: float
    both_us: float
    both_p10_us: float  # of the quietest moments
    server_cpu_ns_per_row: float


@dataclass
class Side:
    """One server's work, prepared."""

    served: Served
    exchange: Exchange
    lookups: list[Request]
    apply: Callable[[int], Request]
    applied: bytes  # how the reply to an apply begins
    rows: int  # of a batch
    lookup_s: list[float] = field(default_factory=list)
    apply_s: list[float] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)

    def turn(self, first: int) -> None:
        """IN_A_ROW batches from number `first` on."""
        time.sleep(SETTLE_S)
        before = self.served.cpu_ns()
        for k in range(first, first + IN_A_ROW):
            self.lookup_s.append(self.exchange.seconds(self.lookups[k % len(self.lookups)]))
            self.apply_s.append(self.exchange.seconds(self.apply(k % len(self.lookups))))
            if not self.exchange.reply.startswith(self.applied):
                raise RuntimeError(f"{self.served.name} did not apply: {self.exchange.reply!r}")
        time.sleep(SETTLE_S)
        self.cpu_ns.append(self.served.cpu_ns() - before)

    def cost(self) -> Cost:
        """Without what warmed up."""
        lookup, apply = (1e6 * np.array(s[WARM_UP * IN_A_ROW :]) for s in (self.lookup_s, self.apply_s))
        cpu = np.array(self.cpu_ns[WARM_UP:]) / (IN_A_ROW * self.rows)
        both = lookup + apply
        return Cost(
            round(float(np.median(lookup)), 1),
            round(float(np.median(apply)), 1),
            round(float(np.median(both)), 1),
            round(float(np.percentile(both, 10)), 1),
            round(float(np.median(cpu)), 1),
        )


def floor_side(floor: Served, parts: Sequence[I64], gradients: F32) -> Side:
    """Of `benchmarks/floor.c`."""
    dim = gradients.shape[1]
    applies = [requests.floor_apply(rows, gradients) for rows in parts]
    lookups = [requests.floor_lookup(rows, dim) for rows in parts]
    return Side(floor, Exchange(floor.socket, most(lookups)), lookups, applies.__getitem__, b"OK", len(parts[0]))


def module_side(served: Served, spec: TableSpec, parts: Sequence[I64], gradients: F32, offset: int) -> Side:
    """Of a table of one shard whose source is at `offset`."""
    applies = [requests.ModuleApply(spec, rows, gradients) for rows in parts]
    lookups = [requests.module_lookup(spec, rows) for rows in parts]
    at = offset

    def apply(k: int) -> Request:
        nonlocal at
        request, at = applies[k].at(at)
        return request

    exchange = Exchange(served.socket, most(lookups))
    return Side(served, exchange, lookups, apply, requests.APPLIED, len(parts[0]))


def stock_side(served: Served, parts: Sequence[I64], values: F32) -> Side:
    """Of strings with the bytes of a vector: MGET and MSET."""
    applies = [requests.stock_apply(rows, values) for rows in parts]
    lookups = [requests.stock_lookup(rows, values.shape[1] * 4) for rows in parts]
    return Side(served, Exchange(served.socket, most(lookups)), lookups, applies.__getitem__, b"+OK", len(parts[0]))


def most(lookups: Sequence[Request]) -> int:
    """Bytes of the largest reply."""
    return max(request.reply_bytes or 0 for request in lookups)


def fill_stock(served: Served, rows: int, dim: int, progress: Progress) -> None:
    """Strings for all rows."""
    exchange = Exchange(served.socket, 0)
    values = gradients_of(BATCH, dim)
    for lo in progress.track(range(0, rows, BATCH), description="strings for stock Redis"):
        part = np.arange(lo, min(rows, lo + BATCH))
        exchange.seconds(requests.stock_apply(part, values[: len(part)]))
    exchange.close()


def measure(
    floors: dict[str, Served],
    module: Served,
    stock: Served,
    tables: dict[str, tuple[TableSpec, int]],
    rows: int,
    keys: int,
    seconds: float,
    progress: Progress,
) -> dict[str, Cost]:
    """Costs of `floors`, `stock`, and each of `tables`, which are full: by name (declaration, offset of SOURCE)."""
    parts = batches(rows, BATCHES, keys)
    dim = next(iter(tables.values()))[0].dim
    gradients = gradients_of(len(parts[0]), dim)
    sides = {name: floor_side(floor, parts, gradients) for name, floor in floors.items()}
    for name, (spec, offset) in tables.items():
        sides[name] = module_side(module, spec, parts, gradients, START + offset)
    sides["stock"] = stock_side(stock, parts, gradients)
    bar = progress.add_task(f"lookup + apply of {keys} of {rows:,} rows", total=seconds)
    started = time.perf_counter()
    turn = 0
    while (past := time.perf_counter() - started) < seconds or turn < WARM_UP + 3:
        progress.update(bar, completed=past)
        for side in sides.values():
            side.turn(turn * IN_A_ROW)
        turn += 1
    progress.remove_task(bar)
    for side in sides.values():
        side.exchange.close()
    return {name: side.cost() for name, side in sides.items()}
