"""Pictures of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.scale.rows import Point
from benchmarks.scale.trainers import Cell


def draw(rows: Sequence[Point], batches: Sequence[Point], cells: Sequence[Cell], path: Path) -> None:
    """One PNG with a panel for each."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    by_rows, by_batch, by_cell = figure.subplots(1, 3)
    for axes, points, of, label in (
        (by_rows, rows, "users", "rows of the user and of the history table"),
        (by_batch, batches, "batch_events", "events of a micro-batch"),
    ):
        x = [getattr(p, of) for p in points]
        axes.plot(x, [p.cpu_us for p in points], marker="o", label="worker and store")
        axes.plot(x, [p.worker_us for p in points], marker="o", label="worker")
        axes.plot(x, [p.store_us for p in points], marker="o", label="store")
        axes.set(xscale="log", xlabel=label, ylabel="µs of processor time an event", ylim=(0, None))
        axes.legend()
    names = [f"{c.partitions} / {c.trainers}" for c in cells]
    by_cell.bar(names, [c.cpu_us for c in cells])
    by_cell.set(xlabel="partitions / trainers", ylabel="µs of processor time an event, broker included")
    for axes in (by_rows, by_batch, by_cell):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
