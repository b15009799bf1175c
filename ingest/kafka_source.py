"""Events from Kafka, as the trainer asks for them: a `GroupMember` fetches, `backlog` cuts, `batch_reader` decodes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ingest.backlog import Backlog, Cut
from ingest.batch_reader import BatchReader, ReadCounters
from ingest.columns import MicroBatch, Partition
from ingest.contract import AssignmentChanged, AssignmentLost, OffsetsLost, StreamMisconfigured, StreamUnavailable
from ingest.dead_letters import DeadLetters
from ingest.group_member import GroupMember, MemberGone, NotOwned, PositionGone
from ingest.kafka_member import KafkaPythonMember
from ingest.kafka_topics import prepare_topics
from ingest.librdkafka_client import client_configuration
from ingest.settings import IngestSettings, KafkaSettings
from native.features import NO_FEATURES, FeatureSchema

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
    topics_recreated: int = 0


class KafkaSource:
    """`EventSource` over one topic, as one member of a consumer group.

    Positions are the caller's: partitions start at the earliest record kept, and the caller seeks. Without `instance` a
    worker is a member like any other. With it, a name unique in the group and the same after a restart, a worker that
    comes back within `session_timeout_ms` gets its partitions back without a rebalance; of two with one name the older
    is told, and ends.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        ingest: IngestSettings,
        instance: str | None = None,
        told: Callable[[str], None] = lambda kind: None,  # noqa: ARG005
        features: FeatureSchema = NO_FEATURES,
    ) -> None:
        """Create the topics where missing and connect. Raises StreamUnavailable, StreamMisconfigured.

        told: called with the kind of what befell the stream: rebalance, stalled_partition, recreated_topic. features:
        those that events may bring.
        """
        if kafka.client == "librdkafka":
            client_configuration(kafka)  # says at once if its package is missing
        self._kafka = kafka
        self._settings = ingest
        self._instance = instance or None
        self._told = told
        self._letters = DeadLetters(kafka)
        self._reader = BatchReader(kafka.topic, ingest, self._letters.send, features)
        self._backlog = Backlog(self._reader.count)
        self._owned: dict[int, Partition] = {}
        self._identity = ""  # of the topic, when partitions of it were last owned
        self._given: dict[int, int] = {}  # number → the member's rebalance that gave it
        self._cut_at: dict[int, int] = {}  # where the broker said the log was cut, until the partition is seeked
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
        """See `EventSource`. A partition that was not kept starts at its earliest record: seek.

        Raises StreamUnavailable, StreamMisconfigured.
        """
        deadline = time.monotonic() + timeout_s
        member = self._connected()
        while self._lost or member.rebalances != self._accepted:
            rebalances, given = member.owned()
            if given and self._accept(member, rebalances, given):
                break
            if not given:
                self._let_go(member, rebalances)
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return frozenset()
                try:
                    member.join(left_s)
                except MemberGone as error:
                    self._drop_member(str(error))
                    member = self._connected()
        return frozenset(self._owned.values())

    def _let_go(self, member: GroupMember, rebalances: int) -> None:
        """Nothing is owned (any more)."""
        self._lost = self._lost or "all partitions were taken"
        self._backlog.clear()
        self._owned, self._given, self._progress_s = {}, {}, {}
        member.accept(rebalances)

    def _accept(self, member: GroupMember, rebalances: int, given: Mapping[int, int]) -> bool:
        """Take over what is new, keep what stays, let go of the rest; False if another rebalance got in between."""
        identity = member.topic_id()
        stays = not self._lost and identity == self._identity
        kept = {n for n, since in given.items() if stays and self._given.get(n) == since}
        earliest = member.earliest(given.keys() - kept) if given.keys() - kept else {}
        try:
            for number, offset in earliest.items():
                member.seek(number, offset)
        except NotOwned:
            return False
        if member.rebalances != rebalances:
            return False
        for number in self._owned.keys() - kept:
            self._backlog.drop(number)
        for number, offset in earliest.items():
            self._backlog.place(number, offset)
        self._know(identity)
        now = time.monotonic()
        before = self._owned
        self._owned = {n: before[n] if n in kept else Partition(identity, n) for n in sorted(given)}
        self._given = dict(given)
        self._progress_s = {n: self._progress_s[n] if n in kept else now for n in given}
        self._cut_at = {n: cut for n, cut in self._cut_at.items() if n in given}
        if not kept:
            self._ends, self._paused = {}, frozenset()
        self._lost, self._accepted = "", rebalances
        member.accept(rebalances)
        self.counters.rebalances += 1
        self._told("rebalance")
        log.info(
            "%s: partitions %s, of which %s are new and %s went to others",
            self._kafka.topic, sorted(given), sorted(earliest), sorted(before.keys() - given.keys()),
        )  # fmt: skip
        return True

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `EventSource`. The end is that of committed records. Raises AssignmentLost, StreamUnavailable."""
        number, member = self._number(partition), self._connected()
        end = member.ends([number])[number]
        return member.earliest([number])[number], min(end, self._cut_at.get(number, end))

    def seek(self, partition: Partition, offset: int) -> None:
        """See `EventSource`. Raises AssignmentLost."""
        number = self._number(partition)
        try:
            self._connected().seek(number, offset)
        except NotOwned:
            raise self._lose("a partition was taken") from None
        self._cut_at.pop(number, None)
        self._backlog.place(number, offset)
        self._progress_s[number] = time.monotonic()

    def pause(self, partitions: frozenset[Partition]) -> None:
        """See `EventSource`."""
        self._paused = frozenset(partition.number for partition in partitions)

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        """See `EventSource`. Raises AssignmentLost (AssignmentChanged, OffsetsLost), StreamUnavailable,
        StreamMisconfigured.
        """
        self._raise_if_lost()
        self._check_progress()
        wait_s = self._settings.batch_wait_ms / 1000
        stops = {partition.number: offset for partition, offset in stop_at.items()}
        enough = self._settings.batch_events
        cut = self._backlog.cut(self._settings.most_events, stops, self._paused)
        cut.fill()
        begun = cut.events > 0
        deadline = time.monotonic() + (wait_s if begun else max(wait_s, _IDLE_S))
        while not cut.finished and not self._changed:  # what was taken is to be handed over soon
            before, left_s = cut.events, deadline - time.monotonic()
            if left_s <= 0 and before < enough:
                break
            self._fetch(cut, left_s if before < enough else 0.0)
            cut.fill()
            if before >= enough and cut.events == before:  # what had arrived is taken along, and not waited for
                break
            if cut.events and not begun:
                begun, deadline = True, time.monotonic() + wait_s
        taken, ranges = cut.take()
        if not ranges:
            return None
        spans = {self._owned[number]: span for number, span in ranges.items()}
        return self._reader.read(taken, spans, time.time_ns() // 1_000_000)

    def _fetch(self, cut: Cut, left_s: float) -> None:
        """Move what the consumer has into the backlog; a partition of which plenty waits is not asked."""
        limit = self._settings.most_events
        numbers = {n for n in self._owned if cut.wants(n) and self._backlog.waiting(n) < 2 * limit}
        try:
            fetched = self._connected().fetch(numbers, left_s, limit)
        except NotOwned as error:
            raise self._lose(str(error)) from None
        except PositionGone as error:
            raise self._explain(error) from None
        except MemberGone as error:
            raise self._drop_member(str(error)) from None
        except StreamUnavailable:
            self._go_back()
            raise
        for number, (chunks, position) in fetched.items():
            if not self._backlog.add(number, chunks, position):
                raise self._lose(f"partition {number} jumped back to offset {position}")
            if chunks:
                self._progress_s[number] = time.monotonic()

    def _go_back(self) -> None:
        """A failed fetch may have taken records with it: fetch again what the backlog doesn't hold."""
        for number in self._owned:
            try:
                self._connected().seek(number, self._backlog.position(number))
            except NotOwned:
                raise self._lose("a partition was taken") from None

    def stay(self, timeout_s: float) -> None:
        """See `EventSource`. The client is polled, with every partition paused: `max_poll_interval_ms` never passes."""
        deadline = time.monotonic() + timeout_s
        if self._member is not None:
            with contextlib.suppress(NotOwned, PositionGone, MemberGone, StreamUnavailable, StreamMisconfigured):
                self._member.fetch(frozenset(), timeout_s, 1)
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(left_s)

    def dead_letter(self, batch: MicroBatch, rows: list[int], reason: str) -> None:
        """See `EventSource`. The value is the event written anew: its bytes are gone by then."""
        self._reader.refuse(batch.events, rows, reason)

    def quarantine(self, batch: MicroBatch, reason: str) -> None:
        """See `EventSource`."""
        self._reader.quarantine(batch, reason)

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
        return now - min(list(self._progress_s.values()), default=now)  # asked from other threads

    @property
    def read_counters(self) -> ReadCounters:
        """Records and events read."""
        return self._reader.counters

    def close(self) -> None:
        """See `EventSource`."""
        member, self._member = self._member, None
        self._lost = "the source is closed"
        self._backlog.clear()
        self._owned, self._given, self._progress_s = {}, {}, {}
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
        self._owned, self._given, self._progress_s = {}, {}, {}
        return AssignmentLost(f"{why}; read the assignment and the offsets again")

    @property
    def _changed(self) -> bool:
        """Whether partitions were given or taken since the assignment was read."""
        return self._member is not None and self._member.rebalances != self._accepted

    def _raise_if_lost(self) -> None:
        if self._lost:
            raise self._lose(self._lost)
        if self._changed:
            raise AssignmentChanged("the group was rebalanced: partitions were given or taken")

    def _explain(self, gone: PositionGone) -> AssignmentLost:
        """Retention overtook us, or the log ends before our position: made anew, or cut."""
        start, earliest = self._backlog.start(gone.number), self._connected().earliest([gone.number])[gone.number]
        partition = self._owned[gone.number]
        lost = self._lose(str(gone))
        if gone.cut_at is not None:
            self._cut_at[gone.number] = gone.cut_at
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
        if identity != self._identity:
            self._know(identity)
            raise self._lose(f"topic {self._kafka.topic} was made anew, with id {identity}")
        for number, end in self._ends.items():
            if number in self._paused or self._backlog.waiting(number) or self._backlog.position(number) >= end:
                self._progress_s[number] = self._checked_s
        stalled = [n for n, s in self._progress_s.items() if self._checked_s - s > self._settings.stall_timeout_s]
        if stalled:
            for number in stalled:
                log.warning(
                    "partition %d of %s stalled: at offset %d of %d for %.0f s; the consumer is made anew",
                    number, self._kafka.topic, self._backlog.position(number), self._ends.get(number, 0),
                    self._checked_s - self._progress_s[number],
                )  # fmt: skip
                self._told("stalled_partition")
            raise self._drop_member("the consumer hung")

    def _drop_member(self, why: str) -> AssignmentLost:
        """The next call makes another."""
        member, self._member = self._member, None
        if member is not None:
            member.close(leave=False)
        self.counters.consumers_restarted += 1
        return self._lose(f"{why}: it is made anew")

    def _know(self, identity: str) -> None:
        """The topic as it is now; another than before is told."""
        if self._identity and identity != self._identity:
            self.counters.topics_recreated += 1
            self._told("recreated_topic")
            log.error(
                "topic %s was made anew: its id is %s, it was %s; what was in it and not learned is gone",
                self._kafka.topic, identity, self._identity,
            )  # fmt: skip
        self._identity = identity

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
        self._member = member_of(self._kafka, self._instance, self._max_message_bytes)
        self._accepted = -1
        return self._member


def member_of(kafka: KafkaSettings, instance: str | None, max_message_bytes: int) -> GroupMember:
    """A new member of the group, by the client that is set. Raises StreamUnavailable, StreamMisconfigured."""
    if kafka.client == "kafka-python":
        return KafkaPythonMember(kafka, instance, max_message_bytes)
    from ingest.librdkafka_member import LibrdkafkaMember  # noqa: PLC0415  optional

    return LibrdkafkaMember(kafka, instance, max_message_bytes)
