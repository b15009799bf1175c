"""How much of everything a load asks for, with the module: processes, memory, network. Arithmetic; nothing is started.

    processes of a kind = ⌈rate · seconds of a core that one costs / `busy`⌉, and at least what its memory asks for

Costs are of one core of the machine in docs/BENCHMARKS.md. Yours: `make bench-e2e` and `make bench-serving` print
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from embedding_store.model import ModelSettings
from embedding_store.spec import TableSpec

GIB = 1 << 30
_USED_FEATURES = 6  # values in a record, where features are declared
_HEADER = 64
_AROUND_EMBEDDING = 50  # index, change feed, ends of chunks, an id of 12 bytes; measured 46 to 54
_AROUND_SEQUENCE = 125  # header included
_ENTRY = 37  # 32 bytes, and what a list that grows holds ready
_AROUND_RECORD, _RECORD_GROWTH = 110, 1.6
_MIRROR_BYTES = 200
_SIDE_BYTES = 90
CLUSTER_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Load:
    """What comes in."""

    events_per_s: float
    users: int
    items: int
    queries_per_s: float = 0.0  # recommendations
    kept_events: float = 50.0  # of a user, in the mean; at most `seen_length`
    event_bytes: int = 100
    id_bytes: int = 12


@dataclass(frozen=True, slots=True)
class Costs:
    """µs of one core; the first three for each event, by `make bench-e2e` with preset `throughput` and histories."""

    trainer_us: float = 5.1
    store_us: float = 1.8
    broker_us: float = 0.4
    shard_call_us: float = 200.0  # of a trainer's core, for one shard's part of a micro-batch (`make bench-store`)
    scan_ns_per_item: float = 12.0  # of a serving core, for each item of 64 dimensions and query (`make bench-serving`)
    query_us: float = 1000.0  # of a serving core, for what is not the scan: most of it reads the user


@dataclass(frozen=True, slots=True)
class Limits:
    """What a machine is meant to bear."""

    busy: float = 0.5  # of a core, in the mean: the rest is for peaks, catching up and other work
    store_gib: float = 24.0  # of rows in one Redis process: a save may double what is written meanwhile
    replicas: int = 1  # of each Redis process
    retention_hours: float = 72.0
    flush_ms: float = 50.0  # between two of one trainer
    broker_copies: int = 3


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the model."""

    name: str
    rows: int
    row_bytes: float

    @property
    def gib(self) -> float:
        """All rows of one copy."""
        return self.rows * self.row_bytes / GIB


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the load asks for."""

    tables: tuple[Table, ...]
    store_gib: float  # of one copy
    masters: int
    masters_for: str  # "memory" or "processor"
    redis_processes: int  # replicas included
    shards: int  # per table
    trainers: int
    trainer_shard_share: float  # of a trainer's core, spent on calling shards one by one
    partitions: int
    broker_cores: float
    topic_gib: float  # all copies
    serving_gib: float  # of a host's mirror
    serving_cores: float
    scan_ms: float  # of one query, on one core
    store_mbit_per_s: float  # between trainers and store
    warnings: tuple[str, ...]


def plan(model: ModelSettings, load: Load, costs: Costs, limits: Limits) -> Capacity:
    """Pure. Raises ValueError where a figure is not positive, naming it."""
    _check(load, costs, limits)
    tables = tuple(_tables(model, load))
    gib = sum(table.gib for table in tables)
    by_memory = math.ceil(gib / limits.store_gib)
    by_processor = math.ceil(load.events_per_s * costs.store_us * 1e-6 / limits.busy)
    masters = max(1, by_memory, by_processor)
    shards = 1 << (2 * masters - 1).bit_length() if masters > 1 else model.shards
    named = sum(table.name != "dense" for table in tables)
    per_flush = shards * named * costs.shard_call_us * 1e-6
    share = per_flush / (limits.flush_ms * 1e-3)
    warnings = []
    if share >= limits.busy:
        at_least = per_flush / (limits.busy / 2) * 1e3
        warnings.append(
            f"a trainer that flushes every {limits.flush_ms:.0f} ms spends {share:.0%} of a core on calling {named} × "
            f"{shards} shards: flush every {at_least:.0f} ms, or use fewer and larger Redis processes"
        )
        share = limits.busy / 2
    trainers = max(1, math.ceil(load.events_per_s * costs.trainer_us * 1e-6 / (limits.busy - share)))
    if shards > CLUSTER_SLOTS:
        warnings.append(f"{shards} shards are more than the {CLUSTER_SLOTS} slots of a Redis Cluster")
    mirror = load.items * (_mirror_row(model) + 3.5 * load.id_bytes) / GIB  # an id in the writer, 1.25 in each side
    scan_ms = load.items * costs.scan_ns_per_item * 1e-6 * model.output_dim / 64
    if load.queries_per_s and scan_ms > 40:
        warnings.append(
            f"an exact scan of {load.items:,} items takes {scan_ms:,.0f} ms of a core a query: serve candidates of "
            "a first stage through /v1/score, or split the catalogue among services and merge their answers"
        )
    serving = load.queries_per_s * (costs.query_us * 1e-6 + scan_ms * 1e-3) / limits.busy
    return Capacity(
        tables=tables,
        store_gib=gib,
        masters=masters,
        masters_for="memory" if by_memory >= by_processor else "processor",
        redis_processes=masters * (1 + limits.replicas),
        shards=shards,
        trainers=trainers,
        trainer_shard_share=share,
        partitions=1 << (2 * trainers - 1).bit_length(),
        broker_cores=load.events_per_s * costs.broker_us * 1e-6 * limits.broker_copies / limits.busy,
        topic_gib=load.events_per_s * load.event_bytes * limits.retention_hours * 3600 * limits.broker_copies / GIB,
        serving_gib=mirror,
        serving_cores=serving,
        scan_ms=scan_ms,
        store_mbit_per_s=load.events_per_s * _wire_bytes(model, load.kept_events) * 8e-6,
        warnings=tuple(warnings),
    )


def row_bytes(spec: TableSpec, *, id_bytes: int = 12, entries: float = 0) -> float:
    """Of one row in a server with the module, its share of index and feed included; within a fifth of what is measured.

    entries: of a full sequence, or bytes of a record's value.
    """
    more = max(0, id_bytes - 12)
    if spec.kind == "sequence":
        return _AROUND_SEQUENCE + _ENTRY * entries + more
    if spec.kind == "record":
        return _AROUND_RECORD + _RECORD_GROWTH * entries + more
    return _HEADER + 4.0 * (spec.dim + spec.state_dim) + _AROUND_EMBEDDING + more


def _tables(model: ModelSettings, load: Load) -> list[Table]:
    found = []
    for name, spec in model.tables().items():
        if spec.kind == "dense" or name == "feature":
            continue  # small beside the others
        rows = load.users if name in ("history", "user", "user_features") else load.items
        if spec.max_rows is not None:
            rows = min(rows, spec.max_rows)
        entries: float = 12 * _USED_FEATURES
        if spec.kind == "sequence":
            entries = min(load.kept_events, spec.length) if name == "history" else spec.length
        size = row_bytes(spec, id_bytes=load.id_bytes, entries=entries)
        found.append(Table(name, rows, size))
    return found


def _mirror_row(model: ModelSettings) -> float:
    """Of the writer and both sides; see ARCHITECTURE.md, serving."""
    outputs = 8 * model.output_dim if model.dense_layers else 0
    return 8 * model.dim + _MIRROR_BYTES + 2 * (4 * model.dim + _SIDE_BYTES) + outputs


def _wire_bytes(model: ModelSettings, kept_events: float) -> float:
    """Of an event, both ways, where no key comes twice in a micro-batch: an upper bound."""
    rows = 2 if model.user_id_vector else 1
    state = model.tables()["item"].state_dim
    return rows * (2 * 4 * model.dim + 4 * state + 200) + 32 * min(kept_events, model.seen_length) + 250


def _check(load: Load, costs: Costs, limits: Limits) -> None:
    positive = {
        "events_per_s": load.events_per_s, "users": load.users, "items": load.items, "event_bytes": load.event_bytes,
        "kept_events": load.kept_events,
        "trainer_us": costs.trainer_us, "store_us": costs.store_us, "broker_us": costs.broker_us,
        "store_gib": limits.store_gib, "flush_ms": limits.flush_ms,
    }  # fmt: skip
    for name, value in positive.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}: it must be above 0")
    if not 0 < limits.busy <= 1:
        raise ValueError(f"busy is {limits.busy}: a share of a core above 0 and at most 1")
    if not (math.isfinite(load.queries_per_s) and load.queries_per_s >= 0):
        raise ValueError(f"queries_per_s is {load.queries_per_s}: it must be 0 or more")
