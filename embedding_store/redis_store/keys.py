"""Names of everything a store keeps in Redis. The part in braces is the Cluster hash tag: what moves together.

Of a store kept by the stock backend, per shard:

towline:{<table>:<shard>}:rows     HASH    8-byte little-endian key → row record (native.rows)
towline:{<table>:<shard>}:meta     HASH    generation, clock, event_time_ms, produced_ms, skipped, seeks, last_seek,
                                           feed, offset:<topic id>:<partition>
towline:{<table>:<shard>}:version  STRING  counts transactions; the WATCHed key
towline:{<table>:<shard>}:feed     STREAM  entry <n>-0, n = 1, 2, …: one field `k`, the changed keys end to end
towline:{<table>:<shard>}:updates, stubs, evicted, forgotten
                                   ZSET    8-byte key → score; see embedding_store.eviction. Only while they have keys
towline:{<table>:<shard>}:lock     STRING  queue of writers under contention, with a TTL

Of a store kept by the module, per shard:

towline:{<table>:<shard>}          TOWLINE-TB    all of it

Of both:

towline:{<table>}:spec             STRING  the declaration, JSON
towline:{store}:tables             SET     names of tables
towline:{store}:generation         STRING
towline:{store}:model              STRING  the published model document
towline:{store}:protocol           STRING  number; see embedding_store.redis_store.protocol
towline:{store}:backend            STRING  stock or module; see embedding_store.redis_store.backend
towline:{store}:excluded           STRING  records to be left out, JSON; see embedding_store.exclusions
towline:{store}:restoring          STRING  mark of an unfinished restore; see embedding_store.redis_store.restoring
towline:{store}:probe              any     while a restore tries whether the server reads the snapshot; with a TTL
"""

from __future__ import annotations

from typing import NamedTuple

TABLES = b"towline:{store}:tables"
GENERATION = b"towline:{store}:generation"
MODEL = b"towline:{store}:model"
PROTOCOL = b"towline:{store}:protocol"
BACKEND = b"towline:{store}:backend"
EXCLUDED = b"towline:{store}:excluded"
RESTORING = b"towline:{store}:restoring"
PROBE = b"towline:{store}:probe"


class ShardKeys(NamedTuple):
    """Keys of one shard; all in one Cluster slot."""

    rows: bytes
    meta: bytes
    version: bytes
    feed: bytes
    lock: bytes
    updates: bytes
    stubs: bytes
    evicted: bytes
    forgotten: bytes

    def of_index(self, name: str) -> bytes:
        """Key of one of `embedding_store.eviction.INDEXES`."""
        key: bytes = getattr(self, name)
        return key


def shard_keys(table: str, shard: int) -> ShardKeys:
    """Keys of shard `shard` of `table`."""
    tag = module_key(table, shard)
    return ShardKeys(*(b"%b:%b" % (tag, part.encode()) for part in ShardKeys._fields))


def module_key(table: str, shard: int) -> bytes:
    """The one key of a shard that the module keeps."""
    return f"towline:{{{table}:{shard}}}".encode()


def spec_key(table: str) -> bytes:
    """Key of a table's declaration."""
    return f"towline:{{{table}}}:spec".encode()
