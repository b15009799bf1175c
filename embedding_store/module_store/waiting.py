"""The command that blocks until a feed of the module moves."""

from __future__ import annotations

from collections.abc import Sequence

from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.waiting import Watched


def tow_wait(watched: Sequence[Watched], block_ms: int) -> bytes:
    """A `redis_store.waiting.Command`: its reply is 1 as soon as a feed has moved or its shard is gone, else 0."""
    return pack("TOW.WAIT", block_ms, *(part for one in watched for part in one))
