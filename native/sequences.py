"""Merging appends into the sequences of many rows.

Entries are words (m, 4) int64, the four 8-byte words of a 32-byte entry: time_ms, place, item, and partition in the low
half of the fourth with the weight's bits in the high half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

I64 = npt.NDArray[np.int64]

_READ_WORDS = types.Array(types.int64, 2, "C", readonly=True)
_READ_I64 = types.Array(types.int64, 1, "C", readonly=True)
_I64 = types.int64[::1]
_LOW = np.int64(0xFFFFFFFF)


@njit(types.boolean(_READ_WORDS, types.int64, _READ_WORDS, types.int64), cache=True, nogil=True)
def after(a: I64, i: int, b: I64, j: int) -> np.bool_:
    """Whether entry i of a comes after entry j of b in the order (time_ms, partition, place, item, weight bits).

    The last two only make the order total: without them two entries at one place could depend on who came first.
    """
    if a[i, 0] != b[j, 0]:
        return np.bool_(a[i, 0] > b[j, 0])
    if a[i, 3] & _LOW != b[j, 3] & _LOW:
        return np.bool_(a[i, 3] & _LOW > b[j, 3] & _LOW)
    if a[i, 1] != b[j, 1]:
        return np.bool_(a[i, 1] > b[j, 1])
    if a[i, 2] != b[j, 2]:
        return np.uint64(a[i, 2]) > np.uint64(b[j, 2])
    return np.uint64(a[i, 3]) > np.uint64(b[j, 3])


@njit(types.boolean(_READ_WORDS, _READ_I64, _I64, _I64), cache=True, nogil=True)
def group_appends(appends: I64, append_rows: I64, starts: I64, order: I64) -> bool:
    """Stable counting sort of appends by row; True if every row's appends are then in entry order already.

    appends (m, 4), append_rows (m,) in [0, n); starts (n + 1,) zeros, becomes each row's bounds in `order` (m,).
    """
    m = append_rows.shape[0]
    n = starts.shape[0] - 1
    for k in range(m):
        starts[append_rows[k] + 1] += 1
    for i in range(n):
        starts[i + 1] += starts[i]
    for k in range(m - 1, -1, -1):
        i = append_rows[k]
        starts[i + 1] -= 1
        order[starts[i + 1]] = k
    for i in range(n):
        starts[i] = starts[i + 1]
    starts[n] = m
    for i in range(n):
        for k in range(starts[i] + 1, starts[i + 1]):
            if after(appends, order[k - 1], appends, order[k]):
                return False
    return True


@njit(
    types.void(_READ_WORDS, _READ_I64, _READ_WORDS, _READ_I64, _READ_I64, _READ_I64, types.int64[:, ::1]),
    cache=True,
    nogil=True,
)
def merge_entries(
    stored: I64, stored_bounds: I64, appends: I64, append_bounds: I64, order: I64, out_bounds: I64, out: I64
) -> None:
    """Row i of out: the largest out_bounds[i + 1] − out_bounds[i] of its stored entries and its appends, oldest first.

    stored (s, 4) in order within each row of stored_bounds (n + 1,); appends (m, 4) taken by order (m,), in order
    within each row of append_bounds (n + 1,). Keeping the largest of a multiset under a total order is associative and
    commutative, so appends may come in any split.
    """
    for i in range(out_bounds.shape[0] - 1):
        a = stored_bounds[i + 1] - 1
        b = append_bounds[i + 1] - 1
        for p in range(out_bounds[i + 1] - 1, out_bounds[i] - 1, -1):
            from_appends = b >= append_bounds[i] and (a < stored_bounds[i] or after(appends, order[b], stored, a))
            if from_appends:
                for w in range(4):
                    out[p, w] = appends[order[b], w]
                b -= 1
            else:
                for w in range(4):
                    out[p, w] = stored[a, w]
                a -= 1
