"""Comparing places in time: (event time, partition, place), the order of sequence entries. Pure."""

from __future__ import annotations

import numpy as np

from embedding_store.contract import I64, ORDER, Bool, Orders

NO_TIME = -(2**63)
"""Event time of a place that comes before every event."""


def later(a: Orders, b: Orders) -> Bool:
    """(n,) whether a[i] comes strictly after b[i]. Of any dtypes with the fields of ORDER."""
    time_a, time_b = a["time_ms"], b["time_ms"]
    partition_a, partition_b = a["partition"], b["partition"]
    return np.asarray(
        (time_a > time_b)
        | (
            (time_a == time_b)
            & ((partition_a > partition_b) | ((partition_a == partition_b) & (a["place"] > b["place"])))
        )
    )


def ranked(orders: Orders, rows: I64) -> I64:
    """(n,) indices that sort by row, and within a row by place in time."""
    return np.lexsort((orders["place"], orders["partition"], orders["time_ms"], rows))


def of_entries(words: I64) -> Orders:
    """(m,) places of entries, given as words (m, 4); see native.sequences."""
    orders = np.empty(len(words), ORDER)
    orders["time_ms"], orders["place"], orders["partition"] = words[:, 0], words[:, 1], words[:, 3] & 0xFFFFFFFF
    return orders
