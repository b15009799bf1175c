"""Versions of the dense parameters: kept every so often, listed, and gone back to.

A version is what the `dense` table held at one moment, all of it. The table has one shard by declaration, so that a
synchronization is one atomic call; whoever reads it in several goes through `read_dense`. The newest KEPT versions lie
in the record table `dense_version`, which has one shard too: version n in slot n mod KEPT, written whole by one call
that carries the range [n − 1, n) of a source of its own. Of several workers that keep a version at once, one does.

Going back is safe against deltas in flight. 1. The store's generation rises: calls made before are refused, and their
workers start over. 2. The difference to the version is added. 3. The generation rises again, against workers that read
the table between 1 and 2. This is repeated until, right after a rise, the table holds the version bit for bit: so what
a delta brought in between is taken back too, and what rounding left. A rollback that dies on the way leaves the table
as it was, or rolled back; events, counts and sequences are not touched.
"""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec
import numpy as np

from embedding_store.contract import F32, ORDER, U64, EmbeddingStore, Flush, Range, ShardStatus, Source
from embedding_store.errors import BadRequest, SeekConflict, StoreUnavailable
from embedding_store.spec import TableSpec
from native.ragged import Ragged

KEPT = 16
"""Versions that can be gone back to."""

VERSIONS = TableSpec(name="dense_version", kind="record", length=4096, shards=1)
_NUMBERS = Source("dense-versions", 0)
_ROLLBACKS = Source("dense-rollbacks", 0)
_FLOATS = VERSIONS.length // 4
_STEADY_TRIES = 100
_ROLLBACK_TRIES = 20


class Version(msgspec.Struct, frozen=True):
    """A kept version."""

    number: int  # 1, 2, 3, … over the life of the store
    clock: int  # usable events that the dense table had synchronized
    kept_ms: int  # wall clock
    event_time_ms: int  # newest event time synchronized
    shape: tuple[int, int]  # (rows, dim) of the table


def read_dense(store: EmbeddingStore, keys: U64) -> tuple[ShardStatus, F32]:
    """(status, (rows, dim)) of the dense table as of one moment, never half of one version and half of another.

    Clock and offsets move with every change of the table, and with its rows: where they are the same before and after
    the rows were read, nothing came between. Raises StoreUnavailable if something does a hundred times in a row.
    """
    before = store.status("dense")
    for _ in range(_STEADY_TRIES):
        rows = store.lookup("dense", keys, with_ids=False).vectors
        after = store.status("dense")
        if len({(s.generation, s.clock, tuple(sorted(s.offsets.items()))) for s in (*before, *after)}) == 1:
            return after[0], rows
        before = after
    raise StoreUnavailable("the dense table moves faster than it can be read; raise dense_sync_every")


class DenseVersions:
    """The kept versions of a model's dense table. Made once the table exists."""

    def __init__(self, store: EmbeddingStore, keys: U64) -> None:
        """keys (rows,): those of the dense table. Raises SpecConflict, StoreUnavailable."""
        self._store, self._keys = store, keys
        store.create(VERSIONS)

    def newest_ms(self) -> int:
        """When the newest version was kept; 0: there is none."""
        return self._store.status(VERSIONS.name)[0].produced_ms

    def keep(self, generation: int) -> Version | None:
        """Keep the table as it is now; None if another has kept one just then. Raises GenerationError."""
        status, rows = read_dense(self._store, self._keys)
        at = self._number(VERSIONS.name, _NUMBERS)
        now_ms = time.time_ns() // 1_000_000
        shape = (int(rows.shape[0]), int(rows.shape[1]))
        version = Version(at + 1, status.clock, now_ms, status.event_time_ms, shape)
        data = rows.astype("<f4").tobytes()
        size = 4 * _FLOATS
        values = [msgspec.json.encode(version), *(data[lo : lo + size] for lo in range(0, len(data), size))]
        n = len(values)
        orders = np.zeros(n, ORDER)
        orders["time_ms"] = version.number
        taken = (Range(_NUMBERS, at, at + 1),)
        flush = flush_without_events(generation, taken, _slot(version.number, n), now_ms, times=(0, now_ms))
        flush = replace(flush, values=Ragged.of(values), value_orders=orders, value_rows=np.arange(n))
        reply = self._store.apply(VERSIONS.name, flush)[0]
        return version if reply.outcome == "applied" else None

    def kept(self) -> list[Version]:
        """What can be gone back to, the newest first. Raises StoreUnavailable."""
        heads = self._store.values(VERSIONS.name, np.arange(KEPT, dtype=np.uint64) << np.uint64(32)).values
        versions = [msgspec.json.decode(head, type=Version) for head in heads.tolist() if head]
        return sorted(versions, key=lambda v: -v.number)

    def rows(self, number: int) -> F32:
        """(rows, dim) of a kept version. Raises BadRequest if it isn't kept, or is of a model with other layers."""
        version = next((v for v in self.kept() if v.number == number), None)
        if version is None:
            have = ", ".join(str(v.number) for v in self.kept()) or "none"
            raise BadRequest(f"version {number} of the dense parameters is not kept; there are: {have}")
        dim = self._store.spec("dense").dim
        if version.shape != (len(self._keys), dim):
            raise BadRequest(
                f"version {number} has {version.shape} dense values, the model {(len(self._keys), dim)}: its "
                "dense_layers, history_length, clocks, successors or learned_gates were others"
            )
        n = 1 - (-version.shape[0] * dim // _FLOATS)
        parts = self._store.values(VERSIONS.name, _slot(number, n))
        if set(parts.orders["time_ms"].tolist()) != {number}:
            raise BadRequest(f"version {number} of the dense parameters has just been replaced by a newer one")
        data = b"".join(parts.values.tolist()[1:])
        return np.frombuffer(data, "<f4").reshape(version.shape).astype(np.float32)

    def roll_back(self, number: int) -> None:
        """Make the dense table what it was. Raises BadRequest, and StoreUnavailable if workers never let it come by."""
        target = self.rows(number)
        for _ in range(_ROLLBACK_TRIES):
            generation = self._store.raise_generation()
            status, rows = read_dense(self._store, self._keys)
            if (rows == target).all() and status.generation == generation:
                return
            at = self._number("dense", _ROLLBACKS)
            now_ms = time.time_ns() // 1_000_000
            taken = (Range(_ROLLBACKS, at, at + 1),)
            flush = flush_without_events(generation, taken, self._keys, now_ms, gradients=target - rows)
            self._store.apply("dense", flush)
            # then once more from the top: fences those who read meanwhile, and adds what rounding or a delta left
        raise StoreUnavailable(
            f"the dense table was changed between reading and writing {_ROLLBACK_TRIES} times: stop the trainers, or "
            "raise dense_sync_every"
        )

    def _number(self, table: str, source: Source) -> int:
        """The source's offset, set to 0 the first time."""
        at = self._store.status(table)[0].offsets.get(source)
        if at is not None:
            return at
        try:
            self._store.seek(table, 0, source, None, 0, "first start")
        except SeekConflict:  # another did
            return self._number(table, source)
        return 0


def _slot(number: int, n: int) -> U64:
    """(n,) keys of a version's record and its parts."""
    return (np.uint64(number % KEPT) << np.uint64(32)) + np.arange(n, dtype=np.uint64)


def flush_without_events(
    generation: int,
    ranges: tuple[Range, ...],
    keys: U64,
    now_ms: int,
    *,
    gradients: F32 | None = None,
    events: int = 0,
    times: tuple[int, int] = (0, 0),
) -> Flush:
    """A call whose keys have no own events: for parameters, which are nobody's.

    keys (n,), gradients (n, dim); events: usable ones in the ranges; times: newest event time and record timestamp.
    """
    n = len(keys)
    return Flush(
        generation=generation,
        ranges=ranges,
        events=events,
        event_time_ms=times[0],
        produced_ms=times[1],
        now_ms=now_ms,
        keys=keys,
        counts=np.zeros(n, np.int64),
        positives=np.zeros(n, np.float32),
        checks=np.zeros(n, np.uint32),
        ids=Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8)),
        gradients=gradients,
    )
