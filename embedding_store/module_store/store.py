"""The module's backend of `EmbeddingStore`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, get_args

from embedding_store.contract import (
    U64,
    Changes,
    Cursor,
    Flush,
    Histories,
    Outcome,
    Rows,
    ShardReply,
    ShardStatus,
    Source,
)
from embedding_store.flush_parts import parts_of
from embedding_store.module_store.calls import Answer, Place, Request, ask_shards
from embedding_store.module_store.declaration import declaration
from embedding_store.module_store.feed import read_changes
from embedding_store.module_store.flush_blob import FlushBlob
from embedding_store.module_store.placing import Placing
from embedding_store.module_store.reading import Reading
from embedding_store.module_store.refusals import asks_for_places
from embedding_store.module_store.shard_dump import export_module, import_module
from embedding_store.module_store.status import status_of
from embedding_store.module_store.waiting import tow_wait
from embedding_store.records import Block, histories_of, rows_of
from embedding_store.redis_store.backend import Backend, check_backend
from embedding_store.redis_store.client import Refusal, Wire
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.registered import Declared, RegisteredStore, place_of
from embedding_store.redis_store.resp import Buffer, framed, pack
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.shard_dump import ShardExport
from embedding_store.redis_store.waiting import wait
from embedding_store.settings import RedisSettings
from embedding_store.spec import TableSpec
from embedding_store.standing import Standings
from embedding_store.validation import checked_flush, checked_keys, checked_seek, checked_watch

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""By their numbers in the module's replies."""


class ModuleStore(RegisteredStore):
    """`EmbeddingStore` on Redis ≥ 7.0 or Valkey ≥ 8 with the module: one server, Sentinels or a Cluster. Thread-safe.

    A registered table's shard whose key the server has lost is one without rows and offsets, of generation 0: it is
    made again by the next call, and the owners of its sources find their offsets unset.
    """

    backend: ClassVar[Backend] = "module"

    def __init__(self, settings: RedisSettings) -> None:
        """Connect and check the server. Raises StoreMisconfigured, StoreUnavailable."""
        super().__init__(settings)
        self._placed = Placing()

    def apply(self, table: str, flush: Flush) -> tuple[ShardReply, ...]:
        """As the contract says. One round trip."""
        return self.apply_all({table: flush})[table]

    def apply_all(self, flushes: Mapping[str, Flush]) -> dict[str, tuple[ShardReply, ...]]:
        """As the contract says. One round trip; a second where a shard asks for places of own events."""
        checked: dict[str, Flush] = {}
        blobs: dict[Place, FlushBlob] = {}
        for table, given in flushes.items():
            spec = self.spec(table)
            checked[table] = flush = checked_flush(spec, given)
            blobs |= _blobs(spec, flush, own=bool(len(flush.forget)) or self._placed.due(table))

        def request(place: Place) -> list[Buffer]:
            command, blob = framed(["TOW.APPLY", module_key(*place)], blobs[place].size)
            blobs[place].write(blob)
            return [command.data]

        def again(place: Place, refusal: Refusal) -> bool:
            if not asks_for_places(refusal):
                return False
            self._placed.asked(place.table)
            blobs[place] = _blobs(self.spec(place.table), checked[place.table], own=True)[place]
            return True

        answers = self._ask(list(blobs), request, Wire.read, again)
        return {
            table: tuple(_reply(flush, answers[place].replies[0]) for place in blobs if place.table == table)
            for table, flush in checked.items()
        }

    def histories_and_rows(
        self, sequences: str, table: str, keys: U64, *, with_state: bool = False
    ) -> tuple[Histories, Rows]:
        """As the contract says. One round trip."""
        kept, rows = self.spec(sequences), self.spec(table)
        first = Reading(kept, checked_keys(kept, keys, "histories"), with_ids=False)
        second = Reading(rows, checked_keys(rows, keys, "lookup"), with_state=with_state, with_ids=False)
        (histories, _), (block, _) = self._read_all([first, second])
        return histories_of(histories), rows_of(block, with_state=with_state, with_ids=False)

    def seek(self, table: str, shard: int, source: Source, expected: int | None, new: int, reason: str) -> None:
        """As the contract says."""
        spec = self.spec(table)
        checked_seek(spec, shard, source, new, reason)
        was = "-" if expected is None else expected
        command = pack("TOW.SEEK", module_key(table, shard), str(source), was, new, reason)
        self._ask([Place(table, shard)], lambda _: [command])

    def status(self, table: str) -> tuple[ShardStatus, ...]:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        places = _places(spec)
        answers = self._ask(places, lambda place: [pack("TOW.INFO", module_key(*place))], Wire.read)
        return tuple(status_of(answers[place].replies[0]) for place in places)

    def changes(self, table: str, cursor: Cursor | None) -> Changes:
        """As the contract says. One round trip where few rows changed."""
        return read_changes(self._ask, self.spec(table), cursor)

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
        return self._read_all([Reading(spec, keys, with_state=with_state, with_ids=with_ids)])[0]

    def _read_all(self, readings: Sequence[Reading]) -> list[tuple[Block, Standings]]:
        """Of different tables, in one round trip."""
        of = {place: reading for reading in readings for place in reading.places}
        answers = self._ask(list(of), lambda place: of[place].commands(place))
        return [reading.block(answers) for reading in readings]

    def _raise_shards(self, table: Declared, generation: int) -> None:
        spec = table.spec

        def request(place: Place) -> list[Buffer]:
            raised = pack("TOW.GENERATION", module_key(*place), generation)
            return [_create(table, place.shard, generation), raised]

        ask_shards(self._nodes, _places(spec), request)

    def _export(self, spec: TableSpec, shard: int) -> ShardExport:
        place = Place(spec.name, shard)

        def ask(commands: list[bytes]) -> list[Any]:
            return self._ask([place], lambda _: commands, Wire.read)[place].replies

        return export_module(ask, spec.name, shard)

    def _import(self, session: Session, spec: TableSpec, shard: int, export: ShardExport, generation: int) -> None:
        import_module(session, spec.name, shard, place_of(spec.name, shard), export, generation)

    def _keys_of(self, spec: TableSpec) -> list[list[bytes]]:
        return [[module_key(spec.name, shard)] for shard in range(spec.shards)]

    def _ask(
        self,
        places: Sequence[Place],
        request: Request,
        read: Callable[[Wire], Any] = Wire.read_blobs,
        again: Callable[[Place, Refusal], bool] = lambda place, refusal: False,  # noqa: ARG005
    ) -> dict[Place, Answer]:
        def make(lost: Sequence[Place]) -> None:
            check_backend(self._nodes, self.backend)
            ask_shards(self._nodes, lost, lambda place: [_create(self._table(place.table), place.shard, 0)])

        return ask_shards(self._nodes, places, request, read, make, again)


def _blobs(spec: TableSpec, flush: Flush, *, own: bool) -> dict[Place, FlushBlob]:
    parts = parts_of(spec, flush, gradients=False, own=own)
    return {Place(spec.name, shard): FlushBlob(spec, flush, part) for shard, part in enumerate(parts)}


def _places(spec: TableSpec) -> list[Place]:
    return [Place(spec.name, shard) for shard in range(spec.shards)]


def _create(table: Declared, shard: int, generation: int) -> bytes:
    spec = table.spec
    return pack("TOW.CREATE", module_key(spec.name, shard), generation, *declaration(spec, table.document))


def _reply(flush: Flush, reply: Sequence[Any]) -> ShardReply:
    outcome, clock, *offsets = reply
    sources = (r.source for r in flush.ranges)
    stored = {source: offset for source, offset in zip(sources, offsets, strict=True) if offset is not None}
    return ShardReply(OUTCOMES[outcome], clock, stored)
