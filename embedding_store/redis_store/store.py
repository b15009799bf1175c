"""The stock Redis backend of `EmbeddingStore`."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace

from embedding_store.admission import taken_by_others
from embedding_store.contract import (
    U32,
    U64,
    Bool,
    Changes,
    Cursor,
    Flush,
    Histories,
    Rows,
    ShardReply,
    ShardStatus,
    Source,
    Values,
)
from embedding_store.decay import decay_read, decays
from embedding_store.declarations import check_same, from_json, to_json
from embedding_store.errors import UnknownTable
from embedding_store.eviction import INDEXES
from embedding_store.flush_parts import Part, by_shard, parts_of
from embedding_store.records import Block, Records, decode, histories_of, rows_of, values_of
from embedding_store.redis_store import shard_meta, waiting
from embedding_store.redis_store.client import Moved
from embedding_store.redis_store.contention import until_committed
from embedding_store.redis_store.feed import read_changes, read_rows
from embedding_store.redis_store.keys import GENERATION, MODEL, TABLES, ShardKeys, shard_keys, spec_key
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.server import parse_info
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.steady import steady_reads
from embedding_store.redis_store.topology import Nodes
from embedding_store.redis_store.transaction import ShardTransaction, update_meta, watch_meta
from embedding_store.settings import RedisSettings
from embedding_store.shard import jump
from embedding_store.spec import TableSpec
from embedding_store.standing import standings
from embedding_store.validation import checked_flush, checked_identities, checked_keys, checked_seek, checked_watch
from native.ragged import Ragged

WAVE = 16
"""Shards whose transactions are under way at once, each on a connection of its own."""

CROWDED_CALLS = 32
"""After a lost race, so many calls take one shard after another: a shard is watched for a quarter of the time or less,
and the server works for the other writer meanwhile. With two writers a quarter more rows a second than in waves."""


class RedisStore:
    """`EmbeddingStore` on a stock Redis ≥ 7.0 or Valkey: one server, Sentinels or a Cluster. Thread-safe.

    Nothing is retried here except what lost a race or a Cluster slot: after StoreUnavailable only the caller knows
    whether its state still fits, so it reads the offsets and decides.
    """

    def __init__(self, settings: RedisSettings) -> None:
        """Connect and check the server. Raises StoreMisconfigured, StoreUnavailable."""
        self._nodes = Nodes(settings)
        self._timeout_s = settings.timeout_s
        self._clustered = settings.cluster
        self._crowded = 0  # calls to come that expect other writers; a guess, so threads may race on it
        self._specs: dict[str, TableSpec] = {}
        self._lock = threading.Lock()
        routed(self._nodes, lambda s: [s.node(node) for node in self._nodes.masters()])

    def create(self, spec: TableSpec) -> None:
        """As the contract says."""
        key = spec_key(spec.name)
        given = to_json(spec)
        stored = routed(self._nodes, lambda s: s.shared(key).ask(pack("SET", key, given, "NX"), pack("GET", key))[1])
        check_same(from_json(stored, spec.name), spec)
        routed(self._nodes, lambda s: s.shared(TABLES).call("SADD", TABLES, spec.name))
        # A shard is born at the store's generation, read before and after, so that a rise in between isn't missed.
        generation = -1
        while generation != self.generation():
            generation = self.generation()
            self._set_generation(spec, generation)

    def spec(self, table: str) -> TableSpec:
        """As the contract says."""
        with self._lock:
            known = self._specs.get(table)
        if known is not None:
            return known
        key = spec_key(table)
        stored = routed(self._nodes, lambda s: s.shared(key).call("GET", key))
        if stored is None:
            raise UnknownTable(f"no table '{table}' in this store; create() it first")
        spec = from_json(stored, table)
        with self._lock:
            return self._specs.setdefault(table, spec)

    def generation(self) -> int:
        """As the contract says."""
        return int(routed(self._nodes, lambda s: s.shared(GENERATION).call("GET", GENERATION)) or 0)

    def raise_generation(self) -> int:
        """As the contract says. Repeat it if it is interrupted."""
        generation, tables = routed(
            self._nodes, lambda s: s.shared(GENERATION).ask(pack("INCR", GENERATION), pack("SMEMBERS", TABLES))
        )
        for table in tables:
            self._set_generation(self.spec(table.decode()), generation)
        return int(generation)

    def lookup(self, table: str, keys: U64, *, with_state: bool = False) -> Rows:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        block = self._read(spec, checked_keys(spec, keys, "lookup"), with_state=with_state)
        return rows_of(block, with_state=with_state)

    def histories(self, table: str, keys: U64) -> Histories:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        return histories_of(self._read(spec, checked_keys(spec, keys, "histories"), with_state=False))

    def values(self, table: str, keys: U64) -> Values:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        return values_of(self._read(spec, checked_keys(spec, keys, "values"), with_state=False))

    def taken(self, table: str, keys: U64, checks: U32, ids: Ragged) -> Bool:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        keys, checks, ids = checked_identities(spec, keys, checks, ids)
        block = self._read(spec, keys, with_state=False)
        return taken_by_others(block, standings(block), checks, ids)

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

    def seek(self, table: str, shard: int, source: Source, expected: int | None, new: int, reason: str) -> None:
        """As the contract says."""
        spec = self.spec(table)
        checked_seek(spec, shard, source, new, reason)
        keys = shard_keys(table, shard)
        place = _place(spec, shard)

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
        if self._clustered:
            return routed(self._nodes, lambda s: waiting.wait_in_cluster(s, specs, cursors, timeout_s))
        # half the time-out of replies, within which a blocking command has to answer too
        return routed(self._nodes, lambda s: waiting.wait(s, specs, cursors, timeout_s, self._timeout_s / 2))

    def run_id(self) -> str:
        """As the contract says; in a Cluster, of all masters in the order of their slots."""

        def ask(session: Session) -> str:
            wires = [session.node(node) for node in self._nodes.masters()]
            return "|".join(parse_info(wire.call("INFO", "server"))["run_id"] for wire in wires)

        return routed(self._nodes, ask)

    def publish_model(self, document: bytes) -> None:
        """As the contract says."""
        routed(self._nodes, lambda s: s.shared(MODEL).call("SET", MODEL, bytes(document)))

    def published_model(self) -> bytes | None:
        """As the contract says."""
        document: bytes | None = routed(self._nodes, lambda s: s.shared(MODEL).call("GET", MODEL))
        return document

    def close(self) -> None:
        """As the contract says."""
        self._nodes.drop()

    def _read(self, spec: TableSpec, keys: U64, *, with_state: bool) -> Block:
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
        return block

    def _apply_wave(self, spec: TableSpec, flush: Flush, parts: list[Part], shards: range) -> list[ShardReply | None]:
        """1. All shards read. 2. All decide, so that a refusal comes before any write. 3. All write. 4. All finish.

        None for a shard that has to be tried again: another writer came first, or its Cluster slot has moved.
        """
        try:
            with Session(self._nodes) as session:
                wave = [
                    ShardTransaction.on(session, spec, shard_keys(spec.name, s), _place(spec, s), parts[s], flush)
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
        place = _place(spec, shard)

        def attempt(session: Session) -> ShardReply | None:
            transaction = ShardTransaction.on(session, spec, keys, place, part, flush)
            transaction.read()
            transaction.decide()
            transaction.write()
            return transaction.finish()

        return until_committed(self._nodes, keys.lock, self._timeout_s, place, attempt, failed=1)

    def _set_generation(self, spec: TableSpec, generation: int) -> None:
        for shard in range(spec.shards):
            keys = shard_keys(spec.name, shard)
            place = _place(spec, shard)

            def attempt(session: Session, keys: ShardKeys = keys, place: str = place) -> bool | None:
                old = watch_meta(session, keys)
                new = replace(old, generation=max(old.generation, generation))
                return update_meta(session, keys, place, old, new) or None

            until_committed(self._nodes, keys.lock, self._timeout_s, place, attempt)


def _place(spec: TableSpec, shard: int) -> str:
    return f"shard {shard} of table '{spec.name}'"


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
