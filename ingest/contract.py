"""What a trainer asks of a stream. `ingest.kafka_source` is the real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ingest.columns import MicroBatch, Partition


class IngestError(Exception):
    """Root of the room's errors.

    IngestError
    ├── StreamUnavailable   the broker is away or refuses for now: retry with back-off
    ├── StreamMisconfigured a compacted topic, a missing topic that may not be created, refused credentials
    └── AssignmentLost      the partitions were revoked: drop local state, read offsets again
        ├── AssignmentChanged   some were given or taken, and the rest goes on where it is
        └── OffsetsLost         retention deleted records before they were read
    """


class StreamUnavailable(IngestError):
    """The broker can't be reached or refuses for now."""


class StreamMisconfigured(IngestError):
    """The topic or the client's configuration would break a guarantee, or was refused."""


class AssignmentLost(IngestError):
    """Partitions were given or taken since the last `assignment()`: drop local state, read offsets again."""


class AssignmentChanged(AssignmentLost):
    """Some partitions were given or taken; what was delivered of those that stay stands, and their positions do.

    Raised before the group is told that the taken ones are let go: what is pending of them may still be applied, then
    `assignment()` accepts the change and keeps the positions of the partitions that stay. Or drop everything, as for
    any `AssignmentLost`.
    """


class OffsetsLost(AssignmentLost):
    """Records [position, earliest) of the partition fell out of retention: alarm, seek to `earliest`, count them."""

    def __init__(self, partition: Partition, position: int, earliest: int) -> None:
        super().__init__(
            f"{earliest - position} records of partition {partition.number} of topic {partition.topic_id} fell out of "
            f"retention: {position} is wanted, {earliest} is the earliest kept; keep records longer or add workers"
        )
        self.partition = partition
        self.position = position
        self.earliest = earliest

    @property
    def records(self) -> int:
        """How many are gone."""
        return self.earliest - self.position


class EventSource(Protocol):
    """A member of a consumer group that hands out micro-batches of decoded events. Not thread-safe."""

    def assignment(self, timeout_s: float) -> frozenset[Partition]:
        """Partitions this member owns, waiting up to `timeout_s` for the first; accepts any rebalance up to now.

        Partitions that were owned before and were not lost in between keep their positions; the others are to be
        seeked.
        """

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """(earliest offset still kept, end offset) of an owned partition.

        The end is below the position where the log was cut: records that were read are no longer there.
        """

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue from `offset`; anything buffered of the partition is dropped."""

    def pause(self, partitions: frozenset[Partition]) -> None:
        """Deliver nothing of exactly these partitions from now on (a later call replaces the set)."""

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        """The next micro-batch by count or deadline; None when nothing came within the deadline.

        No range crosses `stop_at[partition]`. Events that can't be used are handed to the dead-letter producer.
        Raises AssignmentLost (OffsetsLost if it was retention), StreamUnavailable.
        """

    def stay(self, timeout_s: float) -> None:
        """Let `timeout_s` seconds pass as a member of the group that delivers nothing: whatever downstream is away.

        All partitions are held meanwhile, and go on with the next poll. Never raises: a rebalance, or a broker that is
        away, is told by the next call.
        """

    def dead_letter(self, batch: MicroBatch, rows: list[int], reason: str) -> None:
        """Send events that the store refused to the dead letters too."""

    def quarantine(self, batch: MicroBatch, reason: str) -> None:
        """Send a dead letter per partition that names the batch's range: its events count and are not learned from."""

    def flush_dead_letters(self) -> None:
        """Return once every dead letter handed out so far is acknowledged by the broker. At least once."""

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Report positions to the group, for lag displays only. Never raises for a lost assignment."""

    def lag(self) -> int:
        """Records between the positions and the ends of the owned partitions, as last seen."""

    def close(self) -> None:
        """Leave without waiting for the session to expire. Idempotent."""
