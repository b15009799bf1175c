"""Events from Kafka: the only file that consumes. Everything it decides about records is in `backlog` and `codecs`.

Threads: kafka-python runs its network and heartbeats on a thread of its own, where the rebalance listener is called. The
listener only raises a flag; this class acts on it at the next call. Nothing else is shared.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import MemberToRemove
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from kafka.structs import OffsetAndMetadata

from ingest import codecs
from ingest.backlog import Backlog, Record
from ingest.codecs import Records
from ingest.columns import MAX_LINES, MicroBatch, Partition
from ingest.contract import AssignmentLost, IngestError, OffsetsLost, StreamUnavailable
from ingest.dead_letters import DeadLetter, DeadLetters
from ingest.door import shown
from ingest.kafka_client import client_options, topic_name_id, translated
from ingest.kafka_topics import Topic, prepare_topics
from ingest.settings import IngestSettings, KafkaSettings
from native.crossings import count_crossings
from native.identity import key_and_check

log = logging.getLogger(__name__)

_IDLE_S = 0.1  # a poll without records returns after this, or after batch_wait_ms if that is longer
_JOIN_POLL_MS = 100
_FETCH_WAIT_MS = 100  # a fetch under way delays a seek on the same broker by this much
_CALL_TIMEOUT_MS = 5_000
_CHECK_EVERY_S = 3.0
_MAX_SILENT_CHECKS = 3
_CONNECT_ATTEMPTS = 3
_USERS_REMEMBERED = 1 << 16
_FRAME_SLACK = 1 << 20


@dataclass(slots=True)
class SourceCounters:
    """What happened since the source was made. Dead letters by kind are in `dead_letters`."""

    records: int = 0
    events: int = 0
    events_with_unknown_fields: int = 0
    users_on_two_partitions: int = 0
    records_lost_to_retention: int = 0
    consumers_restarted: int = 0
    dead_letters: Mapping[str, int] = field(default_factory=dict)


class KafkaSource:
    """`EventSource` over one topic, as one member of a consumer group.

    Positions are the caller's: partitions start at the earliest record kept, and the caller seeks. What is committed to
    Kafka is never read back. With `instance`, a name unique in the group and the same after a restart, a worker that
    comes back within `session_timeout_ms` gets its partitions back without a rebalance.
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
        self._codec = codecs.of(ingest)
        self._backlog = Backlog(self._codec.count)
        self._letters = DeadLetters(kafka)
        self.counters = SourceCounters(dead_letters=self._letters.counts)
        self._consumer: KafkaConsumer | None = None
        self._rebalance = _RebalanceFlag()
        self._accepted = -1  # the rebalance that `assignment` last accepted
        self._lost = "the consumer is new"  # why the assignment must be read again; empty if it stands
        self._owned: dict[Partition, TopicPartition] = {}
        self._paused: frozenset[int] = frozenset()
        self._ends: dict[int, int] = {}
        self._progress_s: dict[int, float] = {}
        self._checked_s = time.monotonic()
        self._silent_checks = 0
        self._seen_users = np.zeros(_USERS_REMEMBERED, np.uint64)
        self._seen_partitions = np.full(_USERS_REMEMBERED, 0xFFFFFFFF, np.uint32)
        self._topic: Topic = prepare_topics(kafka)
        self._connect()

    # -- assignment ---------------------------------------------------------------------------------------------------

    def assignment(self, timeout_s: float) -> frozenset[Partition]:
        """See `EventSource`. After a rebalance every partition starts at its earliest record: seek."""
        deadline = time.monotonic() + timeout_s
        consumer = self._connect()
        with translated(f"joining group {self._kafka.group}", self._kafka):
            while self._lost or self._rebalance.changes != self._accepted:
                changes = self._rebalance.changes
                owned = consumer.assignment()
                if self._rebalance.settled and owned and self._accept(consumer, owned, changes):
                    break
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return frozenset()
                with contextlib.suppress(NoOffsetForPartitionError, OffsetOutOfRangeError):
                    consumer.poll(timeout_ms=min(_JOIN_POLL_MS, left_s * 1000), max_records=1)  # joins; records unused
        return frozenset(self._owned)

    def _accept(self, consumer: KafkaConsumer, owned: set[TopicPartition], changes: int) -> bool:
        """Start over with these partitions; False if a rebalance got in between."""
        identity = topic_name_id(self._kafka, consumer._cluster.topic_id(self._kafka.topic))  # noqa: SLF001
        try:
            earliest = consumer.beginning_offsets(list(owned), timeout_ms=_CALL_TIMEOUT_MS)
            for tp, offset in earliest.items():
                consumer.seek(tp, offset)
        except (ValueError, IllegalStateError, AssertionError):
            return False
        if self._rebalance.changes != changes:
            return False
        self._backlog.clear()
        self._owned = {Partition(identity, tp.partition): tp for tp in sorted(owned)}
        for tp, offset in earliest.items():
            self._backlog.place(tp.partition, offset)
        now = time.monotonic()
        self._progress_s = {tp.partition: now for tp in owned}
        self._ends = {}
        self._paused = frozenset()
        self._lost, self._accepted = "", changes
        return True

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `EventSource`. Raises AssignmentLost, StreamUnavailable. The end is that of committed records."""
        tp = self._tp(partition)
        with translated(f"asking for the bounds of {tp.topic}-{tp.partition}", self._kafka):
            consumer = self._connect()
            earliest = consumer.beginning_offsets([tp], timeout_ms=_CALL_TIMEOUT_MS)[tp]
            return earliest, consumer.end_offsets([tp], timeout_ms=_CALL_TIMEOUT_MS)[tp]

    def seek(self, partition: Partition, offset: int) -> None:
        """See `EventSource`. Raises AssignmentLost."""
        tp = self._tp(partition)
        try:
            self._connect().seek(tp, offset)
        except (ValueError, AssertionError) as error:
            raise AssignmentLost(f"{tp.topic}-{tp.partition} is no longer owned") from error
        self._backlog.place(tp.partition, offset)
        self._progress_s[tp.partition] = time.monotonic()

    def pause(self, partitions: frozenset[Partition]) -> None:
        """See `EventSource`."""
        self._paused = frozenset(partition.number for partition in partitions)

    def _tp(self, partition: Partition) -> TopicPartition:
        self._raise_if_lost()
        tp = self._owned.get(partition)
        if tp is None:
            raise AssignmentLost(f"partition {partition.number} of topic {partition.topic_id} is not owned")
        return tp

    def _raise_if_lost(self) -> None:
        """A rebalance makes everything buffered void: another member may already be reading it."""
        if not self._lost and self._rebalance.changes != self._accepted:
            self._lost = "the group was rebalanced"
        if self._lost:
            self._backlog.clear()
            raise AssignmentLost(f"{self._lost}; read the assignment and the offsets again")

    # -- records ------------------------------------------------------------------------------------------------------

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        """See `EventSource`. Also raises OffsetsLost, an AssignmentLost that says how many records are gone."""
        self._raise_if_lost()
        self._check_progress()
        stops = {partition.number: offset for partition, offset in stop_at.items()}
        cut = self._backlog.cut(self._settings.batch_events, stops, self._paused)
        wait_s = self._settings.batch_wait_ms / 1000
        deadline = time.monotonic() + max(wait_s, _IDLE_S)
        cut.fill()
        waiting = cut.events == 0
        if not waiting:
            deadline = time.monotonic() + wait_s
        while not cut.finished:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            fetchable = [tp for p, tp in self._owned.items() if cut.wants(p.number) and self._has_room(p.number)]
            self._fetch(fetchable, left_s)
            cut.fill()
            if waiting and cut.events:
                waiting, deadline = False, time.monotonic() + wait_s
        records, ranges = cut.take()
        return self._decode(records, ranges) if ranges else None

    def _has_room(self, number: int) -> bool:
        return self._backlog.waiting(number) < 2 * self._settings.batch_events

    def _fetch(self, fetchable: Sequence[TopicPartition], left_s: float) -> None:
        """Move what the consumer has of these partitions into the backlog, waiting up to `left_s` for the first."""
        consumer = self._connect()
        try:
            held = consumer.paused()
            wanted = set(fetchable)
            consumer.resume(*(held & wanted))
            consumer.pause(*(set(self._owned.values()) - held - wanted))
            with translated(f"fetching {self._kafka.topic}", self._kafka):
                fetched = consumer.poll(timeout_ms=left_s * 1000, max_records=self._settings.batch_events)
        except KeyError:  # paused or resumed what a rebalance has just taken away
            self._lost = "the group was rebalanced"
        except IngestError as error:
            self._explain(consumer, error.__cause__, error)
        self._raise_if_lost()
        now = time.monotonic()
        for tp in fetchable:
            records = fetched.get(tp, ())
            position = consumer.position(tp, timeout_ms=0)
            if position is None or not self._backlog.add(tp.partition, records, position):
                self._lost = f"{tp.topic}-{tp.partition} jumped back to {position}"
                self._raise_if_lost()
            if records:
                self._progress_s[tp.partition] = now

    def _explain(self, consumer: KafkaConsumer, cause: BaseException | None, error: IngestError) -> None:
        """Raise what a failed fetch means for the caller."""
        if isinstance(cause, NoOffsetForPartitionError):
            self._lost = "a partition came without a position"
        elif isinstance(cause, LogTruncationError):
            self._lost = "the log was truncated by an unclean leader election"
        elif isinstance(cause, OffsetOutOfRangeError):
            self._raise_out_of_range(consumer, cause)
        else:
            raise error

    def _raise_out_of_range(self, consumer: KafkaConsumer, error: OffsetOutOfRangeError) -> None:
        """Retention overtook us, or the topic was made anew or cut."""
        offsets: dict[TopicPartition, int] = error.args[0]
        tp, position = next(iter(offsets.items()))
        self._lost = f"{tp.topic}-{tp.partition} does not hold offset {position}"
        with translated(f"asking for the bounds of {tp.topic}-{tp.partition}", self._kafka):
            earliest = consumer.beginning_offsets([tp], timeout_ms=_CALL_TIMEOUT_MS)[tp]
        start = self._backlog.start(tp.partition)
        partition = next((p for p, owned in self._owned.items() if owned == tp), None)
        self._backlog.clear()
        if partition is not None and position < earliest:
            self.counters.records_lost_to_retention += earliest - start
            raise OffsetsLost(partition, start, earliest)

    def _decode(self, taken: list[tuple[int, Sequence[Record]]], ranges: dict[int, tuple[int, int]]) -> MicroBatch:
        by_number = {partition.number: partition for partition in self._owned}
        numbers, offsets, times, values, tombstones, refused = [], [], [], [], [], 0
        for number, records in taken:
            self.counters.records += len(records)
            for record in records:
                if record.value is None:
                    tombstones.append((number, record))
                    continue
                numbers.append(number)
                offsets.append(record.offset)
                times.append(record.timestamp)
                values.append(record.value)
        columns = Records(np.array(numbers, np.uint32), np.array(offsets, np.int64), np.array(times, np.int64), values)
        decoded = self._codec.decode(columns, time.time_ns() // 1_000_000)
        for refusal in decoded.refusals:
            place = numbers[refusal.record], offsets[refusal.record], refusal.line
            self._letters.send(DeadLetter(self._kafka.topic, *place, refusal.kind, refusal.reason, refusal.value))
            refused += 1
        forget: dict[bytes, list[int]] = {b"user": [], b"item": []}
        for number, record in tombstones:
            kind, colon, identity = (record.key or b"").partition(b":")
            if colon and kind in forget and 1 <= len(identity) <= self._settings.max_id_bytes:
                forget[kind].append(key_and_check(identity)[0])
                continue
            reason = f"a null value with key {shown(record.key)}; to forget an id, send key user:<id> or item:<id>"
            self._letters.send(DeadLetter(self._kafka.topic, number, record.offset, 0, "tombstone", reason, None))
            refused += 1
        self.counters.events += len(decoded.events)
        self.counters.events_with_unknown_fields += decoded.unknown_fields
        self._watch_users(decoded.events.user_key, decoded.events.partition)
        return MicroBatch(
            decoded.events,
            {by_number[number]: span for number, span in ranges.items()},
            np.array(forget[b"user"], np.uint64),
            np.array(forget[b"item"], np.uint64),
            refused,
        )

    def _watch_users(self, keys: np.ndarray, partitions: np.ndarray) -> None:
        """A user's events on two partitions have no order: say so once, and count."""
        if len(self._owned) < 2:
            return
        crossings = count_crossings(keys, partitions, self._seen_users, self._seen_partitions)
        if crossings and not self.counters.users_on_two_partitions:
            log.warning(
                "topic %s has events of one user on two partitions, where their order is lost; key the records by "
                "user id (a change of the number of partitions does this once)",
                self._kafka.topic,
            )
        self.counters.users_on_two_partitions += crossings

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_letter(self, batch: MicroBatch, rows: list[int], reason: str) -> None:
        """See `EventSource`. The value is the event written anew: its bytes are gone by then."""
        events = batch.events
        for row in rows:
            value = {
                "user_id": events.user_id.at(row).decode(),
                "item_id": events.item_id.at(row).decode(),
                "label": float(events.label[row]),
                "weight": float(events.weight[row]),
                "timestamp": int(events.time_ms[row]),
            }
            offset, line = divmod(int(events.place[row]), MAX_LINES)
            number = int(events.partition[row])
            text = json.dumps(value, ensure_ascii=False).encode()
            self._letters.send(DeadLetter(self._kafka.topic, number, offset, line, "refused_by_store", reason, text))

    def flush_dead_letters(self) -> None:
        """See `EventSource`. Raises StreamUnavailable, StreamMisconfigured."""
        self._letters.flush()

    # -- reports ------------------------------------------------------------------------------------------------------

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """See `EventSource`. Asynchronous: a lost one is replaced by the next."""
        owned = {self._owned[p]: OffsetAndMetadata(offset) for p, offset in positions.items() if p in self._owned}
        if owned and self._consumer is not None and not self._lost:
            with contextlib.suppress(KafkaError):
                self._consumer.commit_async(owned)

    def lag(self) -> int:
        """See `EventSource`."""
        if self._lost:
            return 0
        return sum(max(0, self._ends.get(p.number, 0) - self._backlog.start(p.number)) for p in self._owned)

    @property
    def progress_age_s(self) -> float:
        """Seconds since every owned partition last delivered, or was seen to have nothing more; for health checks."""
        oldest = min(self._progress_s.values(), default=time.monotonic())
        return time.monotonic() - oldest

    # -- the consumer -------------------------------------------------------------------------------------------------

    def _check_progress(self) -> None:
        """Every few seconds: are there records that don't come? Then the consumer hangs, and is made anew.

        Raises StreamUnavailable when the broker has not answered several checks in a row, AssignmentLost.
        """
        now = time.monotonic()
        if now - self._checked_s < _CHECK_EVERY_S or not self._owned:
            return
        consumer = self._connect()
        try:
            with translated(f"asking {self._kafka.topic} for its ends", self._kafka):
                ends = consumer.end_offsets(list(self._owned.values()), timeout_ms=_CALL_TIMEOUT_MS)
        except StreamUnavailable:
            self._silent_checks += 1
            if self._silent_checks >= _MAX_SILENT_CHECKS:
                raise
            return
        finally:
            self._checked_s = now = time.monotonic()
        self._silent_checks = 0
        self._raise_if_made_anew(consumer)
        for tp, end in ends.items():
            self._ends[tp.partition] = end
            if tp.partition in self._paused or self._backlog.position(tp.partition) >= end or tp in consumer.paused():
                self._progress_s[tp.partition] = now
        if self.progress_age_s > self._stall_s:
            log.warning(
                "nothing came of topic %s for %.0f s though there are records", self._kafka.topic, self._stall_s
            )
            self._disconnect()
            self.counters.consumers_restarted += 1
            self._lost = "the consumer hung and was made anew"
            self._raise_if_lost()

    def _raise_if_made_anew(self, consumer: KafkaConsumer) -> None:
        identity = topic_name_id(self._kafka, consumer._cluster.topic_id(self._kafka.topic))  # noqa: SLF001
        if any(partition.topic_id != identity for partition in self._owned):
            self._lost = f"topic {self._kafka.topic} was made anew, with id {identity}"
            self._raise_if_lost()

    def _connect(self) -> KafkaConsumer:
        """The consumer, made if there is none; a few attempts. Raises StreamUnavailable, StreamMisconfigured."""
        for attempt in range(_CONNECT_ATTEMPTS):
            if self._consumer is not None:
                break
            try:
                self._consumer = self._make_consumer()
            except StreamUnavailable:
                if attempt == _CONNECT_ATTEMPTS - 1:
                    raise
                time.sleep(0.2 * 2**attempt)
        assert self._consumer is not None  # noqa: S101 - the loop ends with one or raises
        return self._consumer

    def _make_consumer(self) -> KafkaConsumer:
        self._rebalance = _RebalanceFlag()
        limit = max(self._topic.max_message_bytes, self._settings.max_record_bytes) + _FRAME_SLACK
        with translated(f"connecting to group {self._kafka.group}", self._kafka):
            consumer = KafkaConsumer(
                **client_options(self._kafka),
                group_id=self._kafka.group,
                group_instance_id=self._instance,
                enable_auto_commit=False,
                # partitions start where assignment() and seek() say; an offset that is gone must be told, not skipped
                auto_offset_reset="none",
                isolation_level="read_committed",
                check_crcs=True,
                allow_auto_create_topics=False,
                partition_assignment_strategy=[RangePartitionAssignor],
                session_timeout_ms=self._kafka.session_timeout_ms,
                heartbeat_interval_ms=min(3000, self._kafka.session_timeout_ms // 3),
                max_poll_interval_ms=self._kafka.max_poll_interval_ms,
                fetch_max_wait_ms=_FETCH_WAIT_MS,
                max_partition_fetch_bytes=limit,
                fetch_max_bytes=max(50 << 20, limit),
                metrics_enabled=False,
            )
            consumer.subscribe([self._kafka.topic], listener=self._rebalance)
        self._lost = self._lost or "the consumer is new"
        self._accepted = -1
        return consumer

    def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._owned = {}
        self._progress_s = {}
        if consumer is not None:
            with contextlib.suppress(KafkaError, OSError):
                consumer.close(autocommit=False, timeout_ms=_CALL_TIMEOUT_MS)

    def close(self) -> None:
        """See `EventSource`. Takes a static member out of the group too, which the client by itself does not."""
        joined = self._consumer is not None
        self._disconnect()
        self._lost = "the source is closed"
        self._letters.close()
        if joined and self._instance:
            with contextlib.suppress(KafkaError, OSError, IngestError):
                admin = KafkaAdminClient(**client_options(self._kafka))
                try:
                    admin.remove_group_members(self._kafka.group, [MemberToRemove(group_instance_id=self._instance)])
                finally:
                    admin.close()


class _RebalanceFlag(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Counts rebalances; called on the client's network thread, so it does nothing else."""

    def __init__(self) -> None:
        self.changes = 0
        self.settled = False

    def on_partitions_revoked(self, revoked: object) -> None:  # noqa: ARG002
        self.settled = False
        self.changes += 1

    def on_partitions_assigned(self, assigned: object) -> None:  # noqa: ARG002
        self.changes += 1
        self.settled = True
