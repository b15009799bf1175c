"""The door: what a call's arguments must be. Pure. Behind it kernels run without bounds checks.

Every refusal is a BadRequest that names the table, the value and the remedy. Returned columns are C-contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar, get_args

import numpy as np
import numpy.typing as npt

from embedding_store.contract import (
    ENTRY,
    F32,
    I64,
    ORDER,
    U32,
    U64,
    Cursor,
    Flush,
    Mode,
    Orders,
    OwnEvents,
    Range,
    Source,
)
from embedding_store.errors import BadRequest
from embedding_store.spec import TableSpec
from native.bounds import within
from native.identity import MAX_ID_BYTES
from native.key_index import unique
from native.ragged import Ragged

MAX_KEYS = 1_000_000
"""Keys per call: a call must fit the memory and the reply time of one server thread. Larger batches: several calls."""

MAX_NOW_MS = 2**53

MAX_POSITIVES = 1e15
"""Largest weighted sum of a key's positives: decayed sums of them stay finite in float32."""

MAX_GRADIENT = 1e15
"""Largest magnitude of a gradient's element: its square, and sums of squares, stay finite in float32."""

_T = TypeVar("_T", bound=np.generic)


_CALLS = {"embedding": "lookup", "dense": "lookup", "sequence": "histories", "record": "values"}


def checked_keys(spec: TableSpec, keys: U64, call: str) -> U64:
    """Keys of `lookup`, `histories` or `values`, repeats allowed."""
    if _CALLS[spec.kind] != call:
        raise BadRequest(f"table '{spec.name}' is of kind {spec.kind}: read it with {_CALLS[spec.kind]}()")
    keys = _column(spec, "keys", keys, np.uint64)
    _few(spec, "keys", len(keys))
    return keys


def checked_identities(spec: TableSpec, keys: U64, checks: U32, ids: Ragged) -> tuple[U64, U32, Ragged]:
    """Arguments of `taken`, repeats allowed."""
    keys = _column(spec, "keys", keys, np.uint64)
    _few(spec, "keys", len(keys))
    return keys, _column(spec, "checks", checks, np.uint32, len(keys)), _checked_ids(spec, ids, len(keys))


def checked_seek(spec: TableSpec, shard: int, source: Source, new: int, reason: str) -> None:
    """Arguments of `seek`."""
    _whole(spec, "shard", shard)
    _whole(spec, "new offset", new)
    if not 0 <= shard < spec.shards:
        raise BadRequest(f"table '{spec.name}' has shards 0 to {spec.shards - 1}, got {shard}")
    _check_source(spec, source)
    if not 0 <= new < 2**63:
        raise BadRequest(f"seek of {source} in table '{spec.name}' to {new}: offsets lie in [0, 2^63)")
    if not reason:
        raise BadRequest(f"seek of {source} in table '{spec.name}' needs a reason: it is recorded")


def checked_watch(tables: Sequence[str], cursors: Sequence[Cursor]) -> None:
    """Arguments of `wait_for_changes`."""
    if not tables or len(tables) != len(cursors):
        raise BadRequest(
            f"wait_for_changes needs a cursor for each of one or more tables, got {len(cursors)} for {tables}"
        )


def checked_flush(spec: TableSpec, flush: Flush) -> Flush:
    """A flush that fits the table, with contiguous columns."""
    ranges = _checked_ranges(spec, flush.ranges)
    generation, events, event_time_ms, produced_ms, now_ms = (
        _number(spec, name, getattr(flush, name))
        for name in ("generation", "events", "event_time_ms", "produced_ms", "now_ms")
    )
    if now_ms >= MAX_NOW_MS:  # eviction orders rows by it, in float64
        raise BadRequest(
            f"table '{spec.name}': now_ms must be in [0, 2^53), got {now_ms}: milliseconds since the epoch"
        )
    keys = _column(spec, "keys", flush.keys, np.uint64)
    n = len(keys)
    _few(spec, "keys", n)
    _check_unique(spec, keys)
    counts = _column(spec, "counts", flush.counts, np.int64, n)
    if n and not (counts.min() >= 0 and counts.max() <= flush.events):
        raise BadRequest(
            f"table '{spec.name}': counts must lie in [0, events = {flush.events}], "
            f"got {counts.min()} to {counts.max()}; every own event is one of the flush's events"
        )
    positives = _column(spec, "positives", flush.positives, np.float32, n)
    _check_positives(spec, "positives", positives)
    checks = _column(spec, "checks", flush.checks, np.uint32, n)
    ids = _checked_ids(spec, flush.ids, n)
    checked = replace(
        flush,
        ranges=ranges,
        generation=generation,
        events=events,
        event_time_ms=event_time_ms,
        produced_ms=produced_ms,
        now_ms=now_ms,
        keys=keys,
        counts=counts,
        positives=positives,
        checks=checks,
        ids=ids,
    )
    checked = _with_own_events(spec, _with_forgets(spec, checked), n)
    if spec.kind == "record":
        return _with_values(spec, checked, n)
    for name in ("values", "value_orders", "value_rows"):
        if getattr(flush, name) is not None:
            raise BadRequest(f"{spec.kind} table '{spec.name}' holds no values: leave {name} out")
    return _with_appends(spec, checked, n) if spec.kind == "sequence" else _with_gradients(spec, checked, n)


def _with_forgets(spec: TableSpec, flush: Flush) -> Flush:
    forget = _column(spec, "forget", flush.forget, np.uint64)
    f = len(forget)
    _few(spec, "forget", f)
    orders, checks = flush.forget_orders, flush.forget_checks
    return replace(
        flush,
        forget=forget,
        forget_orders=None if orders is None else _orders(spec, "forget_orders", orders, f),
        forget_checks=None if checks is None else _column(spec, "forget_checks", checks, np.uint32, f),
    )


def _with_own_events(spec: TableSpec, flush: Flush, n: int) -> Flush:
    own = flush.own_events
    if own is None:
        return flush
    rows = _rows(spec, "own_events.rows", own.rows, n)
    orders = _orders(spec, "own_events.orders", own.orders, len(rows))
    positives = _column(spec, "own_events.positives", own.positives, np.float32, len(rows))
    _check_positives(spec, "own_events.positives", positives)
    if (np.bincount(rows, minlength=n) != flush.counts).any():
        raise BadRequest(f"table '{spec.name}': own_events must name each own event once, {len(rows)} do for "
                         f"{int(flush.counts.sum())} in counts; or leave them out")  # fmt: skip
    return replace(flush, own_events=OwnEvents(rows, orders, positives))


def _with_values(spec: TableSpec, flush: Flush, n: int) -> Flush:
    for name in ("gradients", "state_deltas", "appends", "append_rows"):
        if getattr(flush, name) is not None:
            raise BadRequest(f"record table '{spec.name}' holds values: leave {name} out")
    if flush.mode != "gradients":
        raise BadRequest(f"record table '{spec.name}' has no vectors: leave mode out")
    given = (flush.values, flush.value_orders, flush.value_rows)
    if all(part is None for part in given):
        return flush
    if flush.values is None or flush.value_orders is None or flush.value_rows is None:
        raise BadRequest(f"table '{spec.name}': values, value_orders and value_rows go together, one is missing")
    rows = _rows(spec, "value_rows", flush.value_rows, n)
    _few(spec, "values", len(rows))
    values = _ragged(spec, "values", flush.values, len(rows))
    if len(rows) and values.lengths.max() > spec.length:
        raise BadRequest(
            f"table '{spec.name}' holds values of at most {spec.length} bytes, got {values.lengths.max()}; "
            "shorten it, or declare a table with a larger length"
        )
    orders = _orders(spec, "value_orders", flush.value_orders, len(rows))
    return replace(flush, values=values, value_orders=orders, value_rows=rows)


def _with_gradients(spec: TableSpec, flush: Flush, n: int) -> Flush:
    if flush.appends is not None or flush.append_rows is not None:
        raise BadRequest(f"{spec.kind} table '{spec.name}' has no sequences: leave appends and append_rows out")
    if flush.mode not in get_args(Mode):
        raise BadRequest(f"table '{spec.name}': mode must be one of {get_args(Mode)}, got {flush.mode!r}")
    if flush.mode == "deltas" and spec.optimizer.kind == "adam":
        raise BadRequest(
            f"table '{spec.name}' has optimizer 'adam': mode deltas is refused, since moments are moving averages and "
            "the changes of two callers don't add up to the change of both; send gradients, or use adagrad or sgd"
        )
    if flush.gradients is None:
        if flush.state_deltas is not None:
            raise BadRequest(f"table '{spec.name}': state_deltas without gradients; changes of vectors go with them")
        return flush
    gradients = np.ascontiguousarray(flush.gradients)
    if gradients.dtype != np.float32 or gradients.shape != (n, spec.dim):
        raise BadRequest(
            f"table '{spec.name}' holds {spec.dim}-d float32 rows: gradients of {n} keys must be float32 "
            f"({n}, {spec.dim}), got {gradients.dtype} {gradients.shape}"
        )
    if not within(gradients, MAX_GRADIENT):
        largest = max(gradients.max(), -gradients.min())  # NaN goes through both
        raise BadRequest(
            f"table '{spec.name}': gradients must be finite and at most {MAX_GRADIENT:g} in magnitude, "
            f"got {largest}; clip them, or quarantine the range and send zeros"
        )
    return replace(flush, gradients=gradients, state_deltas=_checked_state_deltas(spec, flush, n))


def _checked_state_deltas(spec: TableSpec, flush: Flush, n: int) -> F32 | None:
    given = flush.state_deltas
    if flush.mode == "gradients" or not spec.state_dim:
        if given is not None:
            raise BadRequest(
                f"table '{spec.name}' of optimizer '{spec.optimizer.kind}' takes no state_deltas in mode {flush.mode}: "
                "they go with mode deltas and an optimizer that has state"
            )
        return None
    if given is None:
        raise BadRequest(
            f"table '{spec.name}' of optimizer '{spec.optimizer.kind}': mode deltas needs state_deltas, float32 "
            f"({n}, {spec.state_dim}), beside the change of vectors"
        )
    deltas = np.ascontiguousarray(given)
    if deltas.dtype != np.float32 or deltas.shape != (n, spec.state_dim):
        raise BadRequest(
            f"table '{spec.name}' has {spec.state_dim} float32 values of state a row: state_deltas of {n} keys must "
            f"be float32 ({n}, {spec.state_dim}), got {deltas.dtype} {deltas.shape}"
        )
    if n and not (deltas.min() >= 0 and deltas.max() <= MAX_GRADIENT**2):
        raise BadRequest(
            f"table '{spec.name}': state_deltas are sums of squares: finite, not negative and at most "
            f"{MAX_GRADIENT**2:g}, got {deltas.min()} to {deltas.max()}"
        )
    return deltas


def _with_appends(spec: TableSpec, flush: Flush, n: int) -> Flush:
    if flush.gradients is not None or flush.state_deltas is not None or flush.mode != "gradients":
        raise BadRequest(f"sequence table '{spec.name}' has no vectors: leave gradients, state_deltas and mode out")
    if (flush.appends is None) != (flush.append_rows is None):
        raise BadRequest(f"table '{spec.name}': appends and append_rows go together, one of them is missing")
    if flush.appends is None or flush.append_rows is None:
        return flush
    appends = _column(spec, "appends", flush.appends, ENTRY)
    rows = _rows(spec, "append_rows", flush.append_rows, n)
    if len(rows) != len(appends):
        raise BadRequest(f"table '{spec.name}': append_rows must have {len(appends)} elements, got {len(rows)}")
    _few(spec, "appends", len(appends))
    if not np.isfinite(appends["weight"]).all():
        raise BadRequest(f"table '{spec.name}': weights of appends must be finite")
    return replace(flush, appends=appends, append_rows=rows)


def _checked_ranges(spec: TableSpec, ranges: Sequence[Range]) -> tuple[Range, ...]:
    if not ranges:
        raise BadRequest(
            f"table '{spec.name}': a flush without ranges can't be told from its repeat; carry its sources"
        )
    checked = []
    for r in ranges:
        _check_source(spec, r.source)
        start = _whole(spec, f"start of {r.source}", r.start)
        stop = _whole(spec, f"stop of {r.source}", r.stop)
        if not 0 <= start < stop < 2**63:
            raise BadRequest(f"table '{spec.name}': range [{start}, {stop}) of {r.source} is empty or negative")
        checked.append(Range(Source(r.source.topic_id, int(r.source.partition)), start, stop))
    if len({r.source for r in checked}) < len(checked):
        raise BadRequest(f"table '{spec.name}': a source has two ranges in one flush; merge them, or send two flushes")
    return tuple(checked)


def _check_source(spec: TableSpec, source: Source) -> None:
    if not isinstance(source.topic_id, str):
        raise BadRequest(f"table '{spec.name}': topic id of a source must be a string, got {source.topic_id!r}")
    if _whole(spec, "partition of a source", source.partition) < 0 or not source.topic_id:
        raise BadRequest(f"table '{spec.name}': source '{source}' needs a topic id and a partition of 0 or more")


def _whole(spec: TableSpec, name: str, value: int) -> int:
    # a float compares and adds up like any number, and what is stored of it is no integer any more
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BadRequest(
            f"table '{spec.name}': {name} must be a whole number, got {value!r} of type {type(value).__name__}"
        )
    return int(value)


def _number(spec: TableSpec, name: str, value: int) -> int:
    number = _whole(spec, name, value)
    if not 0 <= number < 2**63:
        raise BadRequest(f"table '{spec.name}': {name} must be in [0, 2^63), got {number}")
    return number


def _check_positives(spec: TableSpec, name: str, positives: F32) -> None:
    if len(positives) and not (positives.min() >= 0 and positives.max() <= MAX_POSITIVES):
        raise BadRequest(
            f"table '{spec.name}': {name} must be finite, not negative and at most {MAX_POSITIVES:g}, "
            f"got {positives.min():g} to {positives.max():g}; weigh and clip them first"
        )


def _check_unique(spec: TableSpec, keys: U64) -> None:
    if unique(keys, np.empty_like(keys), np.empty(len(keys), np.int64)) == len(keys):
        return
    ordered = np.sort(keys)
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    raise BadRequest(
        f"table '{spec.name}': {len(repeats)} duplicate keys in a flush, {int(repeats[0])} for one; "
        "sum counts and gradients per key first"
    )


def _checked_ids(spec: TableSpec, ids: Ragged, n: int) -> Ragged:
    checked = _ragged(spec, "ids", ids, n)
    if n and checked.lengths.max() > MAX_ID_BYTES:
        raise BadRequest(
            f"table '{spec.name}': an id has {checked.lengths.max()} bytes; at most {MAX_ID_BYTES} are kept"
        )
    return checked


def _ragged(spec: TableSpec, name: str, column: Ragged, n: int) -> Ragged:
    if not isinstance(column, Ragged):
        raise BadRequest(f"table '{spec.name}': {name} must be a Ragged, got {type(column).__name__}")
    offsets = _column(spec, f"{name}.offsets", column.offsets, np.int64, n + 1)
    data = _column(spec, f"{name}.data", column.data, np.uint8)
    if offsets[0] < 0 or offsets[-1] > len(data) or (n and np.diff(offsets).min() < 0):
        raise BadRequest(f"table '{spec.name}': {name}.offsets don't fit {len(data)} bytes of {name}.data")
    return Ragged(offsets, data)


def _rows(spec: TableSpec, name: str, rows: I64, n: int) -> I64:
    rows = _column(spec, name, rows, np.int64)
    if len(rows) and not (rows.min() >= 0 and rows.max() < n):
        raise BadRequest(f"table '{spec.name}': {name} index the flush's {n} keys, got {rows.min()} to {rows.max()}")
    return rows


def _orders(spec: TableSpec, name: str, orders: Orders, n: int) -> Orders:
    orders = _column(spec, name, orders, ORDER, n)
    if n and not (orders["time_ms"].min() >= 0 and orders["place"].min() >= 0):
        raise BadRequest(f"table '{spec.name}': times and places of {name} must not be negative")
    return orders


def _few(spec: TableSpec, name: str, n: int) -> None:
    if n > MAX_KEYS:
        raise BadRequest(f"table '{spec.name}': {n} {name} in one call; at most {MAX_KEYS}, make several calls")


def _column(
    spec: TableSpec, name: str, array: npt.NDArray[_T], dtype: npt.DTypeLike, length: int | None = None
) -> npt.NDArray[_T]:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
        got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise BadRequest(f"table '{spec.name}': {name} must be a 1-d array of {np.dtype(dtype)}, got {got}")
    if length is not None and len(array) != length:
        raise BadRequest(f"table '{spec.name}': {name} must have {length} elements, got {len(array)}")
    return np.ascontiguousarray(array)
