"""What is librdkafka's own: its properties, its errors, and its messages as columns."""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from pydantic import SecretStr

from ingest.contract import StreamMisconfigured, StreamUnavailable
from ingest.librdkafka_client import client_configuration, meaning
from ingest.librdkafka_records import columns
from ingest.settings import KafkaSettings

SASL = KafkaSettings(
    bootstrap_servers="a:1, b:2",
    client="librdkafka",
    security_protocol="SASL_SSL",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="someone",
    sasl_password=SecretStr("hush-hush"),
    ssl_check_hostname=False,
)


def test_security_by_librdkafkas_names() -> None:
    found = client_configuration(SASL)
    assert found["bootstrap.servers"] == "a:1,b:2"
    assert (found["sasl.mechanism"], found["sasl.username"], found["sasl.password"]) == (
        "SCRAM-SHA-512", "someone", "hush-hush",
    )  # fmt: skip
    assert found["ssl.endpoint.identification.algorithm"] == "none"
    Consumer(found | {"group.id": "g"}).close()  # it knows every property, and refuses what it doesn't
    assert not [
        name for name in client_configuration(KafkaSettings(bootstrap_servers="a:1")) if name.startswith("sasl")
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"sasl_username": ""}, "sasl_username"),
        ({"ssl_ca_file": "/nowhere.pem"}, "nowhere.pem"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(StreamMisconfigured, match=says):
        client_configuration(SASL.model_copy(update=change))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTHENTICATION, StreamMisconfigured),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, StreamMisconfigured),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, StreamMisconfigured),
        (KafkaError.FENCED_INSTANCE_ID, StreamMisconfigured),
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, StreamMisconfigured),
        (KafkaError._INVALID_ARG, StreamMisconfigured),
        (KafkaError._TRANSPORT, StreamUnavailable),
        (KafkaError._BAD_MSG, StreamUnavailable),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, StreamUnavailable),
    ],
)
def test_errors_are_told_apart_and_say_where(code: int, kind: type[Exception]) -> None:
    told = meaning(KafkaError(code, "because"), "doing it", SASL)
    assert type(told) is kind
    assert "a:1" in str(told)
    assert "hush" not in str(told)


def test_messages_of_mixed_partitions_are_the_columns_of_each_in_order() -> None:
    rng = random.Random(4)
    at = {3: 100, 0: 7, 12: 0}
    expected: dict[int, list[tuple[int, int, bytes | None, bytes | None]]] = {number: [] for number in at}
    messages: list[Any] = []
    for _ in range(500):
        number = rng.choice(list(at))
        at[number] += rng.randrange(1, 4)
        value = rng.choice([None, b"", b"%d" % rng.randrange(10**6)])
        key = rng.choice([None, b"", b"user:%d" % rng.randrange(99)])
        time_ms = rng.randrange(10**12)
        expected[number].append((at[number], time_ms, key, value))
        messages.append(
            Message(topic="t", partition=number, offset=at[number], key=key, value=value, timestamp=(1, time_ms))
        )
    found = columns(messages)
    assert found.keys() == expected.keys()
    for number, chunk in found.items():
        assert len(chunk) == len(expected[number])
        for i, (offset, time_ms, key, value) in enumerate(expected[number]):
            at_value, size = int(chunk.value_at[i]), int(chunk.value_size[i])
            assert (int(chunk.offset[i]), int(chunk.time_ms[i])) == (offset, time_ms)
            assert (None if size < 0 else chunk.data[at_value : at_value + size].tobytes()) == value
            if value is None:
                assert chunk.key(i) == key


def test_nothing_is_no_columns() -> None:
    assert columns([]) == {}
