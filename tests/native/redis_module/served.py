"""Servers with the module, and the replies of its commands taken apart: for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import redis

from native.rows import HEADER
from tests.native.redis_module.blobs import PLACE, Blob
from tests.native.redis_module.parsers import PAIRS
from tests.servers import RedisServer

STATE, STORED, KEYS, NO_IDS = 1, 2, 4, 8
ROWS_HEAD = np.dtype(
    [
        ("version", "<u4"), ("flags", "<u4"), ("clock", "<i8"), ("feed", "<i8"), ("event_time_ms", "<i8"),
        ("produced_ms", "<i8"), ("n", "<u4"), ("dim", "<u4"), ("state_dim", "<u4"), ("unused", "<u4"),
        ("tail_size", "<u8"),
    ]
)  # fmt: skip


def connected(server: RedisServer, **options: Any) -> redis.Redis:
    """A client without retries: an error is an answer."""
    return redis.Redis(unix_socket_path=server.socket_path, socket_timeout=20, retry=None, **options)


def create(client: redis.Redis, key: str, generation: int = 0, **changed: str) -> bytes:
    """TOW.CREATE of `PAIRS`, dim 4 unless changed; and source t:0 from 0 on."""
    pairs = PAIRS | {"dim": "4"} | changed
    made = client.execute_command("TOW.CREATE", key, generation, *(word for pair in pairs.items() for word in pair))
    if made == b"OK":
        client.execute_command("TOW.SEEK", key, "t:0", "-", 0, "begins")
    return made


def events(step: int, keys: npt.NDArray[np.uint64], seed: int = 0, dim: int = 4, **more: Any) -> bytes:
    """A call of one own event and a gradient for each key, [10·step, 10·step + 10) of t:0."""
    rng = np.random.default_rng((seed, step))
    n = len(keys)
    return Blob(
        ranges=[(b"t:0", 10 * step, 10 * step + 10)], keys=keys.tolist(), counts=[1] * n, positives=[1.0] * n,
        checks=[key % 2**32 for key in keys.tolist()], ids=[b"id-%d" % key for key in keys.tolist()],
        gradients=rng.standard_normal((n, dim)).astype(np.float32), dim=dim, now_ms=1000 * step, **more,
    ).bytes()  # fmt: skip


@dataclass
class RowsReply:
    head: npt.NDArray[np.void]
    keys: npt.NDArray[np.uint64]
    records: npt.NDArray[np.void]
    vectors: npt.NDArray[np.float32]
    state: npt.NDArray[np.float32]
    standings: npt.NDArray[np.uint8]
    rest: bytes  # of other kinds than embedding: places, entries; values; ids


def rows(reply: bytes, places: int = 0) -> RowsReply:
    """The rows of a table without entries, and with as many places."""
    head = np.frombuffer(reply, ROWS_HEAD, 1)[0]
    at = ROWS_HEAD.itemsize

    def column(dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        nonlocal at
        out = np.frombuffer(reply, dtype, count, at)
        at += out.nbytes
        return out

    n, dim, state_dim = int(head["n"]), int(head["dim"]), int(head["state_dim"])
    keys = column("<u8", n if head["flags"] & KEYS else 0)
    records = column(HEADER, n)
    vectors = column("<f4", n * dim).reshape(n, dim)
    state = column("<f4", n * state_dim if head["flags"] & STATE else 0)
    assert len(reply) - at == head["tail_size"]
    column(PLACE, places)
    standings = column("u1", n)
    return RowsReply(head, keys, records, vectors, state, standings, reply[at:])


def info(client: redis.Redis, key: str) -> dict[str, Any]:
    flat = client.execute_command("TOW.INFO", key)
    return dict(zip((name.decode() for name in flat[::2]), flat[1::2], strict=True))


def packed(keys: Any) -> bytes:
    return np.asarray(keys, np.uint64).tobytes()


__all__ = ["PLACE", "connected", "create", "events", "info", "packed", "rows"]
