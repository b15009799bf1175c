"""The module's backend of `EmbeddingStore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, get_args

from embedding_store.contract import (
    U64,
    Changes,
    Cursor,
    Flush,
    Outcome,
    ShardReply,
    ShardStatus,
    Source,
)
from embedding_store.flush_parts import by_shard, parts_of
from embedding_store.module_store.calls import Answer, Request, ask_shards
from embedding_store.module_store.declaration import declaration
from embedding_store.module_store.feed import read_changes
from embedding_store.module_store.flush_blob import FlushBlob
from embedding_store.module_store.lookups import lookups, parse_lookups
from embedding_store.module_store.rows_blob import WITH_STATE, WITHOUT_IDS, RowsReply, block_of
from embedding_store.module_store.shard_dump import export_module, import_module
from embedding_store.module_store.status import status_of
from embedding_store.module_store.waiting import tow_wait
from embedding_store.records import Block
from embedding_store.redis_store.backend import Backend, check_backend
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.registered import Declared, RegisteredStore, place_of
from embedding_store.redis_store.resp import Buffer, framed, pack
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.shard_dump import ShardExport
from embedding_store.redis_store.waiting import wait
from embedding_store.spec import TableSpec
from embedding_store.standing import Standings
from embedding_store.validation import checked_flush, checked_seek, checked_watch

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""By their numbers in the module's replies."""


class ModuleStore(RegisteredStore):
    """`EmbeddingStore` on Redis ≥ 7.0 or Valkey ≥ 8 with the module: one server, Sentinels or a Cluster. Thread-safe.

    A registered table's shard whose key the server has lost is one without rows and offsets, of generation 0: it is
    made again by the next call, and the owners of its sources find their offsets unset.
    """

    backend: ClassVar[Backend] = "module"

    def apply(self, table: str, flush: Flush) -> tuple[ShardReply, ...]:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        flush = checked_flush(spec, flush)
        blobs = [FlushBlob(spec, flush, part) for part in parts_of(spec, flush, gradients=False)]

        def request(shard: int) -> list[Buffer]:
            command, blob = framed(["TOW.APPLY", module_key(table, shard)], blobs[shard].size)
            blobs[shard].write(blob)
            return [command.data]

        answers = self._ask(table, range(spec.shards), request)
        return tuple(_reply(flush, answers[s].replies[0]) for s in range(spec.shards))

    def seek(self, table: str, shard: int, source: Source, expected: int | None, new: int, reason: str) -> None:
        """As the contract says."""
        spec = self.spec(table)
        checked_seek(spec, shard, source, new, reason)
        was = "-" if expected is None else expected
        command = pack("TOW.SEEK", module_key(table, shard), str(source), was, new, reason)
        self._ask(table, [shard], lambda _: [command])

    def status(self, table: str) -> tuple[ShardStatus, ...]:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        shards = range(spec.shards)
        answers = self._ask(table, shards, lambda s: [pack("TOW.INFO", module_key(table, s))], Wire.read)
        return tuple(status_of(answers[s].replies[0]) for s in shards)

    def changes(self, table: str, cursor: Cursor | None) -> Changes:
        """As the contract says. One round trip where few rows changed."""
        return read_changes(lambda shards, request: self._ask(table, shards, request), self.spec(table), cursor)

    def wait_for_changes(self, tables: Sequence[str], cursors: Sequence[Cursor], timeout_s: float) -> bool:
        """As the contract says. Occupies a connection of its own while it blocks."""
        checked_watch(tables, cursors)
        specs = [self.spec(table) for table in tables]
        # half the time-out of replies, within which a blocking command has to answer too
        longest_s = None if self._clustered else self._timeout_s / 2
        return routed(self._nodes, lambda s: wait(s, specs, cursors, timeout_s, module_key, tow_wait, longest_s))

    def _read(
        self, spec: TableSpec, keys: U64, *, with_state: bool = False, with_ids: bool = True
    ) -> tuple[Block, Standings]:
        flags = WITH_STATE * with_state | WITHOUT_IDS * (not with_ids)
        order, starts = by_shard(keys, spec.shards)
        ordered = keys[order]
        mine = [ordered[starts[s] : starts[s + 1]] for s in range(spec.shards)]
        shards = [s for s in range(spec.shards) if len(mine[s])]
        answers = self._ask(spec.name, shards, lambda s: lookups(spec, s, mine[s], flags))
        replies: list[RowsReply] = []
        for s in shards:
            replies += parse_lookups(spec, answers[s].replies, len(mine[s]), flags)
        return block_of(spec, replies, order, with_state=with_state)

    def _raise_shards(self, table: Declared, generation: int) -> None:
        spec = table.spec

        def request(shard: int) -> list[Buffer]:
            raised = pack("TOW.GENERATION", module_key(spec.name, shard), generation)
            return [_create(table, shard, generation), raised]

        ask_shards(self._nodes, spec.name, range(spec.shards), request)

    def _export(self, spec: TableSpec, shard: int) -> ShardExport:
        def ask(commands: list[bytes]) -> list[Any]:
            return self._ask(spec.name, [shard], lambda _: commands, Wire.read)[shard].replies

        return export_module(ask, spec.name, shard)

    def _import(self, session: Session, spec: TableSpec, shard: int, export: ShardExport, generation: int) -> None:
        import_module(session, spec.name, shard, place_of(spec.name, shard), export, generation)

    def _keys_of(self, spec: TableSpec) -> list[list[bytes]]:
        return [[module_key(spec.name, shard)] for shard in range(spec.shards)]

    def _ask(
        self, table: str, shards: Sequence[int], request: Request, read: Callable[[Wire], Any] = Wire.read_blobs
    ) -> dict[int, Answer]:
        def make(lost: Sequence[int]) -> None:
            check_backend(self._nodes, self.backend)
            declared = self._table(table)
            ask_shards(self._nodes, table, lost, lambda s: [_create(declared, s, 0)])

        return ask_shards(self._nodes, table, shards, request, read, make)


def _create(table: Declared, shard: int, generation: int) -> bytes:
    spec = table.spec
    return pack("TOW.CREATE", module_key(spec.name, shard), generation, *declaration(spec, table.document))


def _reply(flush: Flush, reply: Sequence[Any]) -> ShardReply:
    outcome, clock, *offsets = reply
    sources = (r.source for r in flush.ranges)
    stored = {source: offset for source, offset in zip(sources, offsets, strict=True) if offset is not None}
    return ShardReply(OUTCOMES[outcome], clock, stored)
