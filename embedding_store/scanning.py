"""Passes over all items, cut among threads where that is worth one's waking up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from embedding_store.contract import F32, I64, Bool
from native.coarse import TILE, U8, merged, top_k_of_many

_LEAST = 1 << 15
"""Items times users of a part: a fifth of a millisecond, some times what it takes until another thread runs."""


class Items(NamedTuple):
    """Columns of n items; see `native.coarse`."""

    outputs: F32  # (n, output_dim)
    popularity: F32  # (n,)
    floor: np.float32
    codes: U8
    scales: F32


class Asked(NamedTuple):
    """What m users are to have; see `native.coarse.top_k_of_many`."""

    vectors: F32  # (m, output_dim)
    weights: F32  # (m,)
    offsets: I64  # (m + 1,)
    excluded: I64
    masks: Bool
    masked: I64  # (m,)
    k: I64  # (m,)


class Scanner:
    """Thread-safe. The kernels hold no lock of the interpreter, so parts of a pass run at the same time."""

    def __init__(self, threads: int = 1) -> None:
        """threads: of a pass, the caller's among them."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="scan") if threads > 1 else None

    def top_k(self, items: Items, asked: Asked, likely: int, slots: I64, best: F32) -> I64:
        """`top_k_of_many`, to the bit, however many threads: (m,) how many each got, in slots and best (m, most).

        The columns must stay as they are meanwhile.
        """
        n, m = len(items.popularity), len(asked.k)
        parts = min(self._threads, max(1, n * m // _LEAST))
        if parts == 1 or self._pool is None:
            return _scanned(items, asked, likely, 0, n, slots, best)
        tiles = -(-n // TILE)
        bounds = [min(n, tiles * part // parts * TILE) for part in range(parts + 1)]
        part_slots = np.empty((parts, *slots.shape), np.int64)
        part_best = np.full((parts, *best.shape), -np.inf, np.float32)

        def scanned(part: int) -> I64:
            return _scanned(items, asked, likely, bounds[part], bounds[part + 1], part_slots[part], part_best[part])

        others = [self._pool.submit(scanned, part) for part in range(1, parts)]
        try:
            first = scanned(0)
        finally:
            rest = [other.result() for other in others]  # none may read on when the columns move again
        return merged(part_slots, part_best, np.stack([first, *rest]), asked.k, slots, best)

    def close(self) -> None:
        """Wait for running parts; no pass may begin any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def _scanned(items: Items, asked: Asked, likely: int, begin: int, end: int, slots: I64, best: F32) -> I64:
    return top_k_of_many(
        items.outputs, items.popularity, items.floor, items.codes, items.scales,
        asked.vectors, asked.weights, asked.offsets, asked.excluded, asked.masks, asked.masked, asked.k,
        likely, begin, end, slots, best,
    )  # fmt: skip
