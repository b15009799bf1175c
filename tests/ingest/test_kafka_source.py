"""`KafkaSource` against a real broker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from ingest.columns import MicroBatch, Partition
from ingest.contract import AssignmentLost, OffsetsLost, StreamMisconfigured, StreamUnavailable
from ingest.kafka_client import client_options
from ingest.kafka_source import KafkaSource
from ingest.kafka_topics import prepare_topics
from ingest.producer import Event, EventProducer
from ingest.settings import CLIENTS, Client, IngestSettings, KafkaSettings
from native.identity import key_and_check
from tests.servers import free_port

pytestmark = pytest.mark.servers
WAIT_S = 60.0
SMALL = IngestSettings(batch_events=10, batch_wait_ms=5)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


@contextmanager
def member(kafka: KafkaSettings, ingest: IngestSettings = SMALL, instance: str | None = None) -> Iterator[KafkaSource]:
    source = KafkaSource(kafka, ingest, instance)
    try:
        yield source
    finally:
        source.close()


@contextmanager
def producing(kafka: KafkaSettings) -> Iterator[EventProducer]:
    prepare_topics(kafka)
    with EventProducer(kafka) as producer:
        yield producer
        producer.flush()


def events(n: int, start: int = 0) -> list[Event]:
    return [Event(f"u{i}", i) for i in range(start, start + n)]


def drain(source: KafkaSource, stop_at: dict[Partition, int] | None = None) -> list[MicroBatch]:
    """Batches until every owned partition has reached its end, or its stop."""
    stops = stop_at or {}
    owned = source.assignment(WAIT_S)
    reach = {p: min(source.bounds(p)[1], stops.get(p, 1 << 60)) for p in owned}
    at = dict.fromkeys(owned, 0)
    batches = []
    deadline = time.monotonic() + WAIT_S
    while any(at[p] < reach[p] for p in owned):
        assert time.monotonic() < deadline, f"at {at}, not yet at {reach}"
        batch = source.poll(stops)
        if batch is not None:
            batches.append(batch)
            at |= {p: stop for p, (_, stop) in batch.ranges.items()}
    return batches


def poll_until(source: KafkaSource, n: int) -> list[MicroBatch]:
    """Batches until n events have come."""
    batches: list[MicroBatch] = []
    deadline = time.monotonic() + WAIT_S
    while len(items(batches)) < n:
        assert time.monotonic() < deadline
        batch = source.poll({})
        if batch is not None:
            batches.append(batch)
    return batches


def check_contiguous(batches: list[MicroBatch]) -> None:
    at: dict[Partition, int] = {}
    for batch in batches:
        for partition, (start, stop) in batch.ranges.items():
            assert start == at.get(partition, start)
            assert start < stop
            at[partition] = stop
        spans = {p.number: span for p, span in batch.ranges.items()}
        for number, place in zip(batch.events.partition.tolist(), batch.events.place.tolist(), strict=True):
            assert spans[number][0] <= place >> 16 < spans[number][1]


def items(batches: list[MicroBatch]) -> list[bytes]:
    return [item for batch in batches for item in batch.events.item_id.tolist()]


def letters(kafka: KafkaSettings, n: int) -> list[tuple[bytes, bytes | None, dict[str, str]]]:
    """The first n dead letters: (key, value, headers)."""
    consumer = KafkaConsumer(**client_options(kafka), auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        tps = [TopicPartition(kafka.dead_letter_topic, p) for p in range(kafka.partitions)]
        consumer.assign(tps)
        found: list[tuple[bytes, bytes | None, dict[str, str]]] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < n:
            assert time.monotonic() < deadline, found
            for records in consumer.poll(timeout_ms=200).values():
                found += [(r.key, r.value, {k: v.decode() for k, v in r.headers}) for r in records]
        return found
    finally:
        consumer.close()


def test_every_event_once_in_contiguous_ranges_over_random_batch_sizes(kafka: KafkaSettings) -> None:
    rng = random.Random(5)
    with producing(kafka) as producer:
        producer.send(*events(150))
        producer.send_lines(events(300, 150), per_record=7)
    for size in (1, 7, 64, 1000):
        ingest = IngestSettings(batch_events=size, batch_wait_ms=rng.choice([0, 3]))
        with member(kafka.model_copy(update={"group": f"{kafka.group}-{size}"}), ingest) as source:
            batches = drain(source)
            check_contiguous(batches)
            assert sorted(map(int, items(batches))) == list(range(450))
            assert all(len(b.events) <= max(size, 7) for b in batches)


def test_what_waits_is_taken_along_up_to_the_most(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send(*events(450))
    ingest = IngestSettings(batch_events=10, max_batch_events=100, batch_wait_ms=5)
    with member(kafka, ingest) as source:
        batches = drain(source)
        check_contiguous(batches)
        sizes = [len(batch.events) for batch in batches]
        assert sorted(map(int, items(batches))) == list(range(450))
        assert max(sizes) == 100  # it lay there
        with EventProducer(kafka) as producer:
            producer.send(*events(10, 450))
            producer.flush()
            assert [len(batch.events) for batch in poll_until(source, 10)][-1] <= 10  # and is not waited for
            assert source.poll({}) is None


def test_a_burst_waits_at_the_broker_and_not_here(kafka: KafkaSettings) -> None:
    one, n, rng = kafka.model_copy(update={"partitions": 1}), 300_000, np.random.default_rng(0)
    ids = rng.integers(1, 1 << 60, (n, 2)).tolist()  # of random digits: they are not compressed to nothing
    lines = [b'{"user_id":%d,"item_id":%d}' % (user, item) for user, item in ids]
    with producing(one) as producer:
        for i in range(0, n, 100):
            producer.send_raw(b"\n".join(lines[i : i + 100]), b"k")
    most = 1000
    with member(one, IngestSettings(batch_events=100, max_batch_events=most, batch_wait_ms=5)) as source:
        while not source.assignment(timeout_s=1.0):
            pass
        backlog, learned, longest, deadline = source._backlog, 0, 0, time.monotonic() + WAIT_S
        while learned < n:
            assert time.monotonic() < deadline
            position, waited = backlog.position(0), backlog.waiting(0)
            batch = source.poll({})
            if batch is None:  # an answer is on its way
                continue
            assert len(batch.events) <= most
            assert waited < 3 * most or backlog.position(0) == position, "plenty waits, and more was fetched"
            learned, longest = learned + len(batch.events), max(longest, backlog.waiting(0))
        assert longest < 2 * n / 3, "about one answer of the broker is here, and not the burst"


def test_what_cannot_be_used_is_buried_with_its_place_and_the_stream_goes_on(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    good = b'{"user_id":1,"item_id":2}'
    future = int(time.time() * 1000) + 3 * 86_400_000
    bad: list[tuple[bytes | None, bytes | None, str, str]] = [
        (b"{nope", None, "malformed", "nope"),
        (b"", None, "empty", "empty"),
        (b"\xff\xfe", None, "malformed", "malformed"),
        (b'{"user_id":1,"item_id":2,"weight":NaN}', None, "malformed", "NaN"),
        (b'{"user_id":1,"item_id":2,"weight":-1}', None, "weight", "-1"),
        (b'{"user_id":1,"item_id":2,"label":1e30}', None, "label", "1e+30"),
        (b'{"user_id":1,"item_id":2,"timestamp":%d}' % future, None, "timestamp", "later"),
        (b'{"user_id":1,"item_id":2,"timestamp":1700000000}', None, "timestamp", "seconds"),
        (b"x" * 5000, None, "oversized", "5000 bytes"),
        (None, b"nobody:5", "tombstone", "nobody:5"),
        (good + b"\n{bad\n" + good, None, "malformed", "bad"),
    ]
    with producing(one) as producer:
        for value, key, _, _ in bad:
            producer.send_raw(good, b"k")
            producer.send_raw(value, key)
        producer.send_raw(good, b"k")
    with member(one, IngestSettings(max_record_bytes=4096, batch_wait_ms=5)) as source:
        batches = drain(source)
        source.flush_dead_letters()
        source.flush_dead_letters()
    assert sum(len(b.events) for b in batches) == len(bad) + 1 + 2
    assert sum(b.dead_letters for b in batches) == len(bad)
    found = {int(headers["offset"]): (key, value, headers) for key, value, headers in letters(one, len(bad))}
    for i, (value, _, kind, says) in enumerate(bad):
        offset = 2 * i + 1
        key, buried, headers = found[offset]
        line = 1 if b"bad\n" in (value or b"") else 0
        assert key == f"{one.topic}:0:{offset}:{line}".encode()
        assert headers["topic"] == one.topic
        assert (headers["partition"], headers["line"], headers["kind"]) == ("0", str(line), kind)
        assert says in headers["reason"]
        assert buried == (b"{bad" if line else value)


def test_a_tombstone_ends_its_batch(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    with producing(one) as producer:
        producer.send(*events(3))
        producer.forget_user(7)
        producer.forget_item("x")
        producer.send(*events(2))
    with member(one, IngestSettings(batch_wait_ms=200)) as source:
        batches = drain(source)
    check_contiguous(batches)
    ends = [next(iter(b.ranges.values()))[1] for b in batches]
    assert 4 in ends
    assert 5 in ends
    by_end = dict(zip(ends, batches, strict=True))
    (users, items) = by_end[4].forget_users, by_end[5].forget_items
    assert (users.keys.tolist(), users.checks.tolist(), users.partition.tolist()) == ([7], [0], [0])
    assert (users.place.tolist(), items.place.tolist()) == ([3 << 16], [4 << 16])
    assert (items.keys.tolist(), items.checks.tolist()) == tuple([part] for part in key_and_check(b"x"))
    assert users.time_ms[0] >= by_end[4].events.produced_ms.max(initial=1)
    assert [len(b.events) for b in batches if next(iter(b.ranges.values()))[0] >= 5] == [2]


def test_no_range_crosses_a_stop_and_the_rest_waits(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send(*events(60))
    with member(kafka) as source:
        owned = sorted(source.assignment(WAIT_S))
        stops = {owned[0]: 5, owned[1]: 13}
        batches = drain(source, stops)
        check_contiguous(batches)
        assert {p: max(b.ranges[p][1] for b in batches if p in b.ranges) for p in owned} == stops
        assert source.poll(stops) is None
        everything = batches + poll_until(source, 60 - len(items(batches)))
        check_contiguous(everything)
        assert sorted(map(int, items(everything))) == list(range(60))


def test_a_seek_replays_the_same_columns(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send_lines(events(100), per_record=3)
        producer.send_raw(b"{bad\n" + b'{"user_id":"\\u0041","item_id":"b"}', b"k")
    with member(kafka, IngestSettings(batch_wait_ms=50)) as source:

        def columns() -> dict[int, list[tuple[object, ...]]]:
            for partition in source.assignment(WAIT_S):
                source.seek(partition, 0)
            out: dict[int, list[tuple[object, ...]]] = {}
            for batch in drain(source):
                e = batch.events
                for i in range(len(e)):
                    row = (e.place[i], e.time_ms[i], e.user_key[i], e.item_key[i], e.user_id.at(i), e.weight[i])
                    out.setdefault(int(e.partition[i]), []).append(row)
            return out

        first = columns()
        assert sum(map(len, first.values())) == 101
        assert columns() == first


def test_paused_partitions_deliver_nothing(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send(*events(40))
    with member(kafka, IngestSettings(batch_events=5, batch_wait_ms=5)) as source:
        first, second = sorted(source.assignment(WAIT_S))
        source.pause(frozenset({first}))
        seen = poll_until(source, source.bounds(second)[1])
        assert source.poll({}) is None
        assert all(first not in batch.ranges for batch in seen)
        source.pause(frozenset())
        seen += poll_until(source, source.bounds(first)[1])
        check_contiguous(seen)
        assert sorted(map(int, items(seen))) == list(range(40))


def test_a_partition_paused_half_read_comes_back(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send(*events(400))
    with member(kafka) as source:
        first, second = sorted(source.assignment(WAIT_S))
        seen = []
        for turn in range(8):  # pause each in the middle of what the client has fetched of it
            source.pause(frozenset({(first, second)[turn % 2]}))
            seen += poll_until(source, 30)
        source.pause(frozenset())
        seen += poll_until(source, 400 - len(items(seen)))
        check_contiguous(seen)
        assert sorted(map(int, items(seen))) == list(range(400))
        assert source.counters.consumers_restarted == 0


def test_a_rebalance_is_told_to_both_and_nothing_is_skipped(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send(*events(200))
    stored: dict[Partition, int] = {}  # the next offset of each, as a store would keep it
    got: list[bytes] = []
    lock = threading.Lock()
    told = []

    def apply(batch: MicroBatch) -> None:
        with lock:
            if all(stored.get(p, 0) == start for p, (start, _) in batch.ranges.items()):
                stored.update({p: stop for p, (_, stop) in batch.ranges.items()})
                got.extend(batch.events.item_id.tolist())

    def work(source: KafkaSource, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        owned: frozenset[Partition] = frozenset()
        while not until():
            assert time.monotonic() < deadline
            if not owned:
                owned = source.assignment(1)
                for partition in owned:
                    source.seek(partition, stored.get(partition, 0))
                continue
            try:
                batch = source.poll({})
            except AssignmentLost as lost:
                told.append(str(lost))
                owned = frozenset()
                continue
            if batch is not None:
                apply(batch)
            source.commit(dict(stored))

    with member(kafka) as first:
        work(first, lambda: len(got) >= 30)
        halt = threading.Event()
        helper = threading.Thread(target=work, args=(first, halt.is_set))
        helper.start()
        try:
            with member(kafka) as second:
                work(second, lambda: len(got) == 200 and bool(second.counters.rebalances and told))
        finally:
            halt.set()
            helper.join(WAIT_S)
        work(first, lambda: len(got) == 200)
        assert first.counters.rebalances >= 2
    assert sorted(map(int, got)) == list(range(200))
    assert any("rebalanced" in t for t in told)


def test_a_static_member_that_comes_back_gets_its_partitions_without_a_rebalance(kafka: KafkaSettings) -> None:
    with member(kafka, instance="one") as first:
        mine = first.assignment(WAIT_S)
        assert len(mine) == 2
        assert first._member is not None
        first._member.close(leave=False)  # dies without a word
        with member(kafka, instance="one") as again:
            begun = time.monotonic()
            assert again.assignment(WAIT_S) == mine
            assert time.monotonic() - begun < kafka.session_timeout_ms / 1000 / 2


def test_a_closed_static_member_leaves_at_once(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    with member(one, instance="a") as source:
        assert len(source.assignment(WAIT_S)) == 1
    with member(one, instance="b") as other:
        begun = time.monotonic()
        assert len(other.assignment(WAIT_S)) == 1
        assert time.monotonic() - begun < one.session_timeout_ms / 1000


def test_a_killed_broker_is_told_and_its_return_is_enough(
    tmp_path: Path,
    broker_starter: Callable[..., tuple[str, Callable[[], None]]],
    settings_for: Callable[..., KafkaSettings],
) -> None:
    port = free_port()
    bootstrap, kill = broker_starter(tmp_path, port)
    one = settings_for(bootstrap, partitions=1).model_copy(update={"request_timeout_ms": 5_000})
    try:
        with producing(one) as producer:
            producer.send(*events(30))
        with member(one, instance="w") as source:
            (partition,) = source.assignment(WAIT_S)
            seen = poll_until(source, 10)
            kill()
            with pytest.raises(StreamUnavailable):
                poll_until_raised(source, seen)
            at = seen[-1].ranges[partition][1]
            _, kill = broker_starter(tmp_path, port)
            with producing(one) as producer:
                producer.send(*events(10, 30))
            deadline = time.monotonic() + WAIT_S
            while at < 40:
                assert time.monotonic() < deadline
                try:
                    batch = source.poll({})
                except StreamUnavailable:
                    continue
                except AssignmentLost:
                    if source.assignment(5):
                        source.seek(partition, at)
                    continue
                if batch is not None:
                    seen.append(batch)
                    at = batch.ranges[partition][1]
            check_contiguous(seen)
            assert sorted(map(int, items(seen))) == list(range(40))
    finally:
        kill()


def test_lost_retention_says_how_many_records_are_gone(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    with producing(one) as producer:
        producer.send(*events(30))
    with member(one) as source:
        (partition,) = source.assignment(WAIT_S)
        admin = KafkaAdminClient(**client_options(one))
        try:
            admin.delete_records({TopicPartition(one.topic, 0): 20})
        finally:
            admin.close()
        source.seek(partition, 4)
        with pytest.raises(OffsetsLost, match="16 records") as lost:
            poll_until_raised(source)
        assert (lost.value.partition, lost.value.position, lost.value.earliest) == (partition, 4, 20)
        assert lost.value.records == source.counters.records_lost_to_retention == 16
        assert source.assignment(WAIT_S) == {partition}
        source.seek(partition, lost.value.earliest)
        assert len(items(drain(source))) == 10


def test_a_position_behind_the_end_is_told(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    with producing(one) as producer:
        producer.send(*events(3))
    with member(one) as source:
        (partition,) = source.assignment(WAIT_S)
        source.seek(partition, 99)
        with pytest.raises(AssignmentLost, match="does not hold offset 99"):
            poll_until_raised(source)


def poll_until_raised(source: KafkaSource, seen: list[MicroBatch] | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        batch = source.poll({})
        if batch is not None and seen is not None:
            seen.append(batch)
    pytest.fail("nothing was raised")


def test_transaction_markers_and_aborted_records_leave_holes(kafka: KafkaSettings) -> None:
    one = kafka.model_copy(update={"partitions": 1})
    prepare_topics(one)
    producer = KafkaProducer(**client_options(one), transactional_id=one.topic)
    try:
        producer.init_transactions()
        for commit in (True, False, True, False):
            producer.begin_transaction()
            for i in range(3):
                producer.send(one.topic, b'{"user_id":1,"item_id":%d}' % (i + 10 * commit))
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()
    finally:
        producer.close(timeout=5)
    with member(one, IngestSettings(batch_events=2, batch_wait_ms=5)) as source:
        batches = drain(source)
        check_contiguous(batches)
        assert items(batches) == [b"10", b"11", b"12"] * 2
        (partition,) = source.assignment(WAIT_S)
        end = source.bounds(partition)[1]
        assert end == 16  # 12 records and 4 markers
        assert batches[-1].ranges[partition][1] == end
        source.seek(partition, 12)  # nothing but aborted records and a marker
        assert [b.ranges[partition] for b in drain(source)][-1][1] == end
        assert source.lag() == 0


def test_a_compacted_topic_is_refused(kafka: KafkaSettings) -> None:
    admin = KafkaAdminClient(**client_options(kafka))
    try:
        options = {"num_partitions": 1, "replication_factor": 1, "configs": {"cleanup.policy": "compact"}}
        admin.create_topics({kafka.topic: options})
    finally:
        admin.close()
    with pytest.raises(StreamMisconfigured, match="compact"):
        KafkaSource(kafka, SMALL)


def test_preparing_topics_is_harmless_to_repeat_and_names_the_incarnation(kafka: KafkaSettings) -> None:
    first = prepare_topics(kafka)
    assert first == prepare_topics(kafka)
    assert first.partitions == 2
    assert first.identity


def test_no_broker_is_unavailable_and_says_where(kafka: KafkaSettings) -> None:
    away = kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1", "request_timeout_ms": 1500})
    with pytest.raises(StreamUnavailable, match=r"127\.0\.0\.1:1"):
        KafkaSource(away, SMALL)


def test_a_user_on_two_partitions_is_counted_and_logged_once(
    kafka: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with producing(kafka) as producer:
        for i in range(6):
            producer.send_raw(b'{"user_id":1,"item_id":%d}' % i, partition=i % 2)
    with member(kafka) as source:
        drain(source)
        assert source.read_counters.users_on_two_partitions >= 1
    assert len([r for r in caplog.records if "two partitions" in r.message]) == 1


def test_events_refused_by_the_store_are_buried_too(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send(Event("ü", 3, label=0, weight=0.5, timestamp=1_700_000_000_000))
    with member(kafka) as source:
        (batch,) = drain(source)
        source.dead_letter(batch, [0], "its key is taken")
        source.flush_dead_letters()
    ((key, value, headers),) = letters(kafka, 1)
    assert value == '{"user_id": "ü", "item_id": "3", "label": 0.0, "weight": 0.5, "timestamp": 1700000000000}'.encode()
    assert (headers["kind"], headers["reason"]) == ("refused_by_store", "its key is taken")
    assert key.startswith(kafka.topic.encode())


def test_a_quarantined_range_is_one_letter_a_partition(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        for i in range(6):
            producer.send_raw(b'{"user_id":1,"item_id":%d}' % i, partition=i % 2)
    with member(kafka) as source:
        batches = drain(source)
        for batch in batches:
            source.quarantine(batch, "loss is 9, where 1 is usual")
        source.flush_dead_letters()
    ranges = {(p.number, *r) for b in batches for p, r in b.ranges.items()}
    found = letters(kafka, len(ranges))
    assert {(int(h["partition"]), int(h["offset"]), int(h["last"]) + 1) for _, _, h in found} == ranges
    assert {(value, h["kind"], h["reason"]) for _, value, h in found} == {
        (None, "quarantined", "loss is 9, where 1 is usual")
    }
    assert {key for key, _, _ in found} == {f"{kafka.topic}:{n}:{a}-{b - 1}".encode() for n, a, b in ranges}


def test_oversized_dead_letters_are_cut_and_say_so(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send_raw(b"x" * 600_000, b"k")
    with member(kafka, IngestSettings(max_record_bytes=100_000)) as source:
        drain(source)
        source.flush_dead_letters()
    ((_, value, headers),) = letters(kafka, 1)
    assert value == b"x" * (256 << 10)
    assert headers["truncated_from"] == "600000"


def test_health_and_lag(kafka: KafkaSettings) -> None:
    with producing(kafka) as producer:
        producer.send(*events(20))
    with member(kafka) as source:
        drain(source)
        assert source.progress_age_s < WAIT_S
        assert source.lag() >= 0
        assert isinstance(np.asarray(source.read_counters.events).item(), int)
        assert source.read_counters.events == 20
