"""What `GroupMember` promises, for every client, on a real broker."""

from __future__ import annotations

import importlib.util
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from ingest.contract import StreamMisconfigured
from ingest.fetched import Fetched
from ingest.group_member import GroupMember, NotOwned, PositionGone
from ingest.kafka_client import client_options
from ingest.kafka_source import KafkaSource, member_of
from ingest.kafka_topics import prepare_topics
from ingest.producer import EventProducer
from ingest.settings import CLIENTS, Client, IngestSettings, KafkaSettings
from tests.servers import free_port

pytestmark = pytest.mark.servers
WAIT_S = 60.0


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


@contextmanager
def joined(kafka: KafkaSettings, instance: str | None = None) -> Iterator[GroupMember]:
    """A member that owns all partitions, and has let the group know that it has seen so."""
    prepare_topics(kafka)
    member = member_of(kafka, instance, 1 << 20)
    try:
        until(lambda: len(own(member)) == kafka.partitions, "all partitions")
        yield member
    finally:
        member.close(leave=True)


def own(member: GroupMember) -> set[int]:
    """What a member owns after another moment in the group, all of it accepted."""
    member.join(0.1)
    rebalances, owned = member.owned()
    member.accept(rebalances)
    return set(owned)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what


def filled(kafka: KafkaSettings, n: int, producer: EventProducer | None = None) -> None:
    """n records in each partition; a value tells its place, of a topic that was empty."""
    with EventProducer(kafka) if producer is None else nullcontext(producer) as sender:
        for number in range(kafka.partitions):
            for i in range(n):
                sender.send_raw(b"%d:%d" % (number, i), partition=number)
        sender.flush()


def values(chunks: Sequence[Fetched]) -> list[bytes]:
    return [
        chunk.data[at : at + size].tobytes()
        for chunk in chunks
        for at, size in zip(chunk.value_at.tolist(), chunk.value_size.tolist(), strict=True)
    ]


def test_any_sequence_of_seeks_and_pauses_skips_nothing_and_repeats_nothing(kafka: KafkaSettings) -> None:
    three, n, rng = kafka.model_copy(update={"partitions": 3}), 3000, random.Random(11)
    with joined(three) as member:
        filled(three, n)
        at = dict.fromkeys(range(3), 0)
        for number in at:
            member.seek(number, 0)
        seen, wanted = 0, set(at)
        for turn in range(400):
            if turn % 3 == 0:
                wanted = {number for number in at if rng.random() < 0.6}
            if rng.random() < 0.1:
                number = rng.randrange(3)
                at[number] = rng.randrange(n)
                member.seek(number, at[number])
            fetched = member.fetch(wanted, rng.choice([0.0, 0.005, 0.05]), rng.choice([1, 10, 200]))
            assert fetched.keys() == wanted
            for number, (chunks, position) in fetched.items():
                got = values(chunks)
                assert got == [b"%d:%d" % (number, i) for i in range(at[number], at[number] + len(got))]
                assert position == at[number] + len(got)
                at[number] = position
                seen += len(got)
                if position == n:
                    at[number] = rng.randrange(n)
                    member.seek(number, at[number])
        assert seen > n


def test_the_last_records_come_with_the_end_behind_them(kafka: KafkaSettings) -> None:
    """A client may tell of the end in the same breath."""
    with joined(kafka) as member:
        for number in range(kafka.partitions):
            member.seek(number, 0)
        at, got = dict.fromkeys(range(kafka.partitions), 0), 0
        with EventProducer(kafka) as producer:
            for turn in range(1, 41):
                filled(kafka, 5, producer)
                deadline = time.monotonic() + WAIT_S
                while any(position < 5 * turn for position in at.values()):
                    assert time.monotonic() < deadline, at
                    for number, (chunks, position) in member.fetch(at.keys(), 0.1, 3 + turn).items():
                        got += sum(map(len, chunks))
                        at[number] = position
                assert got == 5 * turn * kafka.partitions


def test_nothing_wanted_is_nothing_fetched_and_the_time_passes(kafka: KafkaSettings) -> None:
    with joined(kafka) as member:
        filled(kafka, 10)
        member.seek(0, 0)
        member.seek(1, 0)
        began_s = time.monotonic()
        assert member.fetch(set(), 0.2, 10) == {}
        assert time.monotonic() - began_s >= 0.15
        got: list[bytes] = []
        until(lambda: got.extend(values(member.fetch({1}, 0.1, 100)[1][0])) or len(got) == 10, "the records")
        assert got == [b"1:%d" % i for i in range(10)]


def test_bounds_are_of_what_is_committed(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    with joined(one) as member:
        filled(one, 4)
        producer = KafkaProducer(**client_options(one), transactional_id=one.topic)
        try:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(one.topic, b"open")
            producer.flush()
            assert member.earliest([0]) == {0: 0}
            assert member.ends([0]) == {0: 4}
            producer.commit_transaction()
            until(lambda: member.ends([0]) == {0: 6}, "the committed record and its marker")
        finally:
            producer.close(timeout=5)
        member.seek(0, 4)
        at = 4
        got: list[bytes] = []

        def read() -> bool:
            nonlocal at
            chunks, at = member.fetch({0}, 0.1, 10)[0]
            got.extend(values(chunks))
            return at == 6

        until(read, "the position behind the marker")
        assert got == [b"open"]


def test_null_values_keep_their_keys_and_times(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    with joined(one) as member:
        with EventProducer(one) as producer:
            for value, key in ((b"a", b"k"), (None, b"user:1"), (b"", b""), (b"b", b"user:2")):
                producer.send_raw(value, key, timestamp_ms=1_700_000_000_123)
            producer.flush()
        member.seek(0, 0)
        found: list[Fetched] = []
        until(lambda: found.extend(member.fetch({0}, 0.1, 10)[0][0]) or sum(map(len, found)) == 4, "the records")
        keys = [chunk.key(i) for chunk in found for i in range(len(chunk)) if chunk.value_size[i] < 0]
        assert keys == [b"user:1"]
        assert [size for chunk in found for size in chunk.value_size.tolist()] == [1, -1, 0, 1]
        assert {time_ms for chunk in found for time_ms in chunk.time_ms.tolist()} == {1_700_000_000_123}


def test_what_is_not_owned_is_refused_and_a_place_that_is_gone_is_told(kafka: KafkaSettings) -> None:
    with joined(kafka) as member:
        with pytest.raises(NotOwned):
            member.seek(9, 0)
        with pytest.raises(NotOwned):
            until(lambda: member.fetch({0, 9}, 0.1, 1) is None, "the refusal")
        member.seek(0, 77)
        member.seek(1, 0)
        with pytest.raises(PositionGone, match="partition 0"):
            until(lambda: member.fetch({0}, 0.1, 1) is None, "the broker's answer")


def test_a_log_that_was_cut_and_written_on_is_told_with_the_place(
    tmp_path: Path,
    broker_starter: Callable[..., tuple[str, Callable[[], None]]],
    settings_for: Callable[..., KafkaSettings],
) -> None:
    """As after an unclean leader election: other records lie where some were read."""
    port = free_port()
    bootstrap, kill = broker_starter(tmp_path, port)
    one = settings_for(bootstrap, partitions=1)

    def written() -> None:
        with EventProducer(one) as producer:
            for n in range(10):
                producer.send_raw(b"%d" % n, b"k")
                producer.flush()  # a record batch each

    try:
        with joined(one) as member:
            written()
            member.seek(0, 0)
            until(lambda: member.fetch({0}, 0.1, 100)[0][1] == 10, "the records")
            kill()
            (log,) = tmp_path.rglob(f"{one.topic}-0/*.log")
            data = log.read_bytes()
            log.write_bytes(data[: len(data) * 6 // 10 + 5])  # a whole number of batches and a part of one
            _, kill = broker_starter(tmp_path, port)
            written()
            with pytest.raises(PositionGone) as gone:
                until(lambda: member.fetch({0}, 0.1, 100) is None, "the client to see it")
            assert (gone.value.number, gone.value.cut_at) == (0, 6)
    finally:
        kill()


def test_a_partition_is_only_given_on_when_that_was_accepted(kafka: KafkaSettings) -> None:
    with joined(kafka) as first:
        first.seek(0, 0)
        first.seek(1, 0)
        before = first.rebalances
        other = member_of(kafka, None, 1 << 20)
        try:
            until(lambda: (other.join(0.1), first.fetch(set(first.owned()[1]), 0.1, 1), first.rebalances > before)[2],
                  "the first is asked for one")  # fmt: skip
            rebalances, left = first.owned()
            assert len(left) == 1
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:  # the group waits for it
                other.join(0.1)
                first.fetch(set(left), 0.1, 1)
                assert not other.owned()[1]
            first.accept(rebalances)
            until(lambda: (first.fetch(set(left), 0.1, 1), own(other))[1], "the other gets it")
            assert own(other) == {0, 1} - left.keys()
        finally:
            other.close(leave=True)


def test_members_that_are_busy_between_their_polls_share_as_well(kafka: KafkaSettings) -> None:
    """The group's answers come while nobody polls: a trainer learns a large micro-batch, another waits for its share.

    The second looks for a moment and then waits, as a worker without partitions does.
    """
    with joined(kafka) as first:
        for number in (0, 1):
            first.seek(number, 0)
        second = member_of(kafka, None, 1 << 20)
        turn = itertools.count()

        def in_turn() -> bool:
            if next(turn) % 10 == 0:
                second.join(0.02)
                second.accept(second.rebalances)
            first.fetch(set(first.owned()[1]), 0.0, 1)
            first.accept(first.rebalances)
            time.sleep(0.1)  # what it fetched is learned
            return len(first.owned()[1]) == len(second.owned()[1]) == 1

        try:
            until(in_turn, "one each")
            assert first.owned()[1].keys() | second.owned()[1].keys() == {0, 1}
        finally:
            second.close(leave=True)


def test_a_topic_is_named_alike_by_all(kafka: KafkaSettings) -> None:
    expected = prepare_topics(kafka).identity
    with joined(kafka) as member:
        assert member.topic_id() == expected


def test_members_of_different_clients_share_one_group(kafka: KafkaSettings, client: Client) -> None:
    """So that a deployment may change from one to the other, worker by worker."""
    other: Client = "librdkafka" if client == "kafka-python" else "kafka-python"
    with joined(kafka) as first:
        second = member_of(kafka.model_copy(update={"client": other}), None, 1 << 20)
        try:
            until(lambda: len(own(first)) == len(own(second)) == 1, "one each")
            assert own(first) | own(second) == {0, 1}
        finally:
            second.close(leave=True)
        until(lambda: own(first) == {0, 1}, "both again")


def test_without_its_package_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "confluent_kafka" else real(name))
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", client="librdkafka")
    with pytest.raises(StreamMisconfigured, match=r"pip install 'towline\[librdkafka\]'"):
        KafkaSource(settings, IngestSettings())
