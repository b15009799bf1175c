"""What an event costs as everything around it grows: `make bench-scale`.

1. rows: users and their histories from --rows, micro-batches as configured
2. micro-batches from --batches, at --batch-rows users
3. partitions / trainers from --cells, through Apache Kafka

Processor time, not speed: it is what must stay flat. Model and settings are those of the preset `no_dense` of
`make bench-e2e`. Tables go to standard error as they come; the last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.e2e.stream import Stream
from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts
from benchmarks.scale import trainers
from benchmarks.scale.plots import draw
from benchmarks.scale.rows import ITEMS, Point, Scaled
from benchmarks.store.servers import store_server
from infra.local.store_server import find_store_program

BATCH_EVENTS = 4096


def main() -> None:
    """Run once and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 300_000, 1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--batches", type=int, nargs="+", default=[200, 1_000, 4_000, 16_000, 64_000])
    parser.add_argument("--batch-rows", type=int, default=1_000_000, help="one of --rows")
    parser.add_argument("--events", type=int, default=500_000, help="of a measurement without a broker")
    parser.add_argument("--rounds", type=int, default=3, help="of each such measurement; the median counts")
    parser.add_argument("--cells", nargs="*", default=["1/1", "2/1", "8/1", "32/1", "2/2", "8/2", "8/4"])
    parser.add_argument("--cell-events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="a replay through the broker takes no longer")
    parser.add_argument("--plots", type=Path, help="folder for scale.png")
    arguments = parser.parse_args()
    rows, batches = _of_the_store(arguments)
    cells = []
    if arguments.cells:
        stream = Stream.drawn(arguments.cell_events, 200_000, ITEMS)
        _tell("| partitions / trainers | events/s | CPU µs/event | by process |\n|---|---|---|---|")
        for name in arguments.cells:
            partitions, _, n = name.partition("/")
            cells.append(cell := trainers.replay(stream, int(partitions), int(n), arguments.seconds))
            shares = ", ".join(f"{who} {us:.2f}" for who, us in cell.by_process.items())
            _tell(f"| {name} | {cell.events_per_s:,.0f} | {cell.cpu_us:.2f} | {shares} |")
    if arguments.plots is not None:
        arguments.plots.mkdir(parents=True, exist_ok=True)
        draw(rows, batches, cells, arguments.plots / "scale.png")
    costs = [point.cpu_us for point in rows]
    figures = {
        "most_over_least_by_rows": round(max(costs) / min(costs), 3),
        "largest_over_smallest_table": round(costs[-1] / costs[0], 3),
        "rows": [asdict(p) | {"cpu_us": round(p.cpu_us, 3)} for p in rows],
        "batches": [asdict(p) | {"cpu_us": round(p.cpu_us, 3)} for p in batches],
        "cells": list(map(asdict, cells)),
    }
    print(json.dumps(figures | facts()))


def _of_the_store(arguments: argparse.Namespace) -> tuple[list[Point], list[Point]]:
    """Points by rows, and by size of a micro-batch."""
    rows, batches = list[Point](), list[Point]()
    _tell("| users | micro-batch | CPU µs/event | worker | store | events/s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="towline-scale-") as name:
        program = find_store_program("auto", os.environ)
        with store_server(program, Path(name) / "store", module=True, aof=False) as served:
            scaled = Scaled(served)
            try:
                for users in sorted(arguments.rows):
                    with Progress(console=Console(stderr=True), transient=True) as progress:
                        task = progress.add_task(f"{users:,} users", total=users, completed=scaled.users)
                        for so_far in scaled.grow(users):
                            progress.update(task, completed=so_far)
                    rows.append(_median(scaled, BATCH_EVENTS, arguments))
                    if users == arguments.batch_rows:
                        batches.extend(_median(scaled, batch, arguments) for batch in sorted(arguments.batches))
            finally:
                scaled.close()
    return rows, batches


def _median(scaled: Scaled, batch: int, arguments: argparse.Namespace) -> Point:
    points = [scaled.measure(batch, arguments.events, seed) for seed in range(arguments.rounds)]
    point = sorted(points, key=lambda p: p.cpu_us)[len(points) // 2]
    _tell(
        f"| {point.users:,} | {point.batch_events:,} | {point.cpu_us:.2f} | {point.worker_us:.2f} "
        f"| {point.store_us:.2f} | {point.events_per_s:,.0f} |"
    )
    return point


def _tell(row: str) -> None:
    print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
