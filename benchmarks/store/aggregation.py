"""Summing gradients by key, beside a copy of them."""

from __future__ import annotations

import time

import numpy as np

from native.aggregate import aggregate

EVENTS, KEYS, DIM = 8192, 5728, 64
TURNS = 400


def over_copy() -> tuple[float, dict[str, float]]:
    """Median time of `aggregate` of EVENTS gradients of KEYS keys over that of a copy of them, taken in turns."""
    rng = np.random.default_rng(0)
    drawn = np.concatenate([np.arange(KEYS), rng.integers(0, KEYS, EVENTS - KEYS)])
    keys = rng.permutation(drawn).astype(np.uint64)
    gradients = rng.normal(size=(EVENTS, DIM)).astype(np.float32)
    target = np.empty_like(gradients)
    copies, sums = [], []
    for _ in range(TURNS):
        started = time.perf_counter()
        np.copyto(target, gradients)
        between = time.perf_counter()
        aggregate(keys, gradients)
        copies.append(between - started)
        sums.append(time.perf_counter() - between)
    copy_us, sum_us = (1e6 * float(np.median(s)) for s in (copies, sums))
    return round(sum_us / copy_us, 2), {"copy_us": round(copy_us), "aggregate_us": round(sum_us)}
