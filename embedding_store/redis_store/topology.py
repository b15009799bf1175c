"""Which node serves a key, and the idle connections to each node."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Protocol

from embedding_store.errors import StoreMisconfigured, StoreUnavailable
from embedding_store.redis_store.client import Address, Wire, address_of, slot_of
from embedding_store.redis_store.server import admit
from embedding_store.settings import RedisSettings

SLOTS = 16_384


class Directory(Protocol):
    """Where the masters are. Not thread-safe; `Nodes` serializes."""

    def locate(self) -> dict[Address, list[tuple[int, int]]]:
        """Masters and the slots [first, last] that each serves. Raises StoreUnavailable, StoreMisconfigured."""


class Fixed:
    """One server at a known address."""

    def __init__(self, settings: RedisSettings) -> None:
        self._address = address_of(settings.url)

    def locate(self) -> dict[Address, list[tuple[int, int]]]:
        """The one server."""
        return {self._address: [(0, SLOTS - 1)]}


class Sentinels:
    """The master that Sentinels name."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._sentinels = [address_of(f"redis://{sentinel}") for sentinel in settings.sentinels]

    def locate(self) -> dict[Address, list[tuple[int, int]]]:
        """The answer of the first Sentinel that gives one."""
        faults = []
        for sentinel in self._sentinels:
            try:
                wire = Wire(self._settings, sentinel, sentinel=True)
                try:
                    reply = wire.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._settings.sentinel_service)
                finally:
                    wire.close()
            except StoreUnavailable as e:
                faults.append(str(e))
                continue
            if reply:
                return {Address(reply[0].decode(), int(reply[1])): [(0, SLOTS - 1)]}
            faults.append(f"{sentinel} knows no master '{self._settings.sentinel_service}'")
        raise StoreUnavailable(f"no Sentinel names a master: {'; '.join(faults)}")


class Cluster:
    """The masters of a Redis Cluster, from any node of it."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._known: list[Address] = [address_of(settings.url)]

    def locate(self) -> dict[Address, list[tuple[int, int]]]:
        """CLUSTER SLOTS of the first known node that answers."""
        faults = []
        for node in self._known:
            try:
                wire = Wire(self._settings, node)
                try:
                    reply = wire.call("CLUSTER", "SLOTS")
                finally:
                    wire.close()
            except StoreUnavailable as e:
                faults.append(str(e))
                continue
            masters: dict[Address, list[tuple[int, int]]] = {}
            for first, last, master, *_ in reply:
                # a node that doesn't know its own name answers with an empty one: it is the node asked
                address = Address(master[0].decode() if master[0] else node.host, int(master[1]))
                masters.setdefault(address, []).append((first, last))
            if sum(last - first + 1 for slots in masters.values() for first, last in slots) == SLOTS:
                self._known = [*masters, *(k for k in self._known if k not in masters)]
                return masters
            faults.append(f"{node} knows owners of only some slots")
        raise StoreUnavailable(f"no node of the cluster answers: {'; '.join(faults)}")


def directory(settings: RedisSettings) -> Directory:
    """As the settings say. Raises StoreMisconfigured if they contradict each other."""
    if settings.cluster and settings.sentinels:
        raise StoreMisconfigured("redis.cluster and redis.sentinels exclude each other")
    if settings.sentinels:
        return Sentinels(settings)
    if not settings.url:
        raise StoreMisconfigured("redis.url is empty: name a server, or let `towline up` start one")
    return Cluster(settings) if settings.cluster else Fixed(settings)


class Nodes:
    """Connections by node. Thread-safe. A wire is one caller's from `take` to `give`."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._directory = directory(settings)
        self._lock = threading.Lock()
        self._owners: list[tuple[int, int, Address]] = []  # (first slot, last slot, node)
        self._idle: dict[Address, list[Wire]] = {}
        self._era = 0  # counts drops: a wire of an earlier era is not taken back
        self._eras: dict[Wire, int] = {}
        self._pid = os.getpid()

    def owner(self, key: bytes) -> Address:
        """The node that serves a key."""
        with self._lock:
            owners = self._located()
        if len(owners) == 1:
            return owners[0][2]
        slot = slot_of(key)
        return next(node for first, last, node in owners if first <= slot <= last)

    def masters(self) -> list[Address]:
        """All nodes, in the order of their slots."""
        with self._lock:
            return list(dict.fromkeys(node for _, _, node in self._located()))

    def take(self, node: Address) -> Wire:
        """An idle wire to the node, or a new one that has been admitted."""
        with self._lock:
            if self._pid != os.getpid():  # after fork the sockets are the parent's
                self._idle, self._eras, self._pid = {}, {}, os.getpid()
            era = self._era
            idle = self._idle.get(node, [])
            wire = idle.pop() if idle else None
        while wire is not None and wire.stale():
            self._discard(wire)
            with self._lock:
                wire = idle.pop() if idle else None
        if wire is None:
            wire = Wire(self._settings, node)
            try:
                admit(wire)
            except BaseException:
                wire.close()
                raise
            with self._lock:
                self._eras[wire] = era
        return wire

    def give(self, wire: Wire) -> None:
        """Take back a wire all of whose replies were read and that watches nothing."""
        with self._lock:
            if self._eras.get(wire) == self._era:
                self._idle.setdefault(wire.address, []).append(wire)
                return
        self._discard(wire)

    def discard(self, wires: Iterable[Wire]) -> None:
        """Close wires whose state is not known."""
        for wire in wires:
            self._discard(wire)

    def drop(self) -> None:
        """Forget every connection and who serves what: after a failure the addresses are resolved again."""
        with self._lock:
            idle = [wire for wires in self._idle.values() for wire in wires]
            for wires in self._idle.values():
                wires.clear()  # a `take` under way holds the list
            self._owners = []
            self._era += 1
        self.discard(idle)

    def _discard(self, wire: Wire) -> None:
        with self._lock:
            self._eras.pop(wire, None)
        wire.close()

    def _located(self) -> list[tuple[int, int, Address]]:
        if not self._owners:
            self._owners = sorted(
                (first, last, node) for node, slots in self._directory.locate().items() for first, last in slots
            )
        return self._owners
