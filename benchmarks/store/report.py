"""The figures for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

LIMITS = {
    "lookup_apply_over_floor": "≤ 2",
    "stock_over_module_server_cpu": "≥ 12",
    "bytes_over_payload": "≤ 1.45",
    "adagrad_bytes_over_payload": "≤ 1.25",
    "growth_worst_call_ms": "≤ 5",
    "wire_bytes_over_tfra": "≤ .4",
    "lost": "0",
}


def tables_of(figures: dict[str, Any]) -> Iterator[Table]:
    """Calls, writers, and what has a limit."""
    yield _calls(figures)
    yield _writers(figures)
    table = Table("figure", "measured", "limit")
    for name, limit in LIMITS.items():
        table.add_row(name, str(figures[name]), limit)
    yield table


def _calls(figures: dict[str, Any]) -> Table:
    table = Table(title="one call each, median µs")
    for column in ("", "lookup", "apply", "both", "over the floor", "server CPU, ns a row"):
        table.add_column(column, justify="right" if column else "left")
    floors = {"floor": figures["floor"], "floor on huge pages": figures["floor_on_huge_pages"]}
    sides = {**floors, **figures["optimizers"], "stock MGET, MSET": figures["stock"]}
    for name, cost in sides.items():
        over = round(cost["both_us"] / figures["floor"]["both_us"], 2)
        words = (cost["lookup_us"], cost["apply_us"], cost["both_us"], over, cost["server_cpu_ns_per_row"])
        table.add_row(name, *map(str, words))
    return table


def _writers(figures: dict[str, Any]) -> Table:
    table = Table(title="the store's own client")
    columns = (
        "backend",
        "optimizer",
        "writers",
        "rows/s",
        "plain rows/s",
        "over plain",
        "lookup ms",
        "apply ms",
        "lost",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for backend, of in figures["writers"].items():
        for name, f in of.items():
            for count in ("one", "two"):
                w = f[count]
                table.add_row(
                    backend, name, count, f"{w['rows_per_s']:,}", f"{w['plain_rows_per_s']:,}", str(w["over_plain"]),
                    str(w["lookup_ms"]), str(w["apply_ms"]), str(f["lost"]),
                )  # fmt: skip
    return table
