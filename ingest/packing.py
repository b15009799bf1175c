"""Events that wait to go out together, by partition. Pure: no Kafka, no clock of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PackLimits:
    """When a record goes out: at so many events, or before it outgrows so many bytes, or so long after its first."""

    events: int = 100
    bytes: int = 64 << 10
    linger_s: float = 0.012


@dataclass(slots=True)
class _Pack:
    since_s: float
    events: list[bytes] = field(default_factory=list)
    bytes: int = 0


class Packer:
    """Puts events together, in order within a partition. An event larger than `limits.bytes` goes out alone."""

    def __init__(self, limits: PackLimits) -> None:
        self._limits = limits
        self._packs: dict[int, _Pack] = {}

    def add(self, partition: int, events: Sequence[bytes], now_s: float) -> list[list[bytes]]:
        """Take them in; returns what is full, which is the caller's from then on."""
        full: list[list[bytes]] = []
        pack = self._packs.pop(partition, None) or _Pack(now_s)
        for event in events:
            size = len(event) + 1
            if pack.events and pack.bytes + size > self._limits.bytes:
                full.append(pack.events)
                pack = _Pack(now_s)
            pack.events.append(event)
            pack.bytes += size
            if len(pack.events) >= self._limits.events:
                full.append(pack.events)
                pack = _Pack(now_s)
        if pack.events:
            self._packs[partition] = pack
        return full

    def due(self, now_s: float) -> Iterator[tuple[int, list[bytes]]]:
        """Take out what has waited long enough: (partition, events)."""
        for partition in [p for p, pack in self._packs.items() if now_s - pack.since_s >= self._limits.linger_s]:
            yield partition, self._packs.pop(partition).events

    def wait_s(self, now_s: float) -> float | None:
        """Until something is due; None: nothing waits."""
        since_s = min((pack.since_s for pack in self._packs.values()), default=None)
        return None if since_s is None else max(0.0, since_s + self._limits.linger_s - now_s)

    def rest(self) -> Iterator[tuple[int, list[bytes]]]:
        """Take out everything."""
        while self._packs:
            partition, pack = self._packs.popitem()
            yield partition, pack.events
