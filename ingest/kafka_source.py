"""Events from Kafka, as the trainer asks for them: `kafka_member` fetches, `backlog` cuts, `batch_reader` decodes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ingest.backlog import Backlog, Cut
from ingest.batch_reader import BatchReader, ReadCounters
from ingest.columns import MicroBatch, Partition
from ingest.contract import AssignmentLost, OffsetsLost, StreamMisconfigured, StreamUnavailable
from ingest.dead_letters import DeadLetters
from ingest.kafka_member import GroupMember, NotOwned, PositionGone
from ingest.kafka_topics import prepare_topics
from ingest.settings import IngestSettings, KafkaSettings

log = logging.getLogger(__name__)

_IDLE_S = 0.1  # a poll without records returns after this, or after batch_wait_ms if that is longer
_CHECK_EVERY_S = 3.0
_MAX_SILENT_CHECKS = 3
_CONNECT_ATTEMPTS = 3


@dataclass(slots=True)
class SourceCounters:
    """What befell the source since it was made."""

    rebalances: int = 0  # assignments accepted
    records_lost_to_retention: int = 0
    consumers_restarted: int = 0


class KafkaSource:
    """`EventSource` over one topic, as one member of a consumer group.

    Positions are the caller's: partitions start at the earliest record kept, and the caller seeks. With `instance`, a
    name unique in the group and the same after a restart, a worker that comes back within `session_timeout_ms` gets its
    partitions back without a rebalance.
    """

    def __init__(
        self, kafka: KafkaSettings, ingest: IngestSettings, instance: str | None = None, *, stall_s: float = 30.0
    ) -> None:
        """Create the topics where missing and connect. Raises StreamUnavailable, StreamMisconfigured.

        `stall_s`: the consumer is made anew when there are records but none came for so long.
        """
        self._kafka = kafka
        self._settings = ingest
        self._instance = instance or None
        self._stall_s = stall_s
        self._letters = DeadLetters(kafka)
        self._reader = BatchReader(kafka.topic, ingest, self._letters.send)
        self._backlog = Backlog(self._reader.count)
        self._owned: dict[int, Partition] = {}
        self._paused: frozenset[int] = frozenset()
        self._accepted = -1  # the member's rebalances when its assignment was last read
        self._lost = "the consumer is new"  # why the assignment must be read again; empty if it stands
        self._ends: dict[int, int] = {}
        self._progress_s: dict[int, float] = {}
        self._checked_s = time.monotonic()
        self._silent_checks = 0
        self.counters = SourceCounters()
        self._max_message_bytes = max(prepare_topics(kafka).max_message_bytes, ingest.max_record_bytes)
        self._member: GroupMember | None = None
        self._connected()

    def assignment(self, timeout_s: float) -> frozenset[Partition]:
        """See `EventSource`. After a rebalance every partition starts at its earliest record: seek.

        Raises StreamUnavailable, StreamMisconfigured.
        """
        deadline = time.monotonic() + timeout_s
        member = self._connected()
        while self._lost or member.rebalances != self._accepted:
            rebalances = member.rebalances
            numbers = member.join(max(0.0, deadline - time.monotonic()))
            if numbers and self._accept(member, numbers, rebalances):
                break
            if time.monotonic() >= deadline:
                return frozenset()
        return frozenset(self._owned.values())

    def _accept(self, member: GroupMember, numbers: Collection[int], rebalances: int) -> bool:
        """Start over with these partitions; False if a rebalance got in between."""
        identity = member.topic_id()
        earliest = member.earliest(numbers)
        try:
            for number, offset in earliest.items():
                member.seek(number, offset)
        except NotOwned:
            return False
        if member.rebalances != rebalances:
            return False
        self._backlog.clear()
        self._owned = {number: Partition(identity, number) for number in sorted(earliest)}
        self._progress_s = dict.fromkeys(earliest, time.monotonic())
        for number, offset in earliest.items():
            self._backlog.place(number, offset)
        self._ends, self._paused = {}, frozenset()
        self._lost, self._accepted = "", rebalances
        self.counters.rebalances += 1
        return True

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `EventSource`. The end is that of committed records. Raises AssignmentLost, StreamUnavailable."""
        number, member = self._number(partition), self._connected()
        return member.earliest([number])[number], member.ends([number])[number]

    def seek(self, partition: Partition, offset: int) -> None:
        """See `EventSource`. Raises AssignmentLost."""
        number = self._number(partition)
        try:
            self._connected().seek(number, offset)
        except NotOwned:
            raise self._lose("the group was rebalanced") from None
        self._backlog.place(number, offset)
        self._progress_s[number] = time.monotonic()

    def pause(self, partitions: frozenset[Partition]) -> None:
        """See `EventSource`."""
        self._paused = frozenset(partition.number for partition in partitions)

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        """See `EventSource`. Raises AssignmentLost (OffsetsLost), StreamUnavailable, StreamMisconfigured."""
        self._raise_if_lost()
        self._check_progress()
        wait_s = self._settings.batch_wait_ms / 1000
        stops = {partition.number: offset for partition, offset in stop_at.items()}
        cut = self._backlog.cut(self._settings.batch_events, stops, self._paused)
        cut.fill()
        begun = cut.events > 0
        deadline = time.monotonic() + (wait_s if begun else max(wait_s, _IDLE_S))
        while not cut.finished:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._fetch(cut, left_s)
            cut.fill()
            if cut.events and not begun:
                begun, deadline = True, time.monotonic() + wait_s
        taken, ranges = cut.take()
        if not ranges:
            return None
        spans = {self._owned[number]: span for number, span in ranges.items()}
        return self._reader.read(taken, spans, time.time_ns() // 1_000_000)

    def _fetch(self, cut: Cut, left_s: float) -> None:
        """Move what the consumer has into the backlog; a partition of which plenty waits is not asked."""
        limit = self._settings.batch_events
        numbers = [n for n in self._owned if cut.wants(n) and self._backlog.waiting(n) < 2 * limit]
        try:
            fetched = self._connected().fetch(numbers, left_s, limit)
        except NotOwned as error:
            raise self._lose(str(error)) from None
        except PositionGone as error:
            raise self._explain(error) from None
        except StreamUnavailable:
            self._go_back()
            raise
        self._raise_if_lost()
        for number, (records, position) in fetched.items():
            if not self._backlog.add(number, records, position):
                raise self._lose(f"partition {number} jumped back to offset {position}")
            if records:
                self._progress_s[number] = time.monotonic()

    def _go_back(self) -> None:
        """A failed fetch may have taken records with it: fetch again what the backlog doesn't hold."""
        for number in self._owned:
            try:
                self._connected().seek(number, self._backlog.position(number))
            except NotOwned:
                raise self._lose("the group was rebalanced") from None

    def stay(self, timeout_s: float) -> None:
        """See `EventSource`. The client is polled, with every partition paused: `max_poll_interval_ms` never passes."""
        deadline = time.monotonic() + timeout_s
        if self._member is not None:
            with contextlib.suppress(NotOwned, PositionGone, StreamUnavailable, StreamMisconfigured):
                self._member.fetch((), timeout_s, 1)
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(left_s)

    def dead_letter(self, batch: MicroBatch, rows: list[int], reason: str) -> None:
        """See `EventSource`. The value is the event written anew: its bytes are gone by then."""
        self._reader.refuse(batch.events, rows, reason)

    def flush_dead_letters(self) -> None:
        """See `EventSource`. Raises StreamUnavailable, StreamMisconfigured."""
        self._letters.flush()

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """See `EventSource`. Asynchronous: a lost one is replaced by the next."""
        owned = {p.number: offset for p, offset in positions.items() if self._owned.get(p.number) == p}
        if owned and self._member is not None and not self._lost:
            self._member.commit(owned)

    def lag(self) -> int:
        """See `EventSource`."""
        if self._lost:
            return 0
        return sum(max(0, self._ends.get(number, 0) - self._backlog.start(number)) for number in self._owned)

    @property
    def progress_age_s(self) -> float:
        """Seconds since every owned partition delivered, or was seen to have nothing more; for health checks."""
        now = time.monotonic()
        return now - min(self._progress_s.values(), default=now)

    @property
    def read_counters(self) -> ReadCounters:
        """Records and events read."""
        return self._reader.counters

    @property
    def dead_letter_counts(self) -> Mapping[str, int]:
        """Dead letters by kind of reason."""
        return self._letters.counts

    def close(self) -> None:
        """See `EventSource`."""
        member, self._member = self._member, None
        self._lost = "the source is closed"
        self._owned, self._progress_s = {}, {}
        self._letters.close()
        if member is not None:
            member.close(leave=True)

    def _number(self, partition: Partition) -> int:
        self._raise_if_lost()
        if self._owned.get(partition.number) != partition:
            raise AssignmentLost(f"partition {partition.number} of topic {partition.topic_id} is not owned")
        return partition.number

    def _lose(self, why: str) -> AssignmentLost:
        """The assignment no longer stands; everything buffered is void: another member may be reading it already."""
        self._lost = why
        self._backlog.clear()
        return AssignmentLost(f"{why}; read the assignment and the offsets again")

    def _raise_if_lost(self) -> None:
        if self._lost:
            raise self._lose(self._lost)
        if self._member is not None and self._member.rebalances != self._accepted:
            raise self._lose("the group was rebalanced")

    def _explain(self, gone: PositionGone) -> AssignmentLost:
        """Retention overtook us, or the log ends before our position: made anew, or cut."""
        start, earliest = self._backlog.start(gone.number), self._connected().earliest([gone.number])[gone.number]
        partition = self._owned[gone.number]
        lost = self._lose(str(gone))
        if start >= earliest:
            return lost
        self.counters.records_lost_to_retention += earliest - start
        return OffsetsLost(partition, start, earliest)

    def _check_progress(self) -> None:
        """Every few seconds: are there records that don't come? Then the consumer hangs, and is made anew.

        Raises StreamUnavailable once the broker has not answered several checks in a row, AssignmentLost.
        """
        if time.monotonic() - self._checked_s < _CHECK_EVERY_S or not self._owned:
            return
        member = self._connected()
        try:
            self._ends = member.ends(self._owned)
        except StreamUnavailable:
            self._silent_checks += 1
            if self._silent_checks >= _MAX_SILENT_CHECKS:
                raise
            return
        finally:
            self._checked_s = time.monotonic()
        if self._silent_checks:  # the broker was away: the consumer gets its time to come back
            self._silent_checks = 0
            self._progress_s = dict.fromkeys(self._owned, self._checked_s)
        identity = member.topic_id()
        if any(partition.topic_id != identity for partition in self._owned.values()):
            raise self._lose(f"topic {self._kafka.topic} was made anew, with id {identity}")
        for number, end in self._ends.items():
            if number in self._paused or self._backlog.waiting(number) or self._backlog.position(number) >= end:
                self._progress_s[number] = self._checked_s
        if self.progress_age_s > self._stall_s:
            log.warning("%s: nothing came for %.0f s though there are records", self._kafka.topic, self.progress_age_s)
            self._member = None
            member.close(leave=False)
            self.counters.consumers_restarted += 1
            raise self._lose("the consumer hung and was made anew")

    def _connected(self) -> GroupMember:
        """The member, made if there is none; a few attempts. Raises StreamUnavailable, StreamMisconfigured."""
        if self._member is not None:
            return self._member
        for attempt in range(1, _CONNECT_ATTEMPTS):
            try:
                return self._join()
            except StreamUnavailable as error:
                log.info("attempt %d: %s", attempt, error)
                time.sleep(0.1 * 2**attempt)
        return self._join()

    def _join(self) -> GroupMember:
        self._member = GroupMember(self._kafka, self._instance, self._max_message_bytes)
        self._accepted = -1
        return self._member
