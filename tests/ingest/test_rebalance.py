"""Members that come and go, partitions that are added, topics that are made anew: on a real broker."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from ingest import kafka_source
from ingest.columns import Partition
from ingest.contract import AssignmentChanged, AssignmentLost, StreamMisconfigured, StreamUnavailable
from ingest.group_assignor import OwnersAssignor
from ingest.kafka_client import client_options
from ingest.kafka_source import KafkaSource
from ingest.kafka_topics import prepare_topics
from ingest.producer import Event, EventProducer
from ingest.settings import CLIENTS, Client, IngestSettings, KafkaSettings
from tests.servers import free_port

WAIT_S = 60.0
SMALL = IngestSettings(batch_events=10, batch_wait_ms=5)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Sockets that kafka-python forgot are collected here, not in another test."""
    yield
    gc.collect()


class Cluster:
    """Metadata of one topic with two partitions."""

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1}


def joined(assignors: Mapping[str, CooperativeStickyAssignor]) -> dict[str, list[int]]:
    """One round: everybody's metadata to the leader, the leader's assignment back."""
    members = [
        SimpleNamespace(member_id=name, metadata=ConsumerProtocolSubscription.decode(a.metadata({"t"}).encode()))
        for name, a in assignors.items()
    ]
    answer = next(iter(assignors.values())).assign(Cluster(), members)
    return {name: sorted(tp.partition for tp in assignment.partitions()) for name, assignment in answer.items()}


def test_a_member_that_lost_its_partitions_does_not_claim_them() -> None:
    """The client's own assignor does, and a partition stays without an owner, with nobody who would join again."""
    everything = [TopicPartition("t", 0), TopicPartition("t", 1)]
    client: Any = CooperativeStickyAssignor
    paused, fresh = client(), client()
    paused.member_assignment = everything  # as of before its session expired: it owns nothing any more
    given = joined({"paused": paused, "fresh": fresh})
    assert sorted(given["paused"] + given["fresh"]) != [0, 1]
    paused, fresh = OwnersAssignor(list), OwnersAssignor(list)
    paused.member_assignment = everything
    given = joined({"paused": paused, "fresh": fresh})
    assert sorted(given["paused"] + given["fresh"]) == [0, 1]


def test_what_moves_is_let_go_before_it_is_given() -> None:
    owner, fresh = OwnersAssignor(lambda: [TopicPartition("t", 0), TopicPartition("t", 1)]), OwnersAssignor(list)
    given = joined({"owner": owner, "fresh": fresh})
    assert len(given["owner"]) == 1
    assert given["fresh"] == []


class Reader:
    """A member on a thread of its own that applies what it reads to a store of offsets shared by all."""

    def __init__(self, kafka: KafkaSettings, applied: dict[Partition, int], got: list[bytes], lock: Any) -> None:
        self.source = KafkaSource(kafka, SMALL)
        self._applied, self._got, self._lock = applied, got, lock
        self._stop = threading.Event()
        self.lost: list[str] = []
        self.changes = 0
        self.fault: BaseException | None = None
        self.owned: frozenset[Partition] = frozenset()
        self.delivered_s: dict[Partition, list[float]] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._once()
        except BaseException as fault:  # noqa: BLE001  raised by `close`
            self.fault = fault

    def _once(self) -> None:
        try:
            if not self.owned:
                self._take(self.source.assignment(0.5))
                return
            batch = self.source.poll({})
        except AssignmentChanged:
            self.changes += 1
            self._take(self.source.assignment(0) - self.owned, self.owned)
            return
        except AssignmentLost as lost:
            self.lost.append(str(lost))
            self.owned = frozenset()
            return
        except StreamUnavailable:  # a loaded machine: asked again
            self.owned = frozenset()
            return
        if batch is None:
            return
        with self._lock:
            for partition, (start, stop) in batch.ranges.items():
                assert self._applied.get(partition, 0) == start
                self._applied[partition] = stop
                self.delivered_s.setdefault(partition, []).append(time.monotonic())
            self._got.extend(batch.events.item_id.tolist())

    def _take(self, new: frozenset[Partition], before: frozenset[Partition] = frozenset()) -> None:
        owned = self.source.assignment(0) if before else new
        with self._lock:
            for partition in new:
                self.source.seek(partition, self._applied.get(partition, 0))
        self.owned = owned

    def close(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self.source.close()
        if self.fault:
            raise self.fault


class Readers:
    """A group."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka, self._lock = kafka, threading.Lock()
        self.applied: dict[Partition, int] = {}
        self.got: list[bytes] = []
        self.all: list[Reader] = []

    def join(self) -> Reader:
        self.all.append(Reader(self._kafka, self.applied, self.got, self._lock))
        return self.all[-1]

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self.all:
            reader.close()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_partitions_that_stay_go_on_while_members_come_and_go(kafka: KafkaSettings) -> None:
    """Steady events; a member joins and leaves. Nothing is lost, nobody starts over, and what stays hardly pauses."""
    four = kafka.model_copy(update={"partitions": 4})
    prepare_topics(four)
    numbers = itertools.count()
    with EventProducer(four) as producer, Readers(four) as readers:
        sent = 0

        def send() -> None:
            nonlocal sent
            producer.send(*(Event(f"u{n}", n) for n in itertools.islice(numbers, 20)))
            producer.flush()
            sent += 20

        def steadily(condition: Callable[[], object]) -> Callable[[], object]:
            def asked() -> object:
                send()
                return condition()

            return asked

        first = readers.join()
        until(steadily(lambda: len(first.owned) == 4 and len(readers.got) > 100), "the first has all")
        second = readers.join()
        began = time.monotonic()
        until(steadily(lambda: len(first.owned) == len(second.owned) == 2), "two each")
        kept, moved_s = first.owned, time.monotonic() - began
        readers.all.remove(second)
        second.close()
        began = time.monotonic()
        until(steadily(lambda: len(first.owned) == 4), "the first has all again")
        back_s = time.monotonic() - began
        until(lambda: len(readers.got) == sent, "every event")
        assert (first.fault, first.lost) == (None, [])
        assert first.changes >= 2
        pause_s = max(
            later - earlier for partition in kept for earlier, later in itertools.pairwise(first.delivered_s[partition])
        )
        print(f"moved in {moved_s:.2f} s, back in {back_s:.2f} s, longest pause {pause_s:.3f} s")
        assert pause_s < 8.0  # half a second where nothing else runs; a session time-out it must not be
    assert sorted(map(int, readers.got)) == list(range(sent))


def test_added_partitions_are_read_from_their_first_event(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    prepare_topics(one)
    with Readers(one) as readers:
        reader = readers.join()
        until(lambda: reader.owned, "the first partition")
        admin = KafkaAdminClient(**client_options(one))
        try:
            admin.create_partitions({one.topic: 3})
        finally:
            admin.close()
        with EventProducer(one) as producer:
            until(lambda: producer._producer.partitions_for(one.topic) == {0, 1, 2}, "the producer to see them")
            for n in range(9):
                producer.send_raw(b'{"user_id":1,"item_id":%d}' % n, partition=n % 3)
        until(lambda: len(readers.got) == 9, "all events of the added ones")
        assert reader.lost == []
        assert len(reader.owned) == 3


def test_a_topic_made_anew_is_another_source(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    prepare_topics(one)
    befell: list[str] = []
    source = KafkaSource(one, SMALL, told=befell.append)
    try:
        with EventProducer(one) as producer:
            producer.send(*(Event("u", n) for n in range(5)))
        (before,) = source.assignment(WAIT_S)
        until(lambda: source.poll({}), "the old events")
        admin = KafkaAdminClient(**client_options(one))
        try:
            admin.delete_topics([one.topic])
            until(lambda: one.topic not in admin.list_topics(), "the topic to go")
        finally:
            admin.close()
        prepare_topics(one)
        with EventProducer(one) as producer:
            producer.send(*(Event("u", n) for n in range(3)))
        items: list[bytes] = []
        after: frozenset[Partition] = frozenset()

        def read() -> bool:
            nonlocal after
            try:
                if not after or before in after:
                    after = source.assignment(0.5)
                batch = source.poll({})
            except AssignmentLost:
                after = frozenset()
                return False
            if batch is not None and before not in after:
                items.extend(batch.events.item_id.tolist())
            return len(items) == 3

        until(read, "the new topic's events")
        assert items == [b"0", b"1", b"2"]
        assert "recreated_topic" in befell
    finally:
        source.close()


def test_of_two_with_one_instance_name_the_older_is_told_and_ends(kafka: KafkaSettings) -> None:
    prepare_topics(kafka)
    first = KafkaSource(kafka, SMALL, "worker")
    try:
        until(lambda: first.assignment(1.0), "partitions")
        second = KafkaSource(kafka, SMALL, "worker")
        try:
            until(lambda: second.assignment(1.0), "partitions of the newer")
            with pytest.raises(StreamMisconfigured, match=r"the same instance name .* \[trainer\] instance"):
                until(lambda: first.poll({}), "the older to be told")
        finally:
            second.close()
    finally:
        first.close()


def test_a_stalled_partition_is_told_and_the_consumer_made_anew(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Alive but consuming nothing: records are there, none come."""
    one = kafka.model_copy(update={"partitions": 1})
    prepare_topics(one)
    monkeypatch.setattr(kafka_source, "_CHECK_EVERY_S", 0.2)
    befell: list[str] = []
    source = KafkaSource(one, SMALL.model_copy(update={"stall_timeout_s": 1.0}), told=befell.append)
    try:
        source.assignment(WAIT_S)
        assert source.poll({}) is None
        hung = source._member
        assert hung is not None
        real = hung.fetch

        def fetch(*arguments: Any) -> Any:
            real(*arguments)
            return {}

        monkeypatch.setattr(hung, "fetch", fetch)
        with EventProducer(one) as producer:
            producer.send(*(Event("u", n) for n in range(5)))
        with pytest.raises(AssignmentLost, match="hung"):
            until(lambda: source.poll({}), "the watchdog")
        source.assignment(WAIT_S)
        until(lambda: source.poll({}), "the events")
        assert source.counters.consumers_restarted == 1
        assert befell.count("stalled_partition") == 1
        assert "partition 0 of" in caplog.text
        assert "at offset 0 of 5" in caplog.text
    finally:
        source.close()


def test_a_log_that_was_cut_is_seen_at_its_end(
    tmp_path: Path,
    broker_starter: Callable[..., tuple[str, Callable[[], None]]],
    settings_for: Callable[..., KafkaSettings],
) -> None:
    """As after an unclean leader election: the broker comes back without its last records, and writes others there."""
    port = free_port()
    bootstrap, kill = broker_starter(tmp_path, port)
    one = settings_for(bootstrap, partitions=1)
    prepare_topics(one)
    try:
        with EventProducer(one) as producer:
            for n in range(10):
                producer.send(Event("u", n))
                producer.flush()  # a record batch each
        source = KafkaSource(one, SMALL)
        try:
            (partition,) = source.assignment(WAIT_S)
            until(lambda: source.poll({}), "the events")
            kill()
            (log,) = tmp_path.rglob(f"{one.topic}-0/*.log")
            data = log.read_bytes()
            log.write_bytes(data[: len(data) * 6 // 10 + 5])  # a whole number of batches and a part of one
            _, kill = broker_starter(tmp_path, port)

            def bounds() -> tuple[int, int] | None:
                try:
                    if not source.assignment(1.0):
                        return None
                    return source.bounds(partition)
                except (AssignmentLost, StreamUnavailable):
                    return None

            until(lambda: (found := bounds()) is not None and found[1] < 10, "the new end")
            found = bounds()
            assert found is not None
            assert 0 < found[1] < 10
        finally:
            source.close()
    finally:
        kill()
