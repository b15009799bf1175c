"""What TOW.INFO tells of a shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embedding_store.contract import ShardStatus, Source


def status_of(reply: Sequence[Any]) -> ShardStatus:
    """From the reply to TOW.INFO: name, value, …, `offsets` an array of source, offset, …."""
    told = dict(zip(map(_text, reply[::2]), reply[1::2], strict=True))
    offsets = {}
    flat = told["offsets"]
    for name, offset in zip(flat[::2], flat[1::2], strict=True):
        topic_id, _, partition = _text(name).rpartition(":")
        offsets[Source(topic_id, int(partition))] = int(offset)
    names = (
        "clock", "generation", "rows", "event_time_ms", "produced_ms", "skipped", "stubs", "remembered", "evicted",
        "expired", "forgotten", "late", "refused",
    )  # fmt: skip
    return ShardStatus(offsets=offsets, **{name: int(told[name]) for name in names})


def _text(word: bytes) -> str:
    return word.decode()
