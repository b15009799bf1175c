"""Initial vectors: a pure function of (table seed, key, j), the same in every process, backend and release."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit, types

from native.mixing import GOLDEN, mix

U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

SUM_STD = math.sqrt((2.0**32 - 1.0) / 3.0)
"""Standard deviation of the sum of four integers uniform on [0, 2^16)."""

_LOW = np.uint64(0xFFFF)
_S16, _S32, _S48 = np.uint64(16), np.uint64(32), np.uint64(48)
_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(types.void(types.uint64, types.float64, _KEYS, _FLAGS, types.float32[:, ::1]), cache=True, nogil=True)
def fill_missing(seed: int, initial_std: float, keys: U64, found: Bool, out: F32) -> None:
    """out[i, j] = (Σ of the four 16-bit parts of x(i, j) − 131070) · initial_std / SUM_STD where not found[i].

    x(i, j) = mix(mix(keys[i] + mix(seed + G)) + (j + 1)·G), G the golden gamma of splitmix64: Irwin–Hall of order 4,
    near normal, bounded at 3.46 standard deviations. Integers up to one float64 product and one rounding to float32, so
    C repeats it bit for bit. initial_std 0 gives +0.0. keys (n,), found (n,), out (n, dim).
    """
    scale = initial_std / SUM_STD
    salt = mix(seed + GOLDEN)
    for i in range(keys.shape[0]):
        if found[i]:
            continue
        if initial_std == 0.0:
            for j in range(out.shape[1]):
                out[i, j] = np.float32(0.0)
            continue
        z = mix(keys[i] + salt)
        for j in range(out.shape[1]):
            z += GOLDEN
            x = mix(z)
            total = (x & _LOW) + ((x >> _S16) & _LOW) + ((x >> _S32) & _LOW) + (x >> _S48)
            out[i, j] = np.float32(np.float64(np.int64(total) - 131070) * scale)
