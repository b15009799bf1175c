"""The store for one's own training loop: ids and gradients in, rows out, no stream needed.

A call of `EmbeddingStore.apply` is told from its repeat by the offsets it carries. A loop without a stream has none, so
the client numbers its calls: per table it is a source of its own, and its call n is the range [n, n + 1).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from embedding_store.contract import I64, U32, U64, EmbeddingStore, Flush, Outcome, Range, Rows, Source
from embedding_store.errors import (
    BadRequest,
    CallOutOfTurn,
    GenerationError,
    SpecError,
    StoreUnavailable,
    UnknownTable,
)
from embedding_store.spec import TableSpec
from native.aggregate import aggregate
from native.hashing import keys_and_checks
from native.identity import canonical
from native.ragged import Ragged

Ids = Sequence[str | int] | npt.NDArray[np.integer | np.str_]

PATIENCE_S = 60.0
"""How long a call is repeated while the store is away."""

REFUSALS = (BadRequest, UnknownTable, SpecError, GenerationError)
"""After these a call's number is free. After anything else, an interrupt too, some shards may have the call."""


class TrainingClient:
    """One training loop's hold on the store. Not thread-safe; any number of clients may write to the same tables.

    Exactly once: each (client id, table, call number) is applied once by every shard, however often it is sent. A call
    the store did not answer is sent again, unchanged, until every shard has it; until then no other is taken.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        client: str,
        tables: Iterable[TableSpec],
        *,
        replays: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Create the tables, or check that they are declared so; take up the numbering where this client left it.

        client: a name that no other running loop uses. A loop that died inside `apply` leaves shards that have its last
        call and shards that have not. replays False: they are moved past it, which their status counts as skipped.
        replays True: `next_call` names it, and the loop makes the same call again.
        """
        if not client:
            raise BadRequest("a training client needs a name: its calls are numbered under it")
        self._store = store
        self._source = Source(f"client:{client}", 0)
        self._patience_s = patience_s
        self._next: dict[str, int] = {}
        self._newest: dict[str, int] = {}  # calls below it were made before this client: shards may have them
        self._unfinished: dict[str, Flush] = {}
        self._generation = store.generation()
        for spec in tables:
            store.create(spec)
            self._next[spec.name] = self._take_up(spec, replays=replays)

    def next_call(self, table: str) -> int:
        """Number of the first call that not every shard of the table has applied; calls are numbered 0, 1, 2, …"""
        if table not in self._next:
            raise BadRequest(f"this client was not given table '{table}', only {', '.join(self._next) or 'none'}")
        return self._next[table]

    def lookup(self, table: str, ids: Ids) -> Rows:
        """Rows in the order of `ids`, repeats allowed; a new id's is its initial vector. Pure."""
        return self._store.lookup(table, keys_of(ids)[0])

    def apply(
        self,
        table: str,
        ids: Ids,
        gradients: npt.ArrayLike,
        *,
        events: int | None = None,
        own: bool = True,
        call: int | None = None,
    ) -> Outcome:
        """Send the gradients (n, dim) of the loss with respect to the rows of `ids` (n,); repeats are summed.

        events: training examples of the call, what the table's clock advances by; default n. own: each of `ids` is an
        event of that id, which counts for admission, eviction and popularity; False for gradients alone, of negatives
        for instance. call: the number of a call that is repeated; default `next_call`.

        `applied`, or `duplicate` if every shard had the call. While the store is away the call is sent again and again,
        for `patience_s` seconds; then StoreUnavailable: call `finish`, as after any interrupt. Raises CallOutOfTurn,
        GenerationError (make a new client after both) and the errors of `EmbeddingStore.apply`, which changed nothing.
        """
        expected = self.next_call(table)
        unfinished = self._unfinished.get(table)
        if unfinished is not None:
            if call == expected:
                return self._send(table, unfinished)
            raise CallOutOfTurn(
                f"call {expected} of table '{table}' was sent and not answered: finish('{table}') sends it again"
            )
        if call is not None and not 0 <= call <= expected:
            raise CallOutOfTurn(
                f"table '{table}' waits for call {expected} of {self._source.topic_id}, got call {call}"
            )
        number = expected if call is None else call
        flush = self._flush(table, ids, gradients, events, own=own, call=number)
        return self._send(table, flush, first_time=call is None)

    def finish(self, table: str) -> Outcome | None:
        """Send again the call that was not answered or was interrupted, unchanged; None if there is none."""
        unfinished = self._unfinished.get(table)
        return None if unfinished is None else self._send(table, unfinished)

    def _flush(
        self, table: str, ids: Ids, gradients: npt.ArrayLike, events: int | None, *, own: bool, call: int
    ) -> Flush:
        keys, checks, names = keys_of(ids)
        spec = self._store.spec(table)
        try:
            with np.errstate(over="ignore"):  # what overflows is infinite, and refused as such
                given = np.asarray(gradients, np.float32)
        except (ValueError, TypeError) as e:
            raise BadRequest(f"gradients of table '{table}' must be numbers, ({len(keys)}, {spec.dim}): {e}") from e
        if given.shape != (len(keys), spec.dim):
            raise BadRequest(
                f"table '{table}' holds {spec.dim}-d rows: gradients of {len(keys)} ids must be "
                f"({len(keys)}, {spec.dim}), got {given.shape}"
            )
        distinct, sums = aggregate(keys, given)
        first, counts = _first_and_counts(keys, distinct)
        now_ms = time.time_ns() // 1_000_000
        return Flush(
            generation=self._generation,
            ranges=(Range(self._source, call, call + 1),),
            events=len(keys) if events is None else events,
            event_time_ms=now_ms,
            produced_ms=now_ms,
            now_ms=now_ms,
            keys=distinct,
            counts=counts if own else np.zeros_like(counts),
            positives=counts.astype(np.float32) if own else np.zeros(len(counts), np.float32),
            checks=checks[first],
            ids=names.take(first) if own else Ragged(np.zeros(len(first) + 1, np.int64), np.zeros(0, np.uint8)),
            gradients=sums,
        )

    def _send(self, table: str, flush: Flush, *, first_time: bool = False) -> Outcome:
        deadline = time.monotonic() + self._patience_s
        pause_s = 0.05
        self._unfinished[table] = flush
        while True:
            try:
                replies = self._store.apply(table, flush)
            except StoreUnavailable:
                if time.monotonic() + pause_s > deadline:
                    raise
                first_time = False
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 (spreads retries, hides nothing)
                pause_s = min(2 * pause_s, 2.0)
                continue
            except REFUSALS:
                del self._unfinished[table]
                raise
            break
        del self._unfinished[table]
        outcomes = {reply.outcome for reply in replies}
        start, stop = flush.ranges[0].start, flush.ranges[0].stop
        repeated = not first_time or start < self._newest[table]
        if "conflict" in outcomes or ("duplicate" in outcomes and not repeated):
            stored = [reply.offsets.get(self._source) for reply in replies]
            raise CallOutOfTurn(
                f"call {start} of {self._source.topic_id} does not follow what table '{table}' has (next call of each "
                f"shard: {stored}): another loop uses the same name, or the store went back; make a new TrainingClient"
            )
        self._next[table] = max(self._next[table], stop)
        return "applied" if "applied" in outcomes else "duplicate"

    def _take_up(self, spec: TableSpec, *, replays: bool) -> int:
        at = [status.offsets.get(self._source) for status in self._store.status(spec.name)]
        newest = self._newest[spec.name] = max((a for a in at if a is not None), default=0)
        for shard, a in enumerate(at):
            if a is None or (a < newest and not replays):
                to = 0 if a is None and replays else newest
                reason = "a client's first call" if a is None else "a call of a client that died"
                self._store.seek(spec.name, shard, self._source, a, to, reason)
                at[shard] = to
        return min(a for a in at if a is not None)


def keys_of(ids: Ids) -> tuple[U64, U32, Ragged]:
    """(keys (n,), check bits (n,), the ids as they are stored) of strings and integers. Raises BadRequest.

    An integer and its decimal string are the same id; see `native.identity`.
    """
    names = _names_of_array(ids) if isinstance(ids, np.ndarray) else _names(ids)
    try:
        keys, checks = keys_and_checks(names)
    except ValueError as e:
        raise BadRequest(str(e)) from e
    return keys, checks, names


def _names_of_array(ids: npt.NDArray[np.integer | np.str_]) -> Ragged:
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise BadRequest(f"ids must be strings or integers in one dimension, got {ids.dtype} {ids.shape}")
    if ids.dtype.kind == "U":
        return _names(ids.tolist())
    # canonical decimal strings of integers, without an object each: 20 bytes hold any of 64 bits
    digits = ids.astype("S20").view(np.uint8).reshape(len(ids), 20)
    written = digits != 0
    offsets = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(np.count_nonzero(written, axis=1), out=offsets[1:])
    return Ragged(offsets, digits[written])


def _names(ids: Sequence[str | int]) -> Ragged:
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise BadRequest(f"ids must be a list or an array of ids, got {ids!r} of type {type(ids).__name__}")
    for i in ids:
        if i == "":
            raise BadRequest("an id must not be empty: leave it out, or give it a name")
        if isinstance(i, bool) or not isinstance(i, str | int | np.integer):
            raise BadRequest(f"ids must be strings or integers, got {i!r} of type {type(i).__name__}")
    try:
        return Ragged.of(map(canonical, ids))
    except UnicodeEncodeError as e:
        raise BadRequest(f"id {e.object!r} is no text that UTF-8 can write: {e.reason}") from e


def _first_and_counts(keys: U64, distinct: U64) -> tuple[I64, I64]:
    """Where each distinct key, by first appearance, comes first, and how often it comes."""
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    if len(order) != len(distinct):
        raise AssertionError("two ways to find distinct keys disagree")
    return first[order], counts[order].astype(np.int64)
