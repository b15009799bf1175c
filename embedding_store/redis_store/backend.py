"""Which backend a store on Redis is kept by: rows in stock data types, or in the module's. The store says so itself.

`towline:{store}:backend` is set once, with the first table. A store that has tables and no such key is older than the
module, and stock.
"""

from __future__ import annotations

import logging
from typing import Literal

from embedding_store.errors import StoreMisconfigured, StoreUnavailable
from embedding_store.redis_store.client import MODULE_REMEDY, Address
from embedding_store.redis_store.keys import BACKEND, TABLES
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.topology import Nodes

log = logging.getLogger(__name__)

Backend = Literal["stock", "module"]


def chosen(nodes: Nodes) -> Backend:
    """For backend `auto`: the stored one; in a new store `module`, if every master has it loaded, else `stock`.

    Raises StoreMisconfigured, StoreUnavailable.
    """
    stored = routed(nodes, _stored)
    if stored is not None:
        return stored
    try:
        without = routed(nodes, lambda s: _without_module(s, nodes.masters()))
        reason = f"{_named(without)} without the module loaded"
    except StoreMisconfigured as e:  # an account that may not ask, which the stock backend doesn't need
        without, reason = nodes.masters(), str(e)
    if not without:
        return "module"
    log.info("a new store is kept by the stock backend: %s; for the module, %s", reason, MODULE_REMEDY)
    return "stock"


def check_backend(nodes: Nodes, backend: Backend) -> None:
    """Raises StoreMisconfigured, with the remedy, unless the store is kept by `backend` and its masters serve that."""
    stored = routed(nodes, _stored)
    if stored is not None:
        _check_same(stored, backend)
    if backend == "module":
        without = routed(nodes, lambda s: _without_module(s, nodes.masters()))
        if without:
            kept = "the store is kept by the module" if stored else "redis.backend is module"
            raise StoreMisconfigured(f"{kept}, and {_named(without)} without it loaded: {MODULE_REMEDY}")


def claim_backend(nodes: Nodes, backend: Backend) -> None:
    """Before the first table: note who keeps the store. Raises StoreMisconfigured if another does."""

    def claim(session: Session) -> Backend | None:
        if _stored(session) is None:
            session.shared(BACKEND).call("SET", BACKEND, backend, "NX")
        return _stored(session)

    stored = routed(nodes, claim)
    if stored is None:
        raise StoreUnavailable("the store was emptied while a table was created; retry")
    _check_same(stored, backend)


def _stored(session: Session) -> Backend | None:
    kept, tables = session.shared(BACKEND).ask(pack("GET", BACKEND), pack("SCARD", TABLES))
    if kept is None:
        return "stock" if tables else None
    for backend in ("stock", "module"):
        if kept.decode() == backend:
            return backend
    raise StoreMisconfigured(
        f"the store is kept by backend '{kept.decode()}', which this release does not know; use a newer one"
    )


def _without_module(session: Session, masters: list[Address]) -> list[Address]:
    """Masters that don't know its commands. COMMAND needs no rights to administer, where MODULE LIST does."""
    wires = [session.node(node) for node in masters]
    for wire in wires:
        wire.send([pack("COMMAND", "INFO", "TOW.APPLY")])
    replies = [wire.checked([wire.read()])[0] for wire in wires]
    return [node for node, reply in zip(masters, replies, strict=True) if not any(reply)]


def _check_same(stored: Backend, backend: Backend) -> None:
    if stored != backend:
        raise StoreMisconfigured(
            f"the store is kept by the {stored} backend, it was opened as {backend}: set redis.backend to {stored} or "
            "auto, or use another server"
        )


def _named(nodes: list[Address]) -> str:
    return f"{', '.join(map(str, nodes))} {'is' if len(nodes) == 1 else 'are'}"
