"""`towline plan`: what a load asks for, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from infra.capacity import Capacity, Costs, Limits, Load, plan
from infra.config import load
from infra.errors import InfraError


def show(
    events_per_s: Annotated[float, typer.Option("--events-per-s")],
    users: Annotated[int, typer.Option("--users", help="with a history")],
    items: Annotated[int, typer.Option("--items")],
    queries_per_s: Annotated[float, typer.Option("--queries-per-s", help="recommendations")] = 0.0,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="whose [model] \\[default: ./towline.toml]")
    ] = None,
    trainer_us: Annotated[float, typer.Option("--trainer-us", help="of a core, for an event")] = Costs().trainer_us,
    store_us: Annotated[float, typer.Option("--store-us", help="likewise, in Redis")] = Costs().store_us,
    broker_us: Annotated[float, typer.Option("--broker-us", help="likewise")] = Costs().broker_us,
    kept_events: Annotated[
        float, typer.Option("--kept-events", help="of a user's history, in the mean; at most [model] seen_length")
    ] = 50.0,
    event_bytes: Annotated[int, typer.Option("--event-bytes")] = 100,
    id_bytes: Annotated[int, typer.Option("--id-bytes")] = 12,
    store_gib: Annotated[float, typer.Option("--store-gib", help="of rows in one Redis")] = Limits().store_gib,
    busy: Annotated[float, typer.Option("--busy", help="how busy cores are meant to be")] = Limits().busy,
    flush_ms: Annotated[float, typer.Option("--flush-ms", help="between flushes of a trainer")] = Limits().flush_ms,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Work out what a load asks for: trainers, partitions, Redis processes, shards, memory. Starts and asks nothing.

    Costs of an event are those of this project's benchmark machine and the preset `throughput`; `make bench-e2e` prints
    yours.
    """
    what = Load(events_per_s, users, items, queries_per_s, kept_events, event_bytes, id_bytes)
    costs = Costs(trainer_us, store_us, broker_us)
    limits = Limits(busy=busy, store_gib=store_gib, flush_ms=flush_ms)
    try:
        capacity = plan(load(config).config.model, what, costs, limits)
    except ValueError as error:
        raise InfraError(str(error)) from None
    if as_json:
        sys.stdout.write(json.dumps(asdict(capacity)) + "\n")
        return
    out = Console()
    out.print(_table(capacity, what, limits))
    for warning in capacity.warnings:
        out.print(f"! {warning}", highlight=False, markup=False, soft_wrap=True)


def _table(capacity: Capacity, what: Load, limits: Limits) -> Table:
    table = Table(
        "", "", "because", title=f"{what.events_per_s:,.0f} events/s, {what.users:,} users, {what.items:,} items"
    )
    busy, memory = f"cores {limits.busy:.0%} busy", ", ".join(f"{t.name} {t.gib:,.1f}" for t in capacity.tables)
    calls = f"{capacity.trainer_shard_share:.0%} of one for calling shards"
    lines = {
        "trainers": (f"{capacity.trainers:,}", f"{busy}, {calls}"),
        "partitions": (f"{capacity.partitions:,}", "two for each trainer, a power of two"),
        "Redis masters": (f"{capacity.masters:,}", f"{capacity.masters_for}; GiB: {memory}"),
        "Redis processes": (f"{capacity.redis_processes:,}", f"{limits.replicas} replica of each"),
        "model.shards": (f"{capacity.shards:,}", "of each table; fixed once the tables exist"),
        "trainers ↔ store": (f"{capacity.store_mbit_per_s:,.0f} Mbit/s", "if no key came twice in a micro-batch"),
        "broker cores": (f"{capacity.broker_cores:,.1f}", f"{limits.broker_copies} copies, {busy}"),
        "topic": (f"{capacity.topic_gib:,.0f} GiB", f"{limits.retention_hours:.0f} h, {limits.broker_copies} copies"),
        "mirror": (f"{capacity.serving_gib:,.1f} GiB", "item rows on each host that serves"),
        "serving cores": (
            f"{capacity.serving_cores:,.1f}",
            f"{what.queries_per_s:,.0f} queries/s; a scan takes {capacity.scan_ms:,.2f} ms",
        ),
    }
    for name, (count, because) in lines.items():
        table.add_row(name, count, because)
    return table
