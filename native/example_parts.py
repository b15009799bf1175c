"""Columns of some of a micro-batch's examples, in the order in which they are learned: one pass for all columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


class Given(NamedTuple):
    """Columns of all e examples; see `trainer.examples.Examples`."""

    recent: I64  # (e, length)
    target: I64  # (e,), as all below
    ever: I64
    is_row: Bool
    is_column: Bool
    weight: F32
    user: I64
    seen_start: I64
    seen_stop: I64
    told: Bool  # users who have something even without a history; (0,): nobody


class Taken(NamedTuple):
    """The same of n of them, and of padding: no row, no column, nobody. See `room`."""

    recent: I64  # (n, length)
    target: I64  # (n,), as all below; padding: the first example's
    target_row: I64  # the same; padding: -1
    own: I64  # number of the example, -1 for padding
    user: I64
    bucket: I64
    is_row: Bool
    is_fresh_row: Bool
    is_column: Bool
    weight: F32  # 0 where it is no row
    popularity: F32
    bias: F32
    seen_start: I64
    seen_stop: I64


def room(n: int, length: int) -> Taken:
    """Room for n."""
    i64, f32, flags = np.empty((7, n), np.int64), np.empty((3, n), np.float32), np.empty((3, n), np.bool_)
    return Taken(np.empty((n, length), np.int64), *i64[:5], *flags, *f32, *i64[5:])


@njit(cache=True, nogil=True)
def take(
    order: I64, fresh: int, dropped: Bool, personal: bool, buckets: int, log_popularity: F32, bias: F32, given: Given,
    out: Taken,
) -> int:  # fmt: skip
    """Fill `out` with the examples order (n,), -1 for padding; returns how many are rows.

    The first `fresh` examples are fresh. dropped (replays among them, length): places of a replay's history that are
    left out, in the order of the replays; (0, length) for none. personal: everyone has a vector of his own; otherwise
    an example without anything to predict from is no row. Bucket b holds histories of 2^b − 1 to 2^(b + 1) − 2 items
    ever, the last all longer ones. log_popularity, bias (items,).
    """
    rows, replay = 0, 0
    length = given.recent.shape[1]
    for i in range(len(order)):
        live, e = order[i] >= 0, max(order[i], 0)
        something = personal or (len(given.told) > 0 and given.told[e])
        drops = live and e >= fresh and len(dropped) > 0
        for k in range(length):
            item = given.recent[e, k] if live else -1
            if drops and dropped[replay, k]:
                item = -1
            out.recent[i, k] = item
            something |= item >= 0
        replay += drops
        target = given.target[e]
        out.target[i], out.target_row[i] = target, target if live else -1
        out.own[i], out.user[i] = e if live else -1, given.user[e] if live else -1
        left, bucket = given.ever[e] + 1, -1
        while left > 0 and bucket < buckets - 1:
            left >>= 1
            bucket += 1
        out.bucket[i] = bucket
        row = live and given.is_row[e] and something
        out.is_row[i], out.is_fresh_row[i] = row, row and e < fresh
        out.is_column[i] = live and given.is_column[e]
        out.weight[i] = given.weight[e] if row else np.float32(0.0)
        out.popularity[i], out.bias[i] = log_popularity[target], bias[target]
        out.seen_start[i] = given.seen_start[e]
        out.seen_stop[i] = given.seen_stop[e] if live else given.seen_start[e]
        rows += row
    return rows
