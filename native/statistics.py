"""Event-clock statistics of rows: own-event count, logQ's A and B, decayed popularity."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit, types

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

_LN2 = math.log(2.0)
_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(k) for k in range(17))
_I64S = types.Array(types.int64, 1, "A")
_F32S = types.Array(types.float32, 1, "A")
_READ_I64 = types.Array(types.int64, 1, "C", readonly=True)
_READ_F32 = types.Array(types.float32, 1, "C", readonly=True)


@njit(types.float64(types.float64, types.int64), cache=True, nogil=True)
def power(base: float, exponent: int) -> float:
    """base^exponent by squaring, exponent ≥ 0: only products, so the same bits in every language."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@njit(types.float64(types.float64), cache=True, nogil=True)
def halved(x: float) -> float:
    """2^(−x) for x ≥ 0: exact power of two times a fixed Taylor polynomial of degree 16 (relative error < 1e−15).

    Not libm's exp2: its last bit differs between systems, and replicas must agree.
    """
    if x > 1022.0:
        return 0.0
    whole = math.floor(x)
    y = -(x - whole) * _LN2
    total = _INVERSE_FACTORIALS[16]
    for k in range(15, -1, -1):
        total = total * y + _INVERSE_FACTORIALS[k]
    return math.ldexp(total, -int(whole))


@njit(
    types.void(_READ_I64, _READ_F32, types.int64, types.float64, types.float64, _I64S, _I64S, _F32S, _F32S),
    cache=True,
    nogil=True,
)
def observe(
    counts: I64,
    positives: F32,
    clock: int,
    gap_rate: float,
    half_life: float,
    count: I64,
    last_seen: I64,
    gap: F32,
    popularity: F32,
) -> None:
    """Fold c = counts[i] > 0 own events, in a call that ends at clock t, into row i; other rows stay as they are.

    B ← (1−α)^c·B + (1−(1−α)^c)·(t−A)/c, A ← t (Yi et al. 2019, alg. 2, for c events spread evenly over t − A). At a
    row's first own events B ← t/c: c occurrences in a stream of t events is the likeliest rate that the data can tell,
    while the paper's start from 0 would call every new row the most frequent one.
    popularity ← popularity·2^(−(t−A)/half_life) + positives.
    count, last_seen (A), gap (B), popularity: (n,), in place, float64 inside and rounded once.
    """
    for i in range(counts.shape[0]):
        c = counts[i]
        if c <= 0:
            continue
        elapsed = np.float64(clock - last_seen[i])
        if count[i] == 0:
            gap[i] = np.float32(np.float64(clock) / c)
        else:
            kept = power(1.0 - gap_rate, c)
            gap[i] = np.float32(kept * np.float64(gap[i]) + (1.0 - kept) * elapsed / c)
        popularity[i] = np.float32(np.float64(popularity[i]) * halved(elapsed / half_life) + np.float64(positives[i]))
        count[i] += c
        last_seen[i] = clock
