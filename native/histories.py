"""What each event may know of its user's past.

Strictly earlier positives, stored or still on their way to the store.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
Entries = npt.NDArray[np.void]


_STEPS = 8


@njit(cache=True, inline="always")
def _before(entry: Any, time_ms: int, partition: int, place: int) -> bool:
    """Whether the entry's (time, partition, place) is strictly smaller."""
    if entry.time_ms != time_ms:
        return bool(entry.time_ms < time_ms)
    if entry.partition != partition:
        return bool(entry.partition < partition)
    return bool(entry.place < place)


@njit(cache=True, nogil=True)
def known_before(
    stored_offsets: I64,
    stored: Entries,
    fresh_offsets: I64,
    fresh: Entries,
    user: I64,
    time_ms: I64,
    partition: npt.NDArray[np.uint32],
    place: I64,
    stored_known: I64,
    fresh_known: I64,
) -> None:
    """How many entries of its user's two lists lie strictly before each event.

    stored, fresh: entries per user, each user's oldest first, cut by offsets (users + 1,). user (n,): index of the
    event's user. Fills stored_known and fresh_known (n,): event i knows stored[o[u] : o[u] + stored_known[i]],
    likewise fresh.
    """
    for i in range(len(user)):
        u, at = user[i], (time_ms[i], partition[i], place[i])
        stored_known[i] = _count_before(stored, stored_offsets[u], stored_offsets[u + 1], at[0], at[1], at[2])
        fresh_known[i] = _count_before(fresh, fresh_offsets[u], fresh_offsets[u + 1], at[0], at[1], at[2])


@njit(cache=True, nogil=True)
def _count_before(entries: Entries, start: int, stop: int, time_ms: int, partition: int, place: int) -> int:
    """How many of entries[start:stop], oldest first, lie before. A few steps from the end, as most often all do or all
    but the event itself; then by halves: one user may have half of a large micro-batch."""
    end = stop
    while end > start and not _before(entries[end - 1], time_ms, partition, place):
        if stop - end == _STEPS:
            low = start
            while low < end:
                middle = (low + end) // 2
                if _before(entries[middle], time_ms, partition, place):
                    low = middle + 1
                else:
                    end = middle
            break
        end -= 1
    return end - start


@njit(cache=True, nogil=True)
def newest_known(
    stored_offsets: I64,
    stored: Entries,
    fresh_offsets: I64,
    fresh: Entries,
    user: I64,
    stored_known: I64,
    fresh_known: I64,
    items: U64,
    lengths: I64,
    times_ms: I64,
) -> None:
    """The newest known items of each event, newest first: merges the ends of the two lists.

    An entry in both lists counts once: where a history shard is ahead, what is replayed is stored already. Fills items
    (n, length) u64, lengths (n,) with how many each row has, and times_ms (n, r), r ≤ length, of the first ones.
    """
    for i in range(len(user)):
        u = user[i]
        s0, f0 = stored_offsets[u], fresh_offsets[u]
        s, f = s0 + stored_known[i], f0 + fresh_known[i]
        k = 0
        while k < items.shape[1] and (s > s0 or f > f0):
            take_stored = f == f0
            if s > s0 and f > f0:
                e = fresh[f - 1]
                take_stored = not _before(stored[s - 1], e.time_ms, e.partition, e.place)
                e = stored[s - 1]
                if take_stored and not _before(fresh[f - 1], e.time_ms, e.partition, e.place):
                    f -= 1
            if take_stored:
                s -= 1
                items[i, k] = stored[s].item
                if k < times_ms.shape[1]:
                    times_ms[i, k] = stored[s].time_ms
            else:
                f -= 1
                items[i, k] = fresh[f].item
                if k < times_ms.shape[1]:
                    times_ms[i, k] = fresh[f].time_ms
            k += 1
        lengths[i] = k


@njit(cache=True, nogil=True)
def ever_known(
    stored_offsets: I64,
    stored: Entries,
    fresh_offsets: I64,
    fresh: Entries,
    user: I64,
    stored_known: I64,
    fresh_known: I64,
    ever: I64,
) -> None:
    """How many entries each event knows; one in both lists counts once, as in `newest_known`. Fills ever (n,)."""
    for i in range(len(user)):
        s0, f0 = stored_offsets[user[i]], fresh_offsets[user[i]]
        s = s0 + stored_known[i]
        ever[i] = stored_known[i] + fresh_known[i]
        if stored_known[i] == 0 or fresh_known[i] == 0:
            continue
        oldest = fresh[f0]
        if _before(stored[s - 1], oldest.time_ms, oldest.partition, oldest.place):
            continue  # as nearly always: what is stored is older than what is on its way
        both = 0
        for f in range(f0 + fresh_known[i] - 1, f0 - 1, -1):
            e = fresh[f]
            while s > s0 and not _before(stored[s - 1], e.time_ms, e.partition, e.place):
                s -= 1
                o = stored[s]
                if o.time_ms == e.time_ms and o.partition == e.partition and o.place == e.place:
                    both += 1
                    break
        ever[i] -= both


@njit(cache=True, nogil=True)
def seen_before(
    stored_offsets: I64,
    stored: Entries,
    fresh_offsets: I64,
    fresh: Entries,
    user: I64,
    stored_known: I64,
    fresh_known: I64,
    offsets: I64,
    items: U64,
) -> None:
    """Every known item of each event: items[offsets[i] : offsets[i + 1]].

    offsets (n + 1,) come filled from the two counts.
    """
    for i in range(len(user)):
        at = offsets[i]
        s0, f0 = stored_offsets[user[i]], fresh_offsets[user[i]]
        for k in range(stored_known[i]):
            items[at + k] = stored[s0 + k].item
        at += stored_known[i]
        for k in range(fresh_known[i]):
            items[at + k] = fresh[f0 + k].item


@njit(cache=True, nogil=True)
def joined(items: U64, lengths: I64, out: U64) -> None:
    """out = the first lengths[i] of each row of items (n, length), row after row; out (Σ lengths,)."""
    at = 0
    for i in range(len(lengths)):
        for k in range(lengths[i]):
            out[at] = items[i, k]
            at += 1


@njit(cache=True, nogil=True)
def laid_out(numbers: I64, alive: Bool, lengths: I64, out: I64) -> None:
    """The way back: out (n, length) has the next lengths[i] of `numbers` in row i, -1 where not alive and behind them.

    numbers (Σ lengths,), below len(alive).
    """
    at = 0
    for i in range(len(lengths)):
        for k in range(out.shape[1]):
            if k < lengths[i]:
                out[i, k] = numbers[at] if alive[numbers[at]] else -1
                at += 1
            else:
                out[i, k] = -1
