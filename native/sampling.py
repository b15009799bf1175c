"""A share of a stream that is the same whoever draws it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from native.mixing import mix


@njit(cache=True, nogil=True)
def sample(places: npt.NDArray[np.int64], threshold: int, out: npt.NDArray[np.bool_]) -> None:
    """out[i] = whether the hash of places[i] falls below threshold · 2^-32; threshold 2^32 takes all.

    places, out: (n,).
    """
    for i in range(len(places)):
        out[i] = np.int64(mix(np.uint64(places[i])) >> np.uint64(32)) < threshold
