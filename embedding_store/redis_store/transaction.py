"""One shard's optimistic transaction: WATCH and read, decide, MULTI … EXEC. Two round trips.

Whoever changes a shard also increments its version key inside EXEC, so a transaction that read before another's EXEC
aborts. Only the version is watched: watching rows would cost a command per row.

The steps are apart so that a caller can run them for many shards at once: all reads are on their way before the first
is waited for, and the merge of one shard runs while the server works on the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from embedding_store.contract import Flush, Outcome, ShardReply
from embedding_store.errors import StoreError, StoreMisconfigured
from embedding_store.eviction import Settled, head_lengths, leaving, settle
from embedding_store.flush_parts import Part
from embedding_store.merge import merge
from embedding_store.records import Records
from embedding_store.redis_store import indexes, shard_meta
from embedding_store.redis_store.client import Moved, Wire
from embedding_store.redis_store.keys import ShardKeys
from embedding_store.redis_store.replies import RowReplies, row_bytes
from embedding_store.redis_store.resp import Buffer, chunks, hdel, hmget, hset, pack
from embedding_store.redis_store.session import Session
from embedding_store.shard import ShardMeta, advance, feed_length, judge, stamp
from embedding_store.spec import TableSpec


@dataclass(slots=True)
class ShardTransaction:
    """Applying one shard's part of a flush. Steps in order: read, decide, write, finish."""

    spec: TableSpec
    keys: ShardKeys
    place: str  # for messages
    part: Part
    flush: Flush
    wire: Wire
    _heads: dict[str, int] = field(default_factory=dict)
    _meta: ShardMeta = field(default_factory=ShardMeta)
    _outcome: Outcome = "conflict"
    _after: ShardMeta = field(default_factory=ShardMeta)
    _queued: int = 0

    @classmethod
    def on(
        cls, session: Session, spec: TableSpec, keys: ShardKeys, place: str, part: Part, flush: Flush
    ) -> ShardTransaction:
        """A transaction on a wire of its own."""
        return cls(spec, keys, place, part, flush, session.own(keys.version))

    def read(self) -> None:
        """Ask for the version to be watched, the meta and the rows."""
        sources = [r.source for r in self.flush.ranges]
        commands = hmget(self.keys.rows, self.part.keys)
        self._heads = head_lengths(self.spec, self.part)
        commands += indexes.read_commands(self.keys, self._heads)
        head = pack("WATCH", self.keys.version) + pack("HMGET", self.keys.meta, *shard_meta.fields(sources))
        self.wire.send([b"".join([head, *commands])])

    def decide(self) -> None:
        """Take the meta and compare ranges. Raises GenerationError; nothing is written yet."""
        _, values = self.wire.checked([self.wire.read() for _ in range(2)])
        self._meta = shard_meta.from_values(values, [r.source for r in self.flush.ranges])
        self._outcome = judge(self._meta, self.flush, self.place)

    def write(self) -> None:
        """Take the rows, merge, ask for rows, offsets, clock and feed to be moved together; or to watch no longer."""
        stored = self._rows(len(self.part.keys))
        index_replies = self.wire.checked([self.wire.read() for _ in range(2 * len(self._heads))])
        if self._outcome != "applied":
            self.wire.send([pack("UNWATCH")])
            return
        clock, now_ms = self._meta.clock + self.flush.events, stamp(self.spec, self._meta, self.flush)
        merged = merge(self.spec, self.part, stored, clock, now_ms)
        heads = indexes.heads(self._heads, index_replies)
        going = leaving(self.spec, merged, heads, clock, now_ms)
        if going.longer:
            replies = self.wire.ask(*indexes.read_commands(self.keys, going.longer))
            going = leaving(self.spec, merged, heads | indexes.heads(going.longer, replies), clock, now_ms)
        outside = going.outside(merged)
        if len(outside):
            self.wire.send(hmget(self.keys.rows, outside))
        settled = settle(self.spec, merged, going, self._rows(len(outside)), clock, now_ms)
        self._after = advance(self._meta, self.flush, settled)
        self.wire.send(self._commands(settled))

    def finish(self) -> ShardReply | None:
        """The shard's reply; None if another writer came first and the transaction has to be made again.

        Also None if the shard's Cluster slot has moved. Raises StoreFull, StoreUnavailable; after a refusal the server
        has applied nothing.
        """
        if self._outcome != "applied":
            self.wire.checked([self.wire.read()])
            return self._meta.reply(self._outcome, self.flush)
        try:
            if not committed(self.wire, self._queued, self.place):
                return None
        except Moved:  # refused before EXEC: the next attempt finds the slot's new owner
            return None
        return self._after.reply("applied", self.flush)

    def _rows(self, n: int) -> Records:
        """The replies to HMGET of n keys."""
        rows = RowReplies(n, row_bytes(self.spec))
        for size in chunks(n):
            self.wire.read_rows(rows, size)
        return rows.records()

    def _commands(self, settled: Settled) -> list[Buffer]:
        rows = hset(self.keys.rows, settled.merged)
        tail = indexes.mark_commands(self.keys, settled)
        tail += hdel(self.keys.rows, settled.gone)
        tail += indexes.write_commands(self.keys, settled)
        tail.append(pack("HSET", self.keys.meta, *shard_meta.difference(self._meta, self._after)))
        if len(settled.changed):
            kept = feed_length(len(settled.changed))
            entry = f"{self._after.feed}-0"
            tail.append(pack("XADD", self.keys.feed, "MAXLEN", "~", kept, entry, "k", settled.changed.tobytes()))
        tail.append(pack("INCR", self.keys.version))
        self._queued = len(rows) // 2 + len(tail)
        return [pack("MULTI"), *rows, b"".join([*tail, pack("EXEC")])]


def committed(wire: Wire, queued: int, place: str) -> bool:
    """Read the replies of MULTI, `queued` commands and EXEC: True if it ran, False if a watched key had changed."""
    replies: list[Any] = [wire.read() for _ in range(queued + 2)]
    done = wire.checked(replies)[-1]
    if done is None:
        return False
    try:
        wire.checked(done)
    except StoreError as e:
        # Redis doesn't undo the commands of an EXEC beside one that failed; only foreign data under our keys does this
        raise StoreMisconfigured(f"{place} is damaged, something else writes to its keys: {e}") from e
    return True


def update_meta(session: Session, keys: ShardKeys, place: str, old: ShardMeta, new: ShardMeta) -> bool:
    """Write what `new` has and `old` has not, on the session's wire that watches the version since `old` was read."""
    wire = session.shared(keys.version)
    change = shard_meta.difference(old, new)
    if not change:
        wire.call("UNWATCH")
        return True
    commands = [pack("HSET", keys.meta, *change), pack("INCR", keys.version)]
    if new.generation != old.generation:
        commands += begin_feed(keys, new.feed)
    wire.send([b"".join([pack("MULTI"), *commands, pack("EXEC")])])
    return committed(wire, len(commands), place)


def begin_feed(keys: ShardKeys, number: int) -> list[bytes]:
    """Commands that empty the feed and bring it to `number`: by an entry without keys, which wakes those that wait."""
    return [pack("DEL", keys.feed), pack("XADD", keys.feed, f"{number}-0", "k", b"")]


def watch_meta(session: Session, keys: ShardKeys) -> ShardMeta:
    """The whole meta, its version watched on the session's wire."""
    wire = session.shared(keys.version)
    return shard_meta.from_hash(wire.ask(pack("WATCH", keys.version), pack("HGETALL", keys.meta))[1])
