"""Which protocol a store's writers speak: what flushes, offsets and records mean. The store says so itself.

`towline:{store}:protocol` is set once, with the first table. Releases that mean something else by the same calls have
another number, and refuse each other's stores: a trainer of one that goes on beside those of the other would break what
the protocol guarantees, without a conflict. A store that has tables and no such key is of protocol 1.
"""

from __future__ import annotations

from embedding_store.errors import StoreMisconfigured
from embedding_store.redis_store.keys import PROTOCOL, TABLES
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.topology import Nodes

OWN = 1
"""Raised with every change of what the protocol's parts mean."""


def check_protocol(nodes: Nodes) -> None:
    """Raises StoreMisconfigured, with the remedy, if the store's writers speak another protocol; StoreUnavailable."""
    stored = routed(nodes, _stored)
    if stored is not None and stored != OWN:
        release, remedy = (
            ("a newer", "use that release here too") if stored > OWN else ("an older", "use another store")
        )
        raise StoreMisconfigured(
            f"the store is written by {release} release: its protocol is {stored}, this one's is {OWN}; {remedy}"
        )


def claim_protocol(nodes: Nodes) -> None:
    """Before the first table: note what this release speaks. Raises as `check_protocol`."""
    routed(nodes, lambda s: s.shared(PROTOCOL).call("SET", PROTOCOL, OWN, "NX"))
    check_protocol(nodes)


def _stored(session: Session) -> int | None:
    given, tables = session.shared(PROTOCOL).ask(pack("GET", PROTOCOL), pack("SCARD", TABLES))
    if given is None:
        return 1 if tables else None
    return int(given)
