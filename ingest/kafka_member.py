"""A `GroupMember` by kafka-python.

Threads: kafka-python runs its network and heartbeats on a thread of its own, where the rebalance listener is called.
It only notes what is owned; the caller sees it at its next call. Nothing else is shared.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.base import MemberState
from kafka.errors import (
    FencedInstanceIdError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from kafka.future import Future
from kafka.structs import OffsetAndMetadata

from ingest.contract import IngestError
from ingest.fetched import Fetched
from ingest.group_assignor import OwnersAssignor
from ingest.group_member import NotOwned, PositionGone
from ingest.kafka_batches import PartitionBatches
from ingest.kafka_client import client_options, connect, remove_member, topic_identity, translated
from ingest.settings import KafkaSettings

_JOIN_POLL_MS = 100
_FETCH_WAIT_MS = 100  # a fetch under way delays a seek on the same broker by this much
_CALL_TIMEOUT_MS = 5_000
_FRAME_SLACK = 1 << 20
_METADATA_WAIT_S = 2.0
_HEARTBEAT_MS = 1_000  # a member learns of a rebalance by its heartbeat: so long may the others have to wait for it
_JOIN_SLICE_MS = 20  # of a fetch while the group rebalances


class KafkaPythonMember:
    """See `GroupMember`. Records are columns from the start, whole batches as the broker has them."""

    def __init__(self, settings: KafkaSettings, instance: str | None, max_message_bytes: int) -> None:
        self._settings = settings
        self._instance = instance
        self._owned = _Owned()
        self._accepted = 0  # rebalances that the caller has seen
        limit = max_message_bytes + _FRAME_SLACK  # a record above the fetch limit would never arrive
        options = client_options(settings) | {
            "group_id": settings.group,
            "group_instance_id": instance,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "check_crcs": True,
            "allow_auto_create_topics": False,
            "partition_assignment_strategy": [OwnersAssignor(self._assigned)],
            "session_timeout_ms": settings.session_timeout_ms,
            "heartbeat_interval_ms": min(_HEARTBEAT_MS, settings.session_timeout_ms // 3),
            "max_poll_interval_ms": settings.max_poll_interval_ms,
            "fetch_max_wait_ms": _FETCH_WAIT_MS,
            "max_partition_fetch_bytes": limit,
            "fetch_max_bytes": max(50 << 20, limit),
            "metrics_enabled": False,
        }
        doing = f"connecting to group {settings.group}"
        self._consumer = connect(KafkaConsumer, options, doing, settings)
        with translated(doing, settings):
            self._consumer.subscribe([settings.topic], listener=self._owned)
        self._consumer._fetcher.PartitionRecords = PartitionBatches
        self._fetch_while_joining()
        self._await_metadata()

    @property
    def rebalances(self) -> int:
        """See `GroupMember`."""
        return self._owned.state[0]

    def owned(self) -> tuple[int, Mapping[int, int]]:
        """See `GroupMember`."""
        return self._owned.state

    def accept(self, rebalances: int) -> None:
        """See `GroupMember`."""
        self._accepted = rebalances

    def topic_id(self) -> str:
        """See `GroupMember`. As of the last metadata."""
        return topic_identity(self._settings, self._consumer._cluster.topic_id(self._settings.topic))

    def join(self, timeout_s: float) -> None:
        """See `GroupMember`."""
        with (
            translated(f"joining group {self._settings.group}", self._settings),
            contextlib.suppress(NoOffsetForPartitionError, OffsetOutOfRangeError, LogTruncationError),
        ):
            self._consumer.poll(timeout_ms=min(_JOIN_POLL_MS, timeout_s * 1000), max_records=1)

    def earliest(self, numbers: Collection[int]) -> dict[int, int]:
        """See `GroupMember`."""
        with translated(f"asking for the earliest offsets of {self._settings.topic}", self._settings):
            offsets = self._consumer.beginning_offsets([self._tp(n) for n in numbers], timeout_ms=_CALL_TIMEOUT_MS)
        return {tp.partition: offset for tp, offset in offsets.items()}

    def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """See `GroupMember`."""
        with translated(f"asking for the end offsets of {self._settings.topic}", self._settings):
            offsets = self._consumer.end_offsets([self._tp(n) for n in numbers], timeout_ms=_CALL_TIMEOUT_MS)
        return {tp.partition: offset for tp, offset in offsets.items()}

    def seek(self, number: int, offset: int) -> None:
        """See `GroupMember`."""
        try:
            self._consumer.seek(self._tp(number), int(offset))
        except (ValueError, KeyError) as error:
            raise NotOwned(f"partition {number}") from error

    def fetch(self, numbers: Set[int], timeout_s: float, max_records: int) -> dict[int, tuple[Sequence[Fetched], int]]:
        """See `GroupMember`. Whole batches, and all that one answer of the broker held."""
        _, before = self._owned.state
        wanted = {self._tp(n) for n in numbers}
        try:
            held = self._consumer.paused()
            self._consumer.resume(*(held & wanted))
            self._consumer.pause(*(self._consumer.assignment() - held - wanted))
            self._release_parked()
            with translated(f"fetching {self._settings.topic}", self._settings):
                fetched = self._consumer.poll(timeout_ms=timeout_s * 1000, max_records=max_records)
                _, after = self._owned.state
                self._raise_if_fenced()
                kept = [tp for tp in wanted if after.get(tp.partition) == before.get(tp.partition)]
                positions = {tp: self._consumer.position(tp, timeout_ms=0) for tp in kept}
        except KeyError as error:
            raise NotOwned("a rebalance took a partition away") from error
        except IngestError as error:
            if isinstance(error.__cause__, NoOffsetForPartitionError) and self.rebalances != self._accepted:
                return {}  # of a partition just given, before anything was fetched
            raise _meaning(error) from error
        if any(position is None for position in positions.values()):
            raise NotOwned("a partition was given anew and has no position")
        return {tp.partition: (fetched.get(tp, ()), position) for tp, position in positions.items()}

    def commit(self, positions: Mapping[int, int]) -> None:
        """See `GroupMember`."""
        with contextlib.suppress(KafkaError):
            self._consumer.commit_async({self._tp(n): OffsetAndMetadata(offset) for n, offset in positions.items()})

    def close(self, *, leave: bool) -> None:
        """See `GroupMember`."""
        with contextlib.suppress(KafkaError, OSError):
            self._consumer.close(autocommit=False, timeout_ms=_CALL_TIMEOUT_MS)
        if leave and self._instance is not None:
            remove_member(self._settings, self._instance)

    def _fetch_while_joining(self) -> None:
        """What is owned is fetched on while the group rebalances, and nothing is let go before it was accepted.

        kafka-python 3.0.12 returns from its poll without a look at what was fetched until the whole group has joined,
        and joins for the second round in the same call that learned what was taken. And it forgets a join whose answer
        comes between two polls. If the join was because partitions were added, its leader has then noted the new number
        of partitions, sees no reason to join any more, and is left with what it had and without heartbeats. In any
        other case it joins anew, which makes the others join anew: two members that are each busy for longer than a
        slice between their polls never have an answer in hand at the same time, and whoever owned everything goes on
        alone.
        """
        coordinator = self._consumer._coordinator
        poll = coordinator.poll

        def join_a_little(timeout_ms: float | None = None) -> bool:
            if self.rebalances != self._accepted and self._accepted:
                return True
            if coordinator.rejoining:  # begun and not completed
                coordinator.request_rejoin()
                answered = coordinator._join_task
                if answered is not None and answered.is_done:
                    coordinator._join_task = _Answer(answered)
            if not (self._consumer.assignment() and coordinator.need_rejoin()):
                return bool(poll(timeout_ms=timeout_ms))
            poll(timeout_ms=_JOIN_SLICE_MS if timeout_ms is None else min(_JOIN_SLICE_MS, timeout_ms))
            return True

        coordinator.poll = join_a_little

    def _raise_if_fenced(self) -> None:
        """Another process has this member's instance name.

        kafka-python 3.0.12 notices by its heartbeat, stops to send any, and tells nobody: it would read on for ever.
        """
        coordinator = self._consumer._coordinator
        silent = coordinator.state is MemberState.STABLE and not coordinator._heartbeat_enabled
        if self._instance is not None and silent and not coordinator.need_rejoin():
            raise FencedInstanceIdError(self._instance)

    def _release_parked(self) -> None:
        """Let records come back that were half read when their partition was paused.

        kafka-python 3.0.12 parks them, and takes them back after `resume` only while its slot for the partition in hand
        is None; a partition read to its end leaves a spent object there, which is false but not None, and the parked
        partition is neither read nor fetched again.
        """
        fetcher = self._consumer._fetcher
        if not fetcher._next_partition_records:
            fetcher._next_partition_records = None

    def _await_metadata(self) -> None:
        """Without the topic's metadata the group's leader would assign nobody anything, and rebalance at once."""
        deadline = time.monotonic() + _METADATA_WAIT_S
        while self._consumer._cluster.partitions_for_topic(self._settings.topic) is None:
            if time.monotonic() >= deadline:
                return
            time.sleep(0.005)

    def _assigned(self) -> Collection[TopicPartition]:
        partitions: Collection[TopicPartition] = self._consumer.assignment()
        return partitions

    def _tp(self, number: int) -> TopicPartition:
        return TopicPartition(self._settings.topic, number)


def _meaning(error: IngestError) -> Exception:
    """What a failed fetch means."""
    cause = error.__cause__
    if isinstance(cause, OffsetOutOfRangeError):
        tp, offset = next(iter(cause.args[0].items()))
        return PositionGone(tp.partition, offset)
    if isinstance(cause, LogTruncationError):
        tp, valid = next(iter(cause.divergent_offsets.items()))
        if valid is not None:
            return PositionGone(tp.partition, valid.offset, cut_at=valid.offset)
    if isinstance(cause, NoOffsetForPartitionError | LogTruncationError):
        return NotOwned(f"a partition has no valid position: {cause}")
    return error


class _Answer:
    """A join that was answered between two polls, for a client that begins another unless the last is under way.

    Whoever waits for it has the answer at once. One of a generation that is over by then does no harm: the next
    heartbeat tells, and the member joins again.
    """

    is_done = False

    def __init__(self, answered: Future) -> None:
        self._answered = answered

    def add_callback(self, told: Callable[[Any], None]) -> None:
        self._answered.add_callback(told)

    def add_errback(self, told: Callable[[Any], None]) -> None:
        self._answered.add_errback(told)


class _Owned(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """What is owned. Called on the client's network thread, where a call back into the client would deadlock.

    `state` is replaced as a whole, so that whoever reads it on another thread sees both parts of one moment.
    """

    def __init__(self) -> None:
        self.state: tuple[int, Mapping[int, int]] = 0, {}

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        changes, since = self.state
        gone = {tp.partition for tp in revoked}
        self.state = changes + 1, {number: given for number, given in since.items() if number not in gone}

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        changes, since = self.state
        self.state = changes + 1, {**since, **dict.fromkeys((tp.partition for tp in assigned), changes + 1)}
