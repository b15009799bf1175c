"""What both backends on Redis have in common: the registry of tables, the generation, the model, telling of rows."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from embedding_store import exclusions
from embedding_store.admission import taken_by_others
from embedding_store.contract import U32, U64, Bool, Histories, Range, Rows, ShardStatus, Source, Values
from embedding_store.declarations import check_same, from_json, to_json
from embedding_store.errors import UnknownTable
from embedding_store.records import Block, histories_of, rows_of, values_of
from embedding_store.redis_store.backend import Backend, check_backend, claim_backend
from embedding_store.redis_store.keys import EXCLUDED, GENERATION, MODEL, RESTORING, TABLES, spec_key
from embedding_store.redis_store.protocol import check_protocol, claim_protocol
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.restoring import refuse
from embedding_store.redis_store.server import parse_info
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.shard_dump import ShardExport
from embedding_store.redis_store.topology import Nodes
from embedding_store.settings import RedisSettings
from embedding_store.spec import TableSpec
from embedding_store.standing import Standings
from embedding_store.validation import checked_identities, checked_keys
from native.ragged import Ragged


class Declared(NamedTuple):
    """A registered table."""

    spec: TableSpec
    document: bytes  # as it is stored, perhaps by another release


class RegisteredStore(ABC):
    """The half of `EmbeddingStore` that does not depend on how rows are kept. Thread-safe.

    Nothing is retried here except what lost a race or a Cluster slot: after StoreUnavailable only the caller knows
    whether its state still fits, so it reads the offsets and decides.
    """

    backend: ClassVar[Backend]

    def __init__(self, settings: RedisSettings) -> None:
        """Connect and check the server. Raises StoreMisconfigured, StoreUnavailable."""
        self._nodes = Nodes(settings)
        self._timeout_s = settings.timeout_s
        self._clustered = settings.cluster
        self._declared: dict[str, Declared] = {}
        self._lock = threading.Lock()
        routed(self._nodes, lambda s: [s.node(node) for node in self._nodes.masters()])
        check_backend(self._nodes, self.backend)
        check_protocol(self._nodes)

    def create(self, spec: TableSpec) -> None:
        """As the contract says. Raises StoreBeingRestored too."""
        self.generation()  # refuses while the store is being restored, before anything is declared
        claim_backend(self._nodes, self.backend)
        claim_protocol(self._nodes)
        key = spec_key(spec.name)
        given = to_json(spec)
        stored = routed(self._nodes, lambda s: s.shared(key).ask(pack("SET", key, given, "NX"), pack("GET", key))[1])
        check_same(from_json(stored, spec.name), spec)
        routed(self._nodes, lambda s: s.shared(TABLES).call("SADD", TABLES, spec.name))
        # A shard is born at the store's generation, read before and after, so that a rise in between isn't missed.
        generation = -1
        while generation != self.generation():
            generation = self.generation()
            self._raise_shards(Declared(spec, stored), generation)

    def spec(self, table: str) -> TableSpec:
        """As the contract says."""
        return self._table(table).spec

    def generation(self) -> int:
        """As the contract says."""
        asked = pack("GET", GENERATION), pack("GET", RESTORING)
        generation, mark = routed(self._nodes, lambda s: s.shared(GENERATION).ask(*asked))
        refuse(mark)
        return int(generation or 0)

    def raise_generation(self) -> int:
        """As the contract says. Repeat it if it is interrupted."""
        generation, tables = routed(
            self._nodes, lambda s: s.shared(GENERATION).ask(pack("INCR", GENERATION), pack("SMEMBERS", TABLES))
        )
        for table in tables:
            self._raise_shards(self._table(table.decode()), generation)
        return int(generation)

    def lookup(self, table: str, keys: U64, *, with_state: bool = False, with_ids: bool = True) -> Rows:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        block, _ = self._read(spec, checked_keys(spec, keys, "lookup"), with_state=with_state, with_ids=with_ids)
        return rows_of(block, with_state=with_state, with_ids=with_ids)

    def histories(self, table: str, keys: U64) -> Histories:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        block, _ = self._read(spec, checked_keys(spec, keys, "histories"), with_ids=False)
        return histories_of(block)

    def histories_and_rows(
        self, sequences: str, table: str, keys: U64, *, with_state: bool = False
    ) -> tuple[Histories, Rows]:
        """As the contract says. Two round trips."""
        return self.histories(sequences, keys), self.lookup(table, keys, with_state=with_state, with_ids=False)

    def values(self, table: str, keys: U64) -> Values:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        block, _ = self._read(spec, checked_keys(spec, keys, "values"))
        return values_of(block)

    def taken(self, table: str, keys: U64, checks: U32, ids: Ragged) -> Bool:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        keys, checks, ids = checked_identities(spec, keys, checks, ids)
        block, standings = self._read(spec, keys)
        return taken_by_others(block, standings, checks, ids)

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

    def exclude(self, ranges: Sequence[Range]) -> None:
        """As the contract says."""
        document = exclusions.to_json(exclusions.joined(ranges))
        routed(self._nodes, lambda s: s.shared(EXCLUDED).call("SET", EXCLUDED, document))

    def excluded(self) -> tuple[Range, ...]:
        """As the contract says."""
        return exclusions.from_json(routed(self._nodes, lambda s: s.shared(EXCLUDED).call("GET", EXCLUDED)))

    def tables(self) -> dict[str, bytes]:
        """Registered tables and their declarations, as they are stored."""
        names = sorted(name.decode() for name in self._call(TABLES, "SMEMBERS"))
        documents = {name: self._call(spec_key(name), "GET") for name in names}
        return {name: document for name, document in documents.items() if document is not None}

    @property
    def nodes(self) -> Nodes:
        """The servers, for snapshots: they handle keys that no call of the contract names."""
        return self._nodes

    def declare(self, documents: Mapping[str, bytes]) -> None:
        """Make the registry hold exactly these tables; rows of the others are dropped. For a restore under its mark."""
        for name in sorted({name.decode() for name in self._call(TABLES, "SMEMBERS")} - set(documents)):
            document = self._call(spec_key(name), "GET")
            for first, *others in self._keys_of(from_json(document, name)) if document else ():
                self._call(first, "DEL", *others)
            self._call(spec_key(name), "DEL")
            self._call(TABLES, "SREM", name)
        with self._lock:
            self._declared.clear()
        claim_backend(self._nodes, self.backend)
        claim_protocol(self._nodes)
        for name, document in documents.items():
            self._call(spec_key(name), "SET", document)
            self._call(TABLES, "SADD", name)

    def clear(self) -> None:
        """Remove all tables, with their rows, and the published model: for who was lent an empty store."""
        self.declare({})
        routed(self._nodes, lambda s: s.shared(MODEL).call("DEL", MODEL))

    def fence(self, lowest: int) -> int:
        """For a restore under its mark: a new generation, above `lowest`, at which shards are to be put back.

        Those that are there are raised to the one before it: no flush reaches them, whatever generation it carries.
        And a reader of them must scan what is put back.
        """

        def choose(session: Session) -> int | None:
            wire = session.shared(GENERATION)
            stored = int(wire.ask(pack("WATCH", GENERATION), pack("GET", GENERATION))[1] or 0)
            chosen = max(stored, lowest) + 2
            done = wire.ask(pack("MULTI"), pack("SET", GENERATION, chosen), pack("EXEC"))[-1]
            return chosen if done is not None else None

        generation = None
        while generation is None:
            generation = routed(self._nodes, choose)
        for table in self.tables():
            self._raise_shards(self._table(table), generation - 1)
        return generation

    def export_shard(self, table: str, shard: int) -> ShardExport:
        """The shard in raw form, as of one moment. Raises StoreUnavailable."""
        return self._export(self.spec(table), shard)

    def import_shard(self, table: str, shard: int, export: ShardExport, generation: int) -> None:
        """Put a shard back, atomically, at a generation above its own. Raises StoreFull, StoreUnavailable."""
        routed(self._nodes, lambda s: self._import(s, self.spec(table), shard, export, generation))

    def close(self) -> None:
        """As the contract says."""
        self._nodes.drop()

    def _call(self, key: bytes, command: str, *arguments: bytes | str) -> Any:
        """The reply to a command on one key, or on keys of its slot."""
        return routed(self._nodes, lambda s: s.shared(key).call(command, key, *arguments))

    @abstractmethod
    def seek(self, table: str, shard: int, source: Source, expected: int | None, new: int, reason: str) -> None:
        """As the contract says."""

    @abstractmethod
    def status(self, table: str) -> tuple[ShardStatus, ...]:
        """As the contract says."""

    @abstractmethod
    def _raise_shards(self, table: Declared, generation: int) -> None:
        """Raise every shard to `generation` at least; a shard that is not there is made."""

    @abstractmethod
    def _export(self, spec: TableSpec, shard: int) -> ShardExport:
        """As `export_shard`."""

    @abstractmethod
    def _import(self, session: Session, spec: TableSpec, shard: int, export: ShardExport, generation: int) -> None:
        """As `import_shard`."""

    @abstractmethod
    def _keys_of(self, spec: TableSpec) -> list[list[bytes]]:
        """All keys of each shard."""

    @abstractmethod
    def _read(
        self, spec: TableSpec, keys: U64, *, with_state: bool = False, with_ids: bool = True
    ) -> tuple[Block, Standings]:
        """Rows of `keys` (n,), decayed to their shards' clocks, and how each key stands (n,). Pure."""

    def _table(self, name: str) -> Declared:
        with self._lock:
            known = self._declared.get(name)
        if known is not None:
            return known
        key = spec_key(name)
        stored = routed(self._nodes, lambda s: s.shared(key).call("GET", key))
        if stored is None:
            raise UnknownTable(f"no table '{name}' in this store; create() it first")
        check_backend(self._nodes, self.backend)  # it may have been empty when it was opened
        declared = Declared(from_json(stored, name), stored)
        with self._lock:
            return self._declared.setdefault(name, declared)


def place_of(table: str, shard: int) -> str:
    """A shard's name in messages."""
    return f"shard {shard} of table '{table}'"
