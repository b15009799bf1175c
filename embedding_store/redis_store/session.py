"""The wires that one call uses, and what becomes of them when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from embedding_store.errors import StoreFull, StoreUnavailable
from embedding_store.redis_store.client import Address, Moved, Wire
from embedding_store.redis_store.topology import Nodes

REROUTES = 8
T = TypeVar("T")


class Session:
    """A call's wires. On success they go back to the pool; after any exception they are closed, never reused.

    After StoreUnavailable the whole pool is dropped: fail-over leaves every connection pointing at the wrong server.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._shared: dict[Address, Wire] = {}
        self._own: list[Wire] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        wires = [*self._shared.values(), *self._own]
        if kind is None:
            for wire in wires:
                self._nodes.give(wire)
            return
        self._nodes.discard(wires)
        if isinstance(error, StoreUnavailable) and not isinstance(error, StoreFull):
            self._nodes.drop()

    def shared(self, key: bytes) -> Wire:
        """The session's one wire to the node that serves the key."""
        return self.node(self._nodes.owner(key))

    def node(self, address: Address) -> Wire:
        """The session's one wire to a node."""
        if address not in self._shared:
            self._shared[address] = self._nodes.take(address)
        return self._shared[address]

    def own(self, key: bytes) -> Wire:
        """A wire of its own to the node that serves the key: WATCH is a state of the connection."""
        wire = self._nodes.take(self._nodes.owner(key))
        self._own.append(wire)
        return wire


def routed(nodes: Nodes, call: Callable[[Session], T]) -> T:
    """Run a call that is safe to repeat; when a Cluster slot has moved, route it again. Raises StoreUnavailable."""
    for _ in range(REROUTES):
        try:
            with Session(nodes) as session:
                return call(session)
        except Moved:
            continue
    raise StoreUnavailable(f"the cluster's slots moved {REROUTES} times during one call; retry")


def table_run(runs: Sequence[str]) -> str:
    """Identity of the server runs (one each) behind a table's shards: one id, or one per shard where they differ."""
    return runs[0] if len(set(runs)) == 1 else "|".join(runs)
