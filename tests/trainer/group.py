"""A topic and a consumer group in memory: real sources, cut from one log, whose partitions are given and taken."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings


class Member(ListedSource):
    """One member's source. It owns what it was last told, which may be what another owns by now."""

    def __init__(self, batch_events: int, produced_ms: int) -> None:
        super().__init__({}, IngestSettings(batch_events=batch_events), produced_ms)
        self._told: dict[Partition, list[bytes | None]] = {}

    def tell(self, logs: dict[Partition, list[bytes | None]]) -> None:
        """These are yours from your next `assignment()` on; the next poll raises AssignmentLost."""
        self._told = logs
        self.lose()

    def assignment(self, timeout_s: float) -> frozenset[Partition]:
        """What it was told, from the earliest record on; logs grow while they are read."""
        self._records = self._told
        self._position = dict.fromkeys(self._records, 0)
        self.change(frozenset(self._records))
        return super().assignment(timeout_s)

    def stay(self, timeout_s: float) -> None:
        """No time passes here."""


@dataclass
class Topic:
    """Logs of one incarnation; None is a transaction's marker or an aborted record."""

    identity: str
    partitions: int
    logs: dict[Partition, list[bytes | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.logs = {Partition(self.identity, n): [] for n in range(self.partitions)}

    def of(self, numbers: list[int]) -> dict[Partition, list[bytes | None]]:
        """The logs themselves, not copies."""
        return {p: log for p, log in self.logs.items() if p.number in numbers}
