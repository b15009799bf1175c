"""What both backends on Redis have in common: the registry of tables, the generation, the model, telling of rows."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from embedding_store.admission import taken_by_others
from embedding_store.contract import U32, U64, Bool, Histories, Rows, Values
from embedding_store.declarations import check_same, from_json, to_json
from embedding_store.errors import UnknownTable
from embedding_store.records import Block, histories_of, rows_of, values_of
from embedding_store.redis_store.backend import Backend, check_backend, claim_backend
from embedding_store.redis_store.keys import GENERATION, MODEL, TABLES, spec_key
from embedding_store.redis_store.protocol import check_protocol, claim_protocol
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.server import parse_info
from embedding_store.redis_store.session import Session, routed
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
        """As the contract says."""
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
        return int(routed(self._nodes, lambda s: s.shared(GENERATION).call("GET", GENERATION)) or 0)

    def raise_generation(self) -> int:
        """As the contract says. Repeat it if it is interrupted."""
        generation, tables = routed(
            self._nodes, lambda s: s.shared(GENERATION).ask(pack("INCR", GENERATION), pack("SMEMBERS", TABLES))
        )
        for table in tables:
            self._raise_shards(self._table(table.decode()), generation)
        return int(generation)

    def lookup(self, table: str, keys: U64, *, with_state: bool = False) -> Rows:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        block, _ = self._read(spec, checked_keys(spec, keys, "lookup"), with_state=with_state)
        return rows_of(block, with_state=with_state)

    def histories(self, table: str, keys: U64) -> Histories:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        block, _ = self._read(spec, checked_keys(spec, keys, "histories"), with_state=False)
        return histories_of(block)

    def values(self, table: str, keys: U64) -> Values:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        block, _ = self._read(spec, checked_keys(spec, keys, "values"), with_state=False)
        return values_of(block)

    def taken(self, table: str, keys: U64, checks: U32, ids: Ragged) -> Bool:
        """As the contract says. One round trip."""
        spec = self.spec(table)
        keys, checks, ids = checked_identities(spec, keys, checks, ids)
        block, standings = self._read(spec, keys, with_state=False)
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

    def close(self) -> None:
        """As the contract says."""
        self._nodes.drop()

    @abstractmethod
    def _raise_shards(self, table: Declared, generation: int) -> None:
        """Raise every shard to `generation` at least; a shard that is not there is made."""

    @abstractmethod
    def _read(self, spec: TableSpec, keys: U64, *, with_state: bool) -> tuple[Block, Standings]:
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
