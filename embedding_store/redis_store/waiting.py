"""Blocking until a feed moves."""

from __future__ import annotations

import time
from collections.abc import Sequence

from embedding_store.change_set import positions
from embedding_store.contract import Cursor
from embedding_store.redis_store.feed import table_run
from embedding_store.redis_store.keys import shard_keys
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session
from embedding_store.spec import TableSpec

CLUSTER_BLOCK_S = 0.01
"""XREAD can't block on keys of several slots, so in a Cluster feeds are polled one after another."""


def wait(
    session: Session, specs: Sequence[TableSpec], cursors: Sequence[Cursor], timeout_s: float, longest_block_s: float
) -> bool:
    """As `EmbeddingStore.wait_for_changes`, on one server."""
    streams = _streams(session, specs, cursors)
    if streams is None:
        return True
    return _block([streams], session, timeout_s, longest_block_s)


def wait_in_cluster(session: Session, specs: Sequence[TableSpec], cursors: Sequence[Cursor], timeout_s: float) -> bool:
    """As `EmbeddingStore.wait_for_changes`, feed by feed."""
    streams = _streams(session, specs, cursors)
    if streams is None:
        return True
    return _block([[stream] for stream in streams], session, timeout_s, CLUSTER_BLOCK_S)


def _streams(session: Session, specs: Sequence[TableSpec], cursors: Sequence[Cursor]) -> list[tuple[bytes, str]] | None:
    streams = []
    for spec, cursor in zip(specs, cursors, strict=True):
        keys = [shard_keys(spec.name, s).feed for s in range(spec.shards)]
        at = positions(spec, table_run([session.shared(key) for key in keys]), cursor)
        if at is None:
            return None  # another run: there is a whole table to read
        streams += [(key, f"{position}-0") for key, position in zip(keys, at, strict=True)]
    return streams


def _block(groups: Sequence[list[tuple[bytes, str]]], session: Session, timeout_s: float, longest_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        for group in groups:
            block_ms = 1 + int(1000 * min(longest_s, max(0.0, deadline - time.monotonic())))  # 0 would block for ever
            names, entries = zip(*group, strict=True)
            command = pack("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *names, *entries)
            if session.shared(names[0]).ask(command)[0] is not None:
                return True
        if time.monotonic() >= deadline:
            return False
