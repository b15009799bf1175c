"""Cutting a flush into what each shard gets. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, ORDER, U32, U64, Flush, Mode, Orders, OwnEvents
from embedding_store.orders import NO_TIME, ranked
from embedding_store.spec import TableSpec
from native.grouping import grouped
from native.mixing import partition
from native.ragged import Ragged, concatenate

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a flush that live in one shard. Arrays are read-only to whoever gets them."""

    keys: U64  # (n,) unique
    counts: I64  # (n,)
    positives: F32  # (n,)
    checks: U32  # (n,)
    ids: Ragged  # n
    gradients: F32 | None  # (n, dim)
    mode: Mode
    state_deltas: F32 | None  # (n, state_dim)
    appends: I64  # (m, 4) words of entries, see native.sequences
    append_rows: I64  # (m,)
    values: Ragged  # v
    value_orders: Orders  # (v,)
    value_rows: I64  # (v,)
    own_events: OwnEvents | None
    forget_rows: I64  # (f,) index into keys, unique
    forget_orders: Orders  # (f,) the largest of a key's; NO_TIME where the flush gives none
    forget_checks: U32 | None  # (f,)
    rows: I64  # (n,) where each key is in the flush, ascending; from len(flush.keys) on: keys that are only forgotten


def by_shard(keys: U64, shards: int) -> tuple[I64, I64]:
    """(order (n,), starts (shards + 1,)): rows of `keys` shard by shard, in their old order within each."""
    starts = np.zeros(shards + 1, np.int64)
    order = np.empty(len(keys), np.int64)
    partition(keys, starts, order)
    return order, starts


def parts_of(spec: TableSpec, flush: Flush, *, gradients: bool = True, own: bool = True) -> list[Part]:
    """One part per shard; a shard without rows gets an empty one. The flush has passed `validation.checked_flush`.

    gradients False: gradients and state_deltas are left out, for who takes them from the flush by `rows`. own False:
    so are own_events.
    """
    flush = _with_forgotten(flush)
    pushes, state_deltas = (flush.gradients, flush.state_deltas) if gradients else (None, None)
    appends, append_rows = _words(flush)
    values, value_orders, value_rows = _values(flush)
    forget_rows, forget_orders, forget_checks = _forgets(flush)
    events = flush.own_events if own else None
    if spec.shards == 1:
        return [
            Part(
                flush.keys, flush.counts, flush.positives, flush.checks, flush.ids, pushes,
                flush.mode, state_deltas, appends, append_rows, values, value_orders, value_rows, events,
                forget_rows, forget_orders, forget_checks, np.arange(len(flush.keys)),
            )
        ]  # fmt: skip
    order, starts = by_shard(flush.keys, spec.shards)
    place = np.empty_like(order)  # where each row of the flush went
    place[order] = np.arange(len(order))
    # each column is put in the order of the shards once, and cut into views
    keys, counts, positives, checks, ids = (
        flush.keys[order], flush.counts[order], flush.positives[order], flush.checks[order], flush.ids.take(order)
    )  # fmt: skip
    pushes = None if pushes is None else pushes[order]
    state_deltas = None if state_deltas is None else state_deltas[order]
    of_append = _Followers(append_rows, place, starts)
    appends = np.take(appends, of_append.order, axis=0)
    of_value = _Followers(value_rows, place, starts)
    if len(value_rows):
        values, value_orders = values.take(of_value.order), value_orders[of_value.order]
    of_forget = _Followers(forget_rows, place, starts)
    if len(forget_rows):
        forget_orders = forget_orders[of_forget.order]
        forget_checks = None if forget_checks is None else forget_checks[of_forget.order]
    of_event = None
    if events is not None:
        of_event = _Followers(events.rows, place, starts)
        events = OwnEvents(of_event.rows, np.take(events.orders, of_event.order), events.positives[of_event.order])
    parts = []
    for s in range(spec.shards):
        mine = slice(starts[s], starts[s + 1])
        appended, valued, forgotten = of_append.of(s), of_value.of(s), of_forget.of(s)
        its_events = None
        if events is not None and of_event is not None:
            happened = of_event.of(s)
            its_events = OwnEvents(of_event.rows_of(s), events.orders[happened], events.positives[happened])
        parts.append(
            Part(
                keys=keys[mine],
                counts=counts[mine],
                positives=positives[mine],
                checks=checks[mine],
                ids=_cut(ids, mine),
                gradients=None if pushes is None else pushes[mine],
                mode=flush.mode,
                state_deltas=None if state_deltas is None else state_deltas[mine],
                appends=appends[appended],
                append_rows=of_append.rows_of(s),
                values=_cut(values, valued),
                value_orders=value_orders[valued],
                value_rows=of_value.rows_of(s),
                own_events=its_events,
                forget_rows=of_forget.rows_of(s),
                forget_orders=forget_orders[forgotten],
                forget_checks=None if forget_checks is None else forget_checks[forgotten],
                rows=order[mine],
            )
        )
    return parts


class _Followers:
    """Columns that name rows of a flush, in the order of the shards."""

    def __init__(self, rows: I64, place: I64, starts: I64) -> None:
        self._starts = starts
        if not len(rows):
            self.order = self.rows = rows
            self._bounds = np.zeros(len(starts), np.int64)
            return
        where = place[rows]
        self.order, bounds = grouped(where, len(place))
        self.rows = where[self.order]
        self._bounds = bounds[starts]

    def of(self, shard: int) -> slice:
        """Which of `order` go to the shard."""
        return slice(self._bounds[shard], self._bounds[shard + 1])

    def rows_of(self, shard: int) -> I64:
        """Their rows there."""
        there: I64 = self.rows[self.of(shard)] - self._starts[shard]
        return there


def _cut(column: Ragged, rows: slice) -> Ragged:
    return Ragged(column.offsets[rows.start : rows.stop + 1], column.data)


def _with_forgotten(flush: Flush) -> Flush:
    """The flush with every key that it forgets among its keys."""
    if not len(flush.forget):
        return flush
    missing = np.setdiff1d(flush.forget, flush.keys)
    n = len(missing)
    if not n:
        return flush
    return replace(
        flush,
        keys=np.concatenate([flush.keys, missing]),
        counts=_longer(flush.counts, n),
        positives=_longer(flush.positives, n),
        checks=_longer(flush.checks, n),
        ids=concatenate([flush.ids, Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8))]),
        gradients=None if flush.gradients is None else _longer(flush.gradients, n),
        state_deltas=None if flush.state_deltas is None else _longer(flush.state_deltas, n),
    )


def _longer(column: npt.NDArray[_T], n: int) -> npt.NDArray[_T]:
    return np.concatenate([column, np.zeros((n, *column.shape[1:]), column.dtype)])


def _forgets(flush: Flush) -> tuple[I64, Orders, U32 | None]:
    orders, checks = flush.forget_orders, flush.forget_checks
    if orders is None:
        orders = np.zeros(len(flush.forget), ORDER)
        orders["time_ms"] = NO_TIME
    if not len(flush.forget):
        return np.zeros(0, np.int64), orders, checks
    sorter = np.argsort(flush.keys)
    rows = sorter[np.searchsorted(flush.keys[sorter], flush.forget)]
    order = ranked(orders, rows)
    last = order[np.append(rows[order][1:] != rows[order][:-1], True)]
    return rows[last], orders[last], None if checks is None else checks[last]


def _values(flush: Flush) -> tuple[Ragged, Orders, I64]:
    if flush.values is None or flush.value_orders is None or flush.value_rows is None:
        return Ragged.empty(), np.zeros(0, ORDER), np.zeros(0, np.int64)
    return flush.values, flush.value_orders, flush.value_rows


def _words(flush: Flush) -> tuple[I64, I64]:
    if flush.appends is None or flush.append_rows is None:
        return np.zeros((0, 4), np.int64), np.zeros(0, np.int64)
    return np.ascontiguousarray(flush.appends).view(np.int64).reshape(-1, 4), flush.append_rows
