"""Short ways to make flushes and to compare stores, for every test of a store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedding_store.contract import ENTRY, ORDER, EmbeddingStore, Flush, OwnEvents, Range, ShardReply, Source
from embedding_store.spec import TableSpec
from native.ragged import Ragged

SOURCE = Source("clicks", 0)


def begin(store: EmbeddingStore, spec: TableSpec, *sources: Source) -> TableSpec:
    """Create the table and set the offsets of its sources to 0."""
    store.create(spec)
    for source in sources or (SOURCE,):
        for shard in range(spec.shards):
            store.seek(spec.name, shard, source, None, 0, "first start")
    return spec


def flush_of(
    keys: Sequence[int],
    start: int,
    stop: int,
    *,
    gradients: object = None,
    counts: object = None,
    positives: object = None,
    appends: Sequence[tuple[int, int, int, int, int, float]] | None = None,
    values: Sequence[tuple[int, int, int, int, bytes]] | None = None,
    own: Sequence[tuple[int, int, int, int]] | None = None,
    forget: Sequence[int] = (),
    forget_orders: Sequence[tuple[int, int, int]] | None = None,
    forget_checks: Sequence[int] | None = None,
    identities: Sequence[tuple[int, bytes]] | None = None,
    source: Source = SOURCE,
    ranges: tuple[Range, ...] | None = None,
    events: int | None = None,
    generation: int = 0,
    now_ms: int = 1_700_000_000_000,
    event_time_ms: int = 0,
) -> Flush:
    """A flush of one event per offset. appends: (index into keys, time_ms, place, item, partition, weight).

    values: (index into keys, time_ms, place, partition, value). own: (index into keys, time_ms, place, partition) of
    each own event, all of them positive. forget_orders: (time_ms, place, partition). identities: (check bits, id) of
    each key, if not those that go with small integers here.
    """
    n = len(keys)
    if own is not None:
        counts = np.bincount([o[0] for o in own], minlength=n)
    count = np.zeros(n, np.int64) if counts is None else np.asarray(counts, np.int64)
    entries = None if appends is None else np.array([a[1:] for a in appends], ENTRY)
    rows = None if appends is None else np.array([a[0] for a in appends], np.int64)
    return Flush(
        generation=generation,
        ranges=(Range(source, start, stop),) if ranges is None else ranges,
        events=stop - start if events is None else events,
        event_time_ms=event_time_ms,
        produced_ms=event_time_ms,
        now_ms=now_ms,
        keys=np.array(keys, np.uint64),
        counts=count,
        positives=count.astype(np.float32) if positives is None else np.asarray(positives, np.float32),
        checks=np.array([k % 97 for k in keys] if identities is None else [c for c, _ in identities], np.uint32),
        ids=Ragged.of(
            [str(k).encode() if c else b"" for k, c in zip(keys, count, strict=True)]
            if identities is None
            else [i for _, i in identities]
        ),
        gradients=None if gradients is None else np.asarray(gradients, np.float32),
        appends=entries,
        append_rows=rows,
        values=None if values is None else Ragged.of([v[4] for v in values]),
        value_orders=None if values is None else np.array([v[1:4] for v in values], ORDER),
        value_rows=None if values is None else np.array([v[0] for v in values], np.int64),
        own_events=None
        if own is None
        else OwnEvents(
            np.array([o[0] for o in own], np.int64),
            np.array([o[1:] for o in own], ORDER),
            np.ones(len(own), np.float32),
        ),
        forget=np.array(forget, np.uint64),
        forget_orders=None if forget_orders is None else np.array(forget_orders, ORDER),
        forget_checks=None if forget_checks is None else np.array(forget_checks, np.uint32),
    )


def outcomes(replies: Sequence[ShardReply]) -> set[str]:
    return {reply.outcome for reply in replies}


def contents(store: EmbeddingStore, table: str) -> dict[int, bytes]:
    """key → every stored byte of its row, as the public calls show it."""
    spec = store.spec(table)
    keys = np.sort(store.changes(table, None).keys)
    if spec.kind == "sequence":
        h = store.histories(table, keys)
        headers = store.changes(table, None)
        place = np.argsort(headers.keys)
        stats = _columns(headers.rows, place)
        return {int(key): stats[i] + h.entries[h.offsets[i] : h.offsets[i + 1]].tobytes() for i, key in enumerate(keys)}
    if spec.kind == "record":
        v = store.values(table, keys)
        headers = store.changes(table, None)
        stats = _columns(headers.rows, np.argsort(headers.keys))
        return {int(key): stats[i] + v.orders[i].tobytes() + v.values.at(i) for i, key in enumerate(keys)}
    rows = store.lookup(table, keys, with_state=True)
    assert rows.state is not None
    stats = _columns(rows, np.arange(len(keys)))
    return {int(key): stats[i] + rows.vectors[i].tobytes() + rows.state[i].tobytes() for i, key in enumerate(keys)}


def whole_state(store: EmbeddingStore, table: str) -> tuple[object, ...]:
    """Everything that a refused call must leave as it was."""
    return contents(store, table), store.status(table), store.changes(table, None).cursor


def _columns(rows: object, place: np.ndarray) -> list[bytes]:
    names = ("clock", "count", "updated_ms", "last_seen", "gap", "popularity", "check")
    columns = [getattr(rows, name)[place] for name in names]
    ids = rows.ids.take(place)
    return [b"".join(column[i].tobytes() for column in columns) + ids.at(i) + b"|" for i in range(len(place))]
