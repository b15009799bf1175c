"""`ShardMeta` as a Redis hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from embedding_store.contract import Source
from embedding_store.shard import ShardMeta

NUMBERS = (
    "generation", "clock", "event_time_ms", "produced_ms", "skipped", "seeks", "feed",
    "now_ms", "evicted", "expired", "forgotten", "late", "refused",
)  # fmt: skip
OFFSET = "offset:"


def fields(sources: Iterable[Source]) -> list[str]:
    """Fields of HMGET for a meta with the offsets of these sources."""
    return [*NUMBERS, *(f"{OFFSET}{source}" for source in sources)]


def from_values(values: Sequence[bytes | None], sources: Sequence[Source]) -> ShardMeta:
    """From the reply of HMGET of `fields(sources)`; what isn't stored is 0, or unset."""
    numbers: dict[str, Any] = {name: int(value or 0) for name, value in zip(NUMBERS, values, strict=False)}
    offsets = {s: int(value) for s, value in zip(sources, values[len(NUMBERS) :], strict=True) if value is not None}
    return ShardMeta(**numbers, offsets=offsets)


def from_hash(reply: Sequence[bytes]) -> ShardMeta:
    """From the reply of HGETALL."""
    stored = {reply[i].decode(): reply[i + 1] for i in range(0, len(reply), 2)}
    offsets = {}
    for name, value in stored.items():
        if name.startswith(OFFSET):
            topic_id, _, partition = name.removeprefix(OFFSET).rpartition(":")
            offsets[Source(topic_id, int(partition))] = int(value)
    numbers: dict[str, Any] = {name: int(stored.get(name, 0)) for name in NUMBERS}
    return ShardMeta(
        **numbers,
        last_seek=stored.get("last_seek", b"").decode(),
        offsets=offsets,
    )


def difference(old: ShardMeta, new: ShardMeta) -> list[str]:
    """Field, value, field, value … of HSET for what `new` has and `old` has not."""
    changed: list[str] = []
    for name in (*NUMBERS, "last_seek"):
        if getattr(new, name) != getattr(old, name):
            changed += [name, str(getattr(new, name))]
    for source, offset in new.offsets.items():
        if old.offsets.get(source) != offset:
            changed += [f"{OFFSET}{source}", str(offset)]
    return changed
