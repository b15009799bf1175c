"""A `GroupMember` by librdkafka, through confluent-kafka.

Threads: librdkafka's own do the network; what they have to tell is told on the caller's thread, inside `consume`.

Two things are not done where librdkafka would do them by itself. What the group gives is assigned only once the caller
has said from where to read: `seek` names the offset, the next `fetch` assigns. And what the group takes is let go only
once the caller has accepted that: until then librdkafka holds back all partitions, and the group waits. In both cases
the listener answers for the moment that nothing changes, which keeps confluent-kafka from answering in its stead.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any
from uuid import UUID

import numpy as np
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from ingest.fetched import Fetched
from ingest.group_member import MemberGone, NotOwned, PositionGone
from ingest.kafka_client import BOOTSTRAP_TIMEOUT_MS, remove_member, topic_identity
from ingest.librdkafka_client import client_configuration, meaning, translated
from ingest.librdkafka_records import columns
from ingest.settings import KafkaSettings

log = logging.getLogger(__name__)

_JOIN_POLL_S = 0.1
_CALL_TIMEOUT_S = 5.0
_FRAME_SLACK = 1 << 20
_HEARTBEAT_MS = 1_000  # a member learns of a rebalance by its heartbeat: so long may the others have to wait for it
_MOST_MESSAGES = 100_000
_WORD = (1 << 64) - 1

_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
_CUT = re.compile(r"truncation detected .* broker end offset is (\d+)")  # nothing but the text of the error tells it
# librdkafka goes on by itself; whether it gets anywhere is seen by the source's checks
_PASSING = frozenset(
    {
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
    }
)


class LibrdkafkaMember:
    """See `GroupMember`. A record costs an object, where kafka-python's are columns from the start."""

    def __init__(self, settings: KafkaSettings, instance: str | None, max_message_bytes: int) -> None:
        self._settings = settings
        self._instance = instance
        self._state: tuple[int, Mapping[int, int]] = 0, {}
        self._taken: dict[int, int] = {}  # numbers that the group takes → the rebalance, until that is accepted
        self._assigned: set[int] = set()
        self._held: set[int] = set()  # of the assigned ones: paused
        self._wanted_at: dict[int, int] = {}  # seeked, and not assigned there yet
        self._positions: dict[int, int] = {}
        self._gone: dict[int, PositionGone] = {}  # told while they were paused
        self._refused: KafkaError | None = None
        self._fenced: KafkaError | None = None
        self._closed = False
        own = client_configuration(settings)
        limit = max_message_bytes + _FRAME_SLACK  # a record above the fetch limit would never arrive
        fetch_bytes = max(50 << 20, limit)
        configuration = own | {
            "group.id": settings.group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": settings.session_timeout_ms,
            "heartbeat.interval.ms": min(_HEARTBEAT_MS, settings.session_timeout_ms // 3),
            "max.poll.interval.ms": settings.max_poll_interval_ms,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,  # tells the position behind markers and aborted records
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 100,
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 20_000,
            "queued.max.messages.kbytes": 16 << 10,
            "fetch.message.max.bytes": limit,
            "fetch.max.bytes": fetch_bytes,
            "receive.message.max.bytes": fetch_bytes + _FRAME_SLACK,
            "error_cb": self._told,
        }
        if instance is not None:
            configuration["group.instance.id"] = instance
        doing = f"connecting to group {settings.group}"
        with translated(doing, settings):
            self._consumer = Consumer(configuration, logger=log)
            self._admin = AdminClient(own, logger=log)
        try:
            self._await_broker(doing)
            with translated(doing, settings):
                self._consumer.subscribe(
                    [settings.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
                )
        except BaseException:
            self._consumer.close()
            raise

    @property
    def rebalances(self) -> int:
        """See `GroupMember`."""
        return self._state[0]

    def owned(self) -> tuple[int, Mapping[int, int]]:
        """See `GroupMember`."""
        return self._state

    def accept(self, rebalances: int) -> None:
        """See `GroupMember`."""
        if self._taken and max(self._taken.values()) <= rebalances:
            numbers, self._taken = set(self._taken), {}
            self._let_go(numbers)

    def topic_id(self) -> str:
        """See `GroupMember`. The broker is asked."""
        topic = self._settings.topic
        doing = f"asking for the id of {topic}"
        with translated(doing, self._settings):
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_CALL_TIMEOUT_S)
            found = asked[topic].result().topic_id
        bits = found and (
            (found.get_most_significant_bits() & _WORD) << 64 | found.get_least_significant_bits() & _WORD
        )
        return topic_identity(self._settings, UUID(int=bits) if bits else None)

    def join(self, timeout_s: float) -> None:
        """See `GroupMember`."""
        doing = f"joining group {self._settings.group}"
        for message in self._consume(doing, 1, min(_JOIN_POLL_S, timeout_s)):
            error = message.error()
            if error is not None and error.code() not in _GONE:
                self._raise_if_grave(error, doing)
        self._raise_if_fenced(doing)

    def earliest(self, numbers: Collection[int]) -> dict[int, int]:
        """See `GroupMember`."""
        return self._offsets(
            f"asking for the earliest offsets of {self._settings.topic}", numbers, OffsetSpec.earliest()
        )

    def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """See `GroupMember`."""
        return self._offsets(f"asking for the end offsets of {self._settings.topic}", numbers, OffsetSpec.latest())

    def seek(self, number: int, offset: int) -> None:
        """See `GroupMember`."""
        if number not in self._state[1]:
            raise NotOwned(f"partition {number}")
        self._wanted_at[number] = self._positions[number] = int(offset)
        self._gone.pop(number, None)

    def fetch(self, numbers: Set[int], timeout_s: float, max_records: int) -> dict[int, tuple[Sequence[Fetched], int]]:
        """See `GroupMember`."""
        _, before = self._state
        doing = f"fetching {self._settings.topic}"
        if not numbers <= self._positions.keys():
            raise NotOwned("a partition was taken, or given anew and has no position")
        for number in numbers & self._gone.keys():
            raise self._gone.pop(number)
        with translated(doing, self._settings):
            self._read_exactly(set(numbers))
        messages = self._consume(doing, max_records, timeout_s)
        _, after = self._state
        kept = {n for n in numbers if after.get(n) == before.get(n)}
        errors = list(map(Message.error, messages))
        failed = [(m, e) for m, e in zip(messages, errors, strict=True) if e is not None] if any(errors) else []
        if failed:
            messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
        found = columns(messages)
        for number, chunk in found.items():
            if number not in numbers:  # never seen, as a pause is waited for; what is handed out must not be lost
                self._wanted_at |= {number: self._positions[number]} if number in self._positions else {}
            elif number in kept:
                # a pause may meet a record on its way here: librdkafka then hands it out again when it goes on
                known = int(np.searchsorted(chunk.offset, self._positions[number]))
                found[number] = chunk.part(known, len(chunk))
                self._positions[number] = max(self._positions[number], int(chunk.offset[-1]) + 1)
        for message, error in failed:  # the end of a partition comes behind its records
            self._read_error(message, error, kept, doing)
        self._raise_if_fenced(doing)
        return {n: ([found[n]] if n in found else [], self._positions[n]) for n in kept}

    def commit(self, positions: Mapping[int, int]) -> None:
        """See `GroupMember`."""
        with suppress(KafkaException):
            self._consumer.commit(offsets=[self._tp(n, offset) for n, offset in positions.items()], asynchronous=True)

    def close(self, *, leave: bool) -> None:
        """See `GroupMember`."""
        if not self._closed:
            self._closed = True
            with suppress(KafkaException):
                self.accept(self.rebalances)
                self._consumer.close()
        if leave and self._instance is not None:
            remove_member(self._settings, self._instance)

    def _read_exactly(self, numbers: set[int]) -> None:
        """Assign what was seeked, at its offset, and pause all but `numbers`. Not while the group waits for partitions
        to be let go: then nothing comes.
        """
        if self._taken:
            return
        fresh = self._wanted_at.keys() & self._state[1].keys()
        if again := fresh & self._assigned:
            self._consumer.incremental_unassign([self._tp(n) for n in again])
        if fresh:
            self._consumer.incremental_assign([self._tp(n, self._wanted_at[n]) for n in fresh])
            self._assigned |= fresh
        self._wanted_at.clear()
        to_pause = self._assigned - numbers - (self._held - fresh)
        to_resume = numbers & self._assigned & (self._held | fresh)
        if to_pause:
            self._consumer.pause([self._tp(n) for n in to_pause])
        if to_resume:  # of those assigned now too: librdkafka may remember a pause
            self._consumer.resume([self._tp(n) for n in to_resume])
        self._held = self._assigned - numbers

    def _consume(self, doing: str, most: int, timeout_s: float) -> list[Message]:
        """What is there, waiting for the first only: `consume` itself would wait for all."""
        with translated(doing, self._settings):
            messages: list[Message] = self._consumer.consume(1, timeout_s)
            if messages and most > 1:
                messages += self._consumer.consume(min(most, _MOST_MESSAGES) - 1, 0)
        if self._refused is not None:
            raise meaning(self._refused, doing, self._settings)
        return messages

    def _read_error(self, message: Message, error: KafkaError, kept: set[int], doing: str) -> None:
        number = message.partition()
        if error.code() == KafkaError._PARTITION_EOF:
            if number in kept:
                self._positions[number] = max(self._positions[number], message.offset())
        elif error.code() in _GONE:
            if number in self._positions:
                cut = _CUT.search(error.str())
                gone = PositionGone(number, self._positions[number], int(cut[1]) if cut else None)
                if number in kept:
                    raise gone
                self._gone[number] = gone
        else:
            self._raise_if_grave(error, doing)

    def _raise_if_grave(self, error: KafkaError, doing: str) -> None:
        if _is_fencing(error):
            self._fenced = error
        elif error.code() in _PASSING:
            log.info("%s: %s", doing, error.str())
        elif error.code() != KafkaError._PARTITION_EOF:
            raise meaning(error, doing, self._settings)

    def _raise_if_fenced(self, doing: str) -> None:
        """Another process has this member's instance name; or librdkafka takes itself for one.

        When a session ended while the broker was away, librdkafka 2.16 joins under a new member id, and may be told
        that the old one is fenced: it takes that for an end, though the name is still its own. The group knows who has
        the name.
        """
        if self._fenced is None:
            return
        with translated(doing, self._settings):
            asked = self._admin.describe_consumer_groups([self._settings.group], request_timeout=_CALL_TIMEOUT_S)
            members = asked[self._settings.group].result().members
        own = self._consumer.memberid()
        others = [m for m in members if m.group_instance_id == self._instance and m.member_id != own]
        if others and own:
            raise meaning(self._fenced, doing, self._settings)
        raise MemberGone("librdkafka took itself for another process of the same instance name")

    def _offsets(self, doing: str, numbers: Collection[int], which: Any) -> dict[int, int]:
        """Of all partitions in one request to each broker."""
        with translated(doing, self._settings):
            asked = self._admin.list_offsets(
                {self._tp(n): which for n in numbers},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=_CALL_TIMEOUT_S,
            )
            return {tp.partition: answer.result().offset for tp, answer in asked.items()}

    def _await_broker(self, doing: str) -> None:
        """Without the topic's metadata nothing could be given; and a refusal is to be told now."""
        timeout_s = min(BOOTSTRAP_TIMEOUT_MS, self._settings.request_timeout_ms) / 1000
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._consumer.list_topics(self._settings.topic, timeout=min(1.0, timeout_s))
            except KafkaException as error:
                self._consume(doing, 1, 0)  # what befell the connection is told here
                if time.monotonic() >= deadline:
                    raise meaning(error.args[0], doing, self._settings) from error
            else:
                return

    def _told(self, error: KafkaError) -> None:
        """Errors of connections, and fatal ones."""
        if _is_fencing(error):
            self._fenced = error
        elif error.code() == KafkaError._AUTHENTICATION:
            self._refused = error
        else:
            log.info("%s: %s", self._settings.bootstrap_servers, error.str())

    def _on_assign(self, consumer: Consumer, given: Collection[TopicPartition]) -> None:
        changes, since = self._state
        self._state = changes + 1, {**since, **dict.fromkeys((tp.partition for tp in given), changes + 1)}
        consumer.incremental_assign([])

    def _on_revoke(self, consumer: Consumer, revoked: Collection[TopicPartition]) -> None:
        changes = self._forget(revoked)
        if self._closed:
            self._let_go({tp.partition for tp in revoked})
            return
        self._taken |= dict.fromkeys((tp.partition for tp in revoked), changes)
        consumer.incremental_assign([])

    def _on_lost(self, _: Consumer, lost: Collection[TopicPartition]) -> None:
        """They may be another's by now: there is nothing to wait for."""
        self._forget(lost)
        self._let_go({tp.partition for tp in lost})

    def _forget(self, taken: Collection[TopicPartition]) -> int:
        changes, since = self._state
        gone = {tp.partition for tp in taken}
        self._state = changes + 1, {number: given for number, given in since.items() if number not in gone}
        for number in gone:
            self._wanted_at.pop(number, None)
            self._positions.pop(number, None)
            self._gone.pop(number, None)
        return changes + 1

    def _let_go(self, numbers: set[int]) -> None:
        gone = numbers & self._assigned
        self._assigned -= gone
        self._held -= gone
        self._consumer.incremental_unassign([self._tp(n) for n in gone])

    def _tp(self, number: int, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._settings.topic, number, offset)


def _is_fencing(error: KafkaError) -> bool:
    return bool(error.fatal() or error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL))
