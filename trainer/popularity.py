"""How popular items are, from what their rows hold: the sum of positives, each halved with every half-life."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64

F64 = npt.NDArray[np.float64]


def decayed(popularity: F32, last_seen: I64, clock: int, half_life: float) -> F64:
    """(n,) popularity at `clock` of rows whose popularity (n,) is as of `last_seen` (n,). Pure."""
    now: F64 = popularity.astype(np.float64) * np.exp2(-np.maximum(clock - last_seen, 0) / half_life)
    return now


def log_of(decayed: F64, floor: float) -> F32:
    """(n,) ln of it, of `floor` at least: the prior of every score."""
    return np.log(np.maximum(decayed, floor)).astype(np.float32)
