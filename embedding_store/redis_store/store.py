"""The stock Redis backend of `EmbeddingStore`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from embedding_store.contract import U64, Changes, Cursor, Flush, ShardReply, ShardStatus, Source
from embedding_store.decay import decay_read, decays
from embedding_store.eviction import INDEXES
from embedding_store.flush_parts import Part, by_shard, parts_of
from embedding_store.records import Block, Records, decode
from embedding_store.redis_store import shard_meta
from embedding_store.redis_store.backend import Backend
from embedding_store.redis_store.client import Moved
from embedding_store.redis_store.contention import until_committed
from embedding_store.redis_store.feed import read_changes, read_rows
from embedding_store.redis_store.keys import ShardKeys, shard_keys
from embedding_store.redis_store.registered import Declared, RegisteredStore, place_of
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.shard_dump import ShardExport, export_stock, import_stock
from embedding_store.redis_store.steady import steady_reads
from embedding_store.redis_store.transaction import ShardTransaction, update_meta, watch_meta
from embedding_store.redis_store.waiting import wait, xread
from embedding_store.settings import RedisSettings
from embedding_store.shard import jump, raised
from embedding_store.spec import TableSpec
from embedding_store.standing import Standings, standings
from embedding_store.validation import checked_flush, checked_seek, checked_watch

WAVE = 16
"""Shards whose transactions are under way at once, each on a connection of its own."""

CROWDED_CALLS = 32
"""After a lost race, so many calls take one shard after another: a shard is watched for a quarter of the time or less,
and the server works for the other writer meanwhile. With two writers a quarter more rows a second than in waves."""


class RedisStore(RegisteredStore):
    """`EmbeddingStore` on a stock Redis ≥ 7.0 or Valkey: one server, Sentinels or a Cluster. Thread-safe."""

    backend: ClassVar[Backend] = "stock"

    def __init__(self, settings: RedisSettings) -> None:
        """Connect and check the server. Raises StoreMisconfigured, StoreUnavailable."""
        super().__init__(settings)
        self._crowded = 0  # calls to come that expect other writers; a guess, so threads may race on it

    def apply(self, table: str, flush: Flush) -> tuple[ShardReply, ...]:
        """As the contract says. Two round trips where no other writer comes between."""
        spec = self.spec(table)
        flush = checked_flush(spec, flush)
        parts = parts_of(spec, flush)
        replies: list[ShardReply | None] = []
        crowded = self._crowded > 0
        if crowded:
            replies = [None] * spec.shards
        else:
            for lo in range(0, spec.shards, WAVE):
                replies += self._apply_wave(spec, flush, parts, range(lo, min(lo + WAVE, spec.shards)))
        alone = [shard for shard, reply in enumerate(replies) if reply is None]
        self._crowded = CROWDED_CALLS if alone and not crowded else max(0, self._crowded - 1)
        first = random.randrange(spec.shards)  # noqa: S311 (writers that go in step would meet at every shard)
        for shard in sorted(alone, key=lambda shard: (shard - first) % spec.shards):
            replies[shard] = self._apply_alone(spec, flush, parts[shard], shard)
        return tuple(reply for reply in replies if reply is not None)

    def apply_all(self, flushes: Mapping[str, Flush]) -> dict[str, tuple[ShardReply, ...]]:
        """As the contract says; one table after another."""
        checked = {table: checked_flush(self.spec(table), flush) for table, flush in flushes.items()}
        return {table: self.apply(table, flush) for table, flush in checked.items()}

    def seek(self, table: str, shard: int, source: Source, expected: int | None, new: int, reason: str) -> None:
        """As the contract says."""
        spec = self.spec(table)
        checked_seek(spec, shard, source, new, reason)
        keys = shard_keys(table, shard)
        place = place_of(spec.name, shard)

        def attempt(session: Session) -> bool | None:
            old = watch_meta(session, keys)
            return update_meta(session, keys, place, old, jump(old, source, expected, new, reason, place)) or None

        until_committed(self._nodes, keys.lock, self._timeout_s, place, attempt)

    def status(self, table: str) -> tuple[ShardStatus, ...]:
        """As the contract says."""
        spec = self.spec(table)
        return routed(self._nodes, lambda s: _status(s, spec))

    def changes(self, table: str, cursor: Cursor | None) -> Changes:
        """As the contract says."""
        spec = self.spec(table)
        return routed(self._nodes, lambda s: read_changes(s, spec, cursor))

    def wait_for_changes(self, tables: Sequence[str], cursors: Sequence[Cursor], timeout_s: float) -> bool:
        """As the contract says. Occupies a connection of its own while it blocks."""
        checked_watch(tables, cursors)
        specs = [self.spec(table) for table in tables]
        # half the time-out of replies, within which a blocking command has to answer too
        longest_s = None if self._clustered else self._timeout_s / 2
        return routed(self._nodes, lambda s: wait(s, specs, cursors, timeout_s, _feed, xread, longest_s))

    def _read(
        self,
        spec: TableSpec,
        keys: U64,
        *,
        with_state: bool = False,
        with_ids: bool = True,  # noqa: ARG002 - records come whole
    ) -> tuple[Block, Standings]:
        order, starts = by_shard(keys, spec.shards)
        ordered = keys[order]
        mine = [ordered[starts[s] : starts[s + 1]] for s in range(spec.shards)]
        shards = [shard_keys(spec.name, s) for s in range(spec.shards)]

        def read(session: Session) -> tuple[Records, list[int] | None]:
            clocks: list[int] | None = [] if decays(spec) else None
            return read_rows(spec, shards, [session.shared(k.rows) for k in shards], mine, clocks), clocks

        records, clocks = routed(self._nodes, read)
        block = decode(spec, keys, records, order, with_state=with_state)
        if clocks is not None:
            decay_read(spec, block, keys, clocks)
        return block, standings(block)

    def _apply_wave(self, spec: TableSpec, flush: Flush, parts: list[Part], shards: range) -> list[ShardReply | None]:
        """1. All shards read. 2. All decide, so that a refusal comes before any write. 3. All write. 4. All finish.

        None for a shard that has to be tried again: another writer came first, or its Cluster slot has moved.
        """
        try:
            with Session(self._nodes) as session:
                table = spec.name
                wave = [
                    ShardTransaction.on(session, spec, shard_keys(table, s), place_of(table, s), parts[s], flush)
                    for s in shards
                ]
                for transaction in wave:
                    transaction.read()
                for transaction in wave:
                    transaction.decide()
                for transaction in wave:
                    transaction.write()
                return [transaction.finish() for transaction in wave]
        except Moved:  # before any write: what moves later is noticed by `finish`
            return [None] * len(shards)

    def _apply_alone(self, spec: TableSpec, flush: Flush, part: Part, shard: int) -> ShardReply:
        keys = shard_keys(spec.name, shard)
        place = place_of(spec.name, shard)

        def attempt(session: Session) -> ShardReply | None:
            transaction = ShardTransaction.on(session, spec, keys, place, part, flush)
            transaction.read()
            transaction.decide()
            transaction.write()
            return transaction.finish()

        return until_committed(self._nodes, keys.lock, self._timeout_s, place, attempt, failed=1)

    def _raise_shards(self, table: Declared, generation: int) -> None:
        for shard in range(table.spec.shards):
            keys = shard_keys(table.spec.name, shard)
            place = place_of(table.spec.name, shard)

            def attempt(session: Session, keys: ShardKeys = keys, place: str = place) -> bool | None:
                old = watch_meta(session, keys)
                return update_meta(session, keys, place, old, raised(old, generation)) or None

            until_committed(self._nodes, keys.lock, self._timeout_s, place, attempt)

    def _export(self, spec: TableSpec, shard: int) -> ShardExport:
        return routed(self._nodes, lambda s: export_stock(s, shard_keys(spec.name, shard)))

    def _import(self, session: Session, spec: TableSpec, shard: int, export: ShardExport, generation: int) -> None:
        import_stock(session, shard_keys(spec.name, shard), place_of(spec.name, shard), export, generation)

    def _keys_of(self, spec: TableSpec) -> list[list[bytes]]:
        return [list(shard_keys(spec.name, shard)) for shard in range(spec.shards)]


def _feed(table: str, shard: int) -> bytes:
    return shard_keys(table, shard).feed


def _status(session: Session, spec: TableSpec) -> tuple[ShardStatus, ...]:
    shards = [shard_keys(spec.name, s) for s in range(spec.shards)]
    wires = [session.shared(keys.meta) for keys in shards]
    commands = [
        [pack("HGETALL", k.meta), pack("HLEN", k.rows), *(pack("ZCARD", k.of_index(name)) for name in INDEXES)]
        for k in shards
    ]
    statuses = []
    for meta, records, _, stubs, *marks in steady_reads(shards, wires, commands):
        statuses.append(shard_meta.from_hash(meta).status(records, stubs, sum(marks)))
    return tuple(statuses)
