"""What the store costs, in one run beside a floor, stock Redis and TFRA's commands: `make bench-store`.

1. lookup + apply of --keys random keys out of --rows rows, by turns on the floor (`benchmarks/floor.c`: memory and
   socket alone; on small pages, which the limit is of, and on huge ones), the module (one shard, each optimizer) and
   stock Redis (MGET + MSET of vectors); one client for all
2. bytes of a row, at the index's worst load
3. bytes on the wire for a step
4. the store's own client: both backends, one and two writers; every row is counted afterwards, `lost` must be 0
5. the longest call while a table grows to --growth-rows
6. the client's processor time for each shard of a table that it calls
7. the aggregation kernel over a copy of its data

The last line is one JSON object. Ends with 1 if updates are missing, with an error if a server died.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import facts
from benchmarks.store import aggregation, calls, growth, memory, shards, wire, writers
from benchmarks.store.calls import Cost
from benchmarks.store.data import BATCH, DIM, OPTIMIZERS
from benchmarks.store.report import tables_of
from benchmarks.store.servers import floor_server, store_server, undisturbed
from infra.local.store_server import find_store_program


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=DIM)
    parser.add_argument("--keys", type=int, default=BATCH)
    parser.add_argument("--seconds", type=float, default=20, help="of lookup + apply by turns")
    parser.add_argument("--growth-rows", type=int, default=None, help="default: ten times --rows")
    parser.add_argument("--growths", type=int, default=3, help="how often the table is grown")
    parser.add_argument("--shards", type=int, default=4, help="of the writers' tables")
    parser.add_argument("--rounds", type=int, default=8, help="lookup + apply calls of a writer's block")
    parser.add_argument("--blocks", type=int, default=5, help="the median of blocks is reported")
    parser.add_argument("--aof", action="store_true", help="with the append-only file, fsync every second")
    arguments = parser.parse_args()
    arguments.keys = min(arguments.keys, arguments.rows)
    arguments.growth_rows = arguments.growth_rows or 10 * arguments.rows
    return arguments


def main() -> None:
    """Run once and print."""
    arguments = parsed()
    load_before = round(os.getloadavg()[0], 2)
    people = Console(stderr=True)
    columns = (TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn())
    started = time.monotonic()
    with Progress(*columns, console=people, transient=True) as progress:
        figures = measured(arguments, progress)
    for table in tables_of(figures):
        people.print(table)
    settings = {name: getattr(arguments, name) for name in ("rows", "keys", "dim", "shards", "aof")}
    run = {"seconds": round(time.monotonic() - started), "load_before": load_before}
    print(json.dumps({**figures, **settings, **run, **facts()}))
    if figures["lost"]:
        raise SystemExit(f"{figures['lost']} updates are missing")


def measured(arguments: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """All figures."""
    program = find_store_program("auto", os.environ)
    rows, dim = arguments.rows, arguments.dim
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as name:
        folder = Path(name)
        with (
            store_server(program, folder / "module", module=True, aof=arguments.aof) as module,
            store_server(program, folder / "stock", module=False, aof=arguments.aof) as stock,
        ):
            filled = {
                name: memory.fill(module, name, optimizer, rows, dim, progress)
                for name, optimizer in OPTIMIZERS.items()
            }
            calls.fill_stock(stock, rows, dim, progress)
            tables = {name: (f.spec, f.offset) for name, f in filled.items()}
            with (
                floor_server(folder, rows, dim, "small") as floor,
                floor_server(folder, rows, dim, "huge") as huge,
                undisturbed(floor, huge, module, stock) as alone,
            ):
                floors = {"floor": floor, "floor_on_huge_pages": huge}
                costs = calls.measure(floors, module, stock, tables, rows, arguments.keys, arguments.seconds, progress)
            on_the_wire = wire.measure(module, stock, arguments.keys, dim)
            for served in (module, stock):
                served.told("FLUSHALL")
            wrote: dict[str, dict[str, Any]] = {"module": {}, "stock": {}}
            for backend, name in (("module", "sgd"), ("module", "adagrad"), ("stock", "adagrad")):
                served = module if backend == "module" else stock
                wrote[backend][name] = writers.measure(served, stock, name, arguments, progress)
            for served in (module, stock):
                served.told("FLUSHALL")
            of_shards = shards.measure(module, dim, 10 * arguments.blocks, progress)
            module.told("FLUSHALL")
            with undisturbed(module):
                grown = growth.measure(module, arguments.growth_rows, dim, arguments.growths, progress)
    over_copy, aggregated = aggregation.over_copy()
    return {
        **headline(costs, filled, on_the_wire, grown),
        **over_floor(costs),
        "memory": {name: f.ratios() for name, f in filled.items()},
        "wire": on_the_wire,
        "growth": grown,
        **of_writers(wrote),
        "of_shards": of_shards,
        "aggregation_over_copy": over_copy,
        "aggregation": aggregated,
        "store": program.name,
        "undisturbed": alone,
    }


def headline(
    costs: dict[str, Cost], filled: dict[str, memory.Filled], on_the_wire: dict[str, Any], grown: dict[str, Any]
) -> dict[str, Any]:
    """The figures that have limits."""
    sgd, floor, stock = costs["sgd"], costs["floor"], costs["stock"]
    return {
        "lookup_apply_over_floor": round(sgd.both_us / floor.both_us, 3),
        "lookup_apply_over_floor_on_huge_pages": round(sgd.both_us / costs["floor_on_huge_pages"].both_us, 3),
        "lookup_apply_over_floor_in_quiet": round(sgd.both_p10_us / floor.both_p10_us, 3),
        "stock_over_module_server_cpu": round(stock.server_cpu_ns_per_row / sgd.server_cpu_ns_per_row, 2),
        "bytes_over_payload": filled["sgd"].worst_bytes_over_payload,
        "adagrad_bytes_over_payload": filled["adagrad"].worst_bytes_over_payload,
        "growth_worst_call_ms": grown["worst_call_ms"],
        "wire_bytes_over_tfra": on_the_wire["distinct"]["over_tfra"],
    }


def over_floor(costs: dict[str, Cost]) -> dict[str, Any]:
    """Optimizers beside the floor, which does SGD's work; and stock Redis."""
    floor = costs["floor"]
    return {
        "optimizers": {
            name: {**costs[name]._asdict(), "over_floor": round(costs[name].both_us / floor.both_us, 3)}
            for name in OPTIMIZERS
        },
        "floor": floor._asdict(),
        "floor_on_huge_pages": costs["floor_on_huge_pages"]._asdict(),
        "stock": costs["stock"]._asdict(),
    }


def of_writers(wrote: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The store's own client on both backends; rows per second are those of adagrad."""
    rates = {
        f"{backend}_rows_per_s_{title}": of["adagrad"][count]["rows_per_s"]
        for backend, of in wrote.items()
        for count, title in (("one", "one_writer"), ("two", "two_writers"))
    }
    return {**rates, "lost": sum(f["lost"] for of in wrote.values() for f in of.values()), "writers": wrote}


if __name__ == "__main__":
    main()
