"""`towline produce` on a real broker: every event once, in its user's order, many in a record."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaConsumer, TopicPartition

from ingest.kafka_client import client_options
from ingest.kafka_topics import prepare_topics
from ingest.producer import EventProducer
from ingest.settings import KafkaSettings

pytestmark = pytest.mark.servers
WAIT_S = 60.0
PARTITIONS = 3


@pytest.fixture
def kafka(broker: str) -> KafkaSettings:
    name = uuid.uuid4().hex[:10]
    return KafkaSettings(bootstrap_servers=broker, topic=name, dead_letter_topic=f"{name}.dead", partitions=PARTITIONS)


def command(kafka: KafkaSettings, *arguments: str, **environ: str) -> tuple[list[str], dict[str, str]]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TOWLINE_")}
    own = {
        "TOWLINE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "TOWLINE_KAFKA__TOPIC": kafka.topic,
        "TOWLINE_KAFKA__DEAD_LETTER_TOPIC": kafka.dead_letter_topic,
        "TOWLINE_KAFKA__PARTITIONS": str(kafka.partitions),
        "TOWLINE_REDIS__URL": "redis://not-used",
    }
    return [sys.executable, "-m", "infra", "produce", *arguments], clean | own | environ


def produce(
    kafka: KafkaSettings, *arguments: str, given: bytes = b"", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    line, env = command(kafka, *arguments, **environ)
    return subprocess.run(line, env=env, input=given, capture_output=True, timeout=WAIT_S, check=False)


def topic(kafka: KafkaSettings, n: int) -> list[tuple[int, list[bytes]]]:
    """(partition, lines) of every record, once n lines are there."""
    consumer = KafkaConsumer(**client_options(kafka), auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        consumer.assign([TopicPartition(kafka.topic, p) for p in range(PARTITIONS)])
        found: list[tuple[int, list[bytes]]] = []
        deadline = time.monotonic() + WAIT_S
        while sum(len(lines) for _, lines in found) < n:
            assert time.monotonic() < deadline, found
            for records in consumer.poll(timeout_ms=100).values():
                found += [(record.partition, record.value.split(b"\n")) for record in records]
        return found
    finally:
        consumer.close()


def line(i: int) -> bytes:
    return b'{"user_id":"u%d","item_id":%d}' % (i % 50, i)


def check_whole(kafka: KafkaSettings, lines: list[bytes], most: int = 100) -> list[tuple[int, list[bytes]]]:
    found = topic(kafka, len(lines))
    assert sorted(one for _, record in found for one in record) == sorted(lines)
    assert max(len(record) for _, record in found) <= most
    with EventProducer(kafka) as producer:
        last: dict[object, int] = {}
        for partition, record in found:
            for event in map(msgspec.json.decode, record):
                assert partition == producer.partition_of(event["user_id"])
                assert last.get(event["user_id"], -1) < int(event["item_id"])
                last[event["user_id"]] = int(event["item_id"])
    return found


@pytest.mark.parametrize("name", ["events.jsonl", "events.ndjson.gz"])
def test_a_file_arrives_whole_by_user_and_in_order(kafka: KafkaSettings, tmp_path: Path, name: str) -> None:
    lines = [line(i) for i in range(5_000)]
    text = b"\n".join(lines)
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    done = produce(kafka, str(tmp_path / name))
    assert done.returncode == 0, done.stderr
    found = check_whole(kafka, lines)
    said = re.fullmatch(rb"5,000 events to \w+ in (\d+) records, [\d,]+ events/s\n", done.stdout)
    assert said is not None
    assert int(said[1]) == len(found) <= 5_000 / 100 + PARTITIONS


def test_a_csv_and_limits_of_a_record(kafka: KafkaSettings, tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    file.write_text("user_id,item_id,label\n" + "".join(f"u{i % 5},{i},1\n" for i in range(300)))
    done = produce(kafka, str(file), "--max-events", "7", "--linger-ms", "60000")
    assert done.returncode == 0, done.stderr
    check_whole(kafka, [b'{"user_id":"u%d","item_id":"%d","label":1}' % (i % 5, i) for i in range(300)], most=7)


def test_standing_input_goes_out_after_the_linger_and_not_at_its_end(kafka: KafkaSettings) -> None:
    prepare_topics(kafka)
    arguments, env = command(kafka, "-")
    with subprocess.Popen(arguments, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            for n in (1, 2):
                process.stdin.write(line(n) + b"\n")
                process.stdin.flush()
                assert len(topic(kafka, n)) == n
                assert process.poll() is None
            process.stdin.close()
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def test_an_event_that_cannot_be_used_is_named_and_what_came_before_it_is_sent(kafka: KafkaSettings) -> None:
    lines = [line(i) for i in range(20)]
    lines[12] = b'{"user_id":"u","item_id":"i","weight":-1}'
    text = b"\n\n".join(lines)
    done = produce(kafka, "-", given=text)
    assert done.returncode == 1
    assert b"standard input line 25: " in done.stderr
    assert b"weight" in done.stderr
    assert b"12 events before it were sent: correct it and go on with --from-line 25" in done.stderr
    check_whole(kafka, lines[:12])
    done = produce(kafka, "-", "--from-line", "25", "--skip-bad", given=text)
    assert done.returncode == 0
    assert b"standard input line 25: " in done.stderr
    assert b"7 events to" in done.stdout
    assert b"1 can't be used and were left out" in done.stdout
    check_whole(kafka, lines[:12] + lines[13:])


def test_a_rate_is_kept(kafka: KafkaSettings) -> None:
    began_s = time.monotonic()
    done = produce(kafka, "-", "--rate", "200", given=b"\n".join(line(i) for i in range(401)))
    assert done.returncode == 0
    assert time.monotonic() - began_s >= 2.0
    check_whole(kafka, [line(i) for i in range(401)])


def test_message_pack_where_the_topic_is_of_that_format(kafka: KafkaSettings) -> None:
    done = produce(kafka, "-", given=line(1) + b"\n" + line(51), TOWLINE_INGEST__CODEC="msgpack")
    assert done.returncode == 0, done.stderr
    ((_, parts),) = topic(kafka, 1)
    assert msgspec.msgpack.decode(b"\n".join(parts)) == [
        {"user_id": "u1", "item_id": 1},
        {"user_id": "u1", "item_id": 51},
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/nowhere.jsonl"], b"/nowhere.jsonl can't be read"),
        (["events.txt"], b"events.txt should be named .jsonl"),
    ],
)
def test_input_that_cannot_be_read_is_named(kafka: KafkaSettings, arguments: list[str], says: bytes) -> None:
    done = produce(kafka, *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert b"Traceback" not in done.stderr
