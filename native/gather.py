"""Rows by slot, laid end to end as they are answered, in one pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


@njit(cache=True, nogil=True)
def gather(slots: I64, vectors: F32, clock: I64, updated_ms: I64, out: F32, bitmap: U8) -> tuple[int, int, int, int]:
    """(rows found, rows refused, lowest clock and lowest updated_ms of those found; 0 where none is). O(n·dim).

    slots (n,), negative: missing; vectors (m, dim) f32; clock and updated_ms (m,). Fills out (n, dim), with zeros for
    what is missing or holds NaN or infinity, which is refused; and bitmap (ceil(n / 8),), a bit for each row found, the
    lowest first.
    """
    found = refused = 0
    lowest_clock = lowest_ms = 0
    bitmap[:] = 0
    for i in range(len(slots)):
        slot = slots[i]
        if slot >= 0 and _copied(vectors, slot, out, i):
            lowest_clock = clock[slot] if found == 0 else min(lowest_clock, clock[slot])
            lowest_ms = updated_ms[slot] if found == 0 else min(lowest_ms, updated_ms[slot])
            found += 1
            bitmap[i >> 3] |= np.uint8(1 << (i & 7))
            continue
        refused += slot >= 0
        out[i] = np.float32(0.0)
    return found, refused, lowest_clock, lowest_ms


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _copied(vectors: F32, slot: int, out: F32, i: int) -> bool:
    """out[i] = vectors[slot]; whether all of it is finite: only then is 0·v 0."""
    nothing = np.float32(0.0)
    for j in range(vectors.shape[1]):
        v = vectors[slot, j]
        out[i, j] = v
        nothing += v * np.float32(0.0)
    return bool(nothing == np.float32(0.0))
