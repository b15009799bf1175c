"""Summing gradients by key in one pass: each row is hashed, and added where its key's sum is, as it is read.

About a third of what numbering the keys first and adding afterwards costs: nothing of the size of the batch is written
besides the sums. Keys are numbered by first appearance, so sums are made in the order of the rows: the same bits on
every machine.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from numba import njit, types

from native.mixing import mix

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_ROWS = types.Array(types.float32, 2, "C", readonly=True)


@njit(
    types.int64(_KEYS, _ROWS, types.int32[::1], types.uint64[::1], types.float32[:, ::1], types.int64),
    cache=True,
    nogil=True,
)
def sum_by_key(keys: U64, values: F32, places: I32, unique_keys: U64, sums: F32, found: int) -> int:
    """Go on with a sum of `found` keys: sums[k] += values[i] where unique_keys[k] == keys[i]. Returns the new count.

    keys (n,), values (n, dim); a key seen for the first time becomes number `found`, its sum starts as its first row.
    values (n, 0) only numbers the keys and clears their sums. places (a power of two above twice the keys there will
    be,) i32: number + 1, zeros at first; unique_keys (≥ keys there will be,), sums (as many, dim): any at first. O(n).
    """
    mask = np.uint64(places.shape[0] - 1)
    dim = sums.shape[1]
    valued = values.shape[1] == dim
    for i in range(keys.shape[0]):
        key = keys[i]
        at = mix(key) & mask
        while places[at] != 0 and unique_keys[places[at] - 1] != key:
            at = (at + np.uint64(1)) & mask
        number = places[at]
        if number != 0:
            if valued:
                total = sums[number - 1]
                row = values[i]
                for j in range(dim):
                    total[j] += row[j]
            continue
        unique_keys[found] = key
        total = sums[found]
        found += 1
        places[at] = found
        if valued:
            row = values[i]
            for j in range(dim):
                total[j] = row[j]
        else:
            for j in range(dim):
                total[j] = np.float32(0.0)
    return found


@njit(cache=True, nogil=True)
def moved_rows(rows: F32, start: int, out: npt.NDArray[np.bool_]) -> None:
    """out[i] = whether row i of rows (n, dim) is anything but zeros, from `start` on; NaN is."""
    for i in range(start, len(rows)):
        moved = False
        for j in range(rows.shape[1]):
            if rows[i, j] != np.float32(0.0):
                moved = True
                break
        out[i] = moved


def aggregate(keys: U64, gradients: F32) -> tuple[U64, F32]:
    """(distinct keys by first appearance (u,), gradients summed per key (u, dim)) of keys (n,), gradients (n, dim)."""
    return aggregate_parts(np.zeros(0, np.uint64), [(keys, gradients)], gradients.shape[1])


def aggregate_parts(first: U64, parts: Iterable[tuple[U64, F32]], dim: int) -> tuple[U64, F32]:
    """As `aggregate` over all parts after each other, without joining them; the keys `first` (m,), repeats allowed,
    are numbered before them and may end with a sum of zeros."""
    parts = list(parts)
    n = len(first) + sum(len(keys) for keys, _ in parts)
    if n >= 1 << 29:
        raise ValueError(f"{n} rows to sum in one call; at most 2^29")
    places = np.zeros(1 << max(4, (2 * n).bit_length()), np.int32)
    unique_keys = np.empty(n, np.uint64)
    sums = np.empty((n, dim), np.float32)
    found = sum_by_key(first, np.zeros((len(first), 0), np.float32), places, unique_keys, sums, 0)
    for keys, gradients in parts:
        if gradients.shape != (len(keys), dim):
            raise ValueError(f"{len(keys)} keys need gradients ({len(keys)}, {dim}), got {gradients.shape}")
        found = sum_by_key(
            np.ascontiguousarray(keys), np.ascontiguousarray(gradients), places, unique_keys, sums, found
        )
    return unique_keys[:found], sums[:found]
