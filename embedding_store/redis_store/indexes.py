"""The indexes of `embedding_store.eviction` as sorted sets: equal scores are ordered by the bytes of the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedding_store.eviction import INDEXES, Head, Settled
from embedding_store.redis_store.keys import ShardKeys
from embedding_store.redis_store.resp import pack

COMMAND_KEYS = 8192
"""Keys per ZADD or ZREM: bounds what one command holds up."""


def read_commands(keys: ShardKeys, lengths: Mapping[str, int]) -> list[bytes]:
    """Two commands per index: its first keys, its size."""
    commands = []
    for name, n in lengths.items():
        key = keys.of_index(name)
        commands += [pack("ZRANGE", key, 0, n - 1, "WITHSCORES"), pack("ZCARD", key)]
    return commands


def heads(lengths: Mapping[str, int], replies: Sequence[Any]) -> dict[str, Head]:
    """From the replies to `read_commands`."""
    found = {}
    for i, name in enumerate(lengths):
        flat, size = replies[2 * i], int(replies[2 * i + 1])
        members = np.frombuffer(b"".join(flat[::2]), "<u8")
        found[name] = Head(members.astype(np.uint64), np.array(list(map(float, flat[1::2])), np.int64), size)
    return found


def write_commands(keys: ShardKeys, settled: Settled) -> list[bytes]:
    """What moves in the indexes."""
    commands = []
    for name in INDEXES:
        if name in settled.leaves:
            members = _members(settled.leaves[name])
            for lo in range(0, len(members), COMMAND_KEYS):
                commands.append(pack("ZREM", keys.of_index(name), *members[lo : lo + COMMAND_KEYS]))
        if name in settled.joins:
            joined, scores = settled.joins[name]
            pairs = [part for pair in zip(scores.tolist(), _members(joined), strict=True) for part in pair]
            for lo in range(0, len(pairs), 2 * COMMAND_KEYS):
                commands.append(pack("ZADD", keys.of_index(name), *pairs[lo : lo + 2 * COMMAND_KEYS]))
    return commands


def mark_commands(keys: ShardKeys, settled: Settled) -> list[bytes]:
    """Records of keys outside the call."""
    commands = []
    for lo in range(0, len(settled.marks), COMMAND_KEYS):
        marks = settled.marks[lo : lo + COMMAND_KEYS]
        arguments = [part for key, record in marks for part in (key.to_bytes(8, "little"), record)]
        commands.append(pack("HSET", keys.rows, *arguments))
    return commands


def _members(keys: np.ndarray[Any, np.dtype[np.uint64]]) -> list[bytes]:
    blob = keys.astype("<u8").tobytes()
    return [blob[i : i + 8] for i in range(0, len(blob), 8)]
