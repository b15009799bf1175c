"""From a Kafka event to a fresh embedding over HTTP, and what must hold when parts are killed on the way."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kafka import KafkaConsumer

from ingest.kafka_client import client_options
from ingest.producer import Event
from tests.end_to_end.conftest import Product, until

pytestmark = pytest.mark.servers


def test_an_event_changes_the_users_embedding_over_http(product: Product) -> None:
    for i in range(40):  # items need company to learn from
        product.producer.send(Event(f"crowd-{i % 8}", f"item-{i % 10}"))
    product.producer.send(Event("u/1", "item-0"))
    product.producer.flush()
    before = until(lambda: product.embedding("user", "u/1"), "the first event of u/1")
    assert before["events"] == 1
    assert before["known"]
    product.producer.send(Event("u/1", "item-3"))
    product.producer.flush()
    after = until(lambda: _with_events(product, "u/1", 2), "the second event of u/1")
    assert after["vector"] != before["vector"]
    assert after["step"] > before["step"]
    assert np.isfinite(after["vector"]).all()


def test_an_event_over_http_is_learned(product: Product) -> None:
    status, answer = product.post(
        "/v1/events", {"events": [{"user_id": "by/http", "item_id": f"item-{n}"} for n in (1, 2)]}
    )
    assert (status, answer) == (202, {"accepted": 2})
    assert until(lambda: _with_events(product, "by%2Fhttp", 2), "both events")["events"] == 2
    status, why = product.get("/v1/explain?user_id=by%2Fhttp&item_id=item-0")
    assert (status, {part["item_id"] for part in why["history"]}) == (200, {"item-1", "item-2"})


def test_recommendations_come_from_the_same_rows(product: Product) -> None:
    status, answer = product.post("/v1/recommend", {"user_id": "u/1", "k": 5})
    assert status == 200
    assert answer["strategy"] == "personal"
    ids = [item["item_id"] for item in answer["items"]]
    assert len(ids) == 5
    assert not {"item-0", "item-3"} & set(ids), "what the user has seen is left out"
    status, cold = product.post("/v1/recommend", {"user_id": "nobody has met them", "k": 5})
    assert status == 200
    assert cold["cold_start"]
    assert len(cold["items"]) == 5


def test_bad_events_are_dead_letters_and_the_stream_goes_on(product: Product) -> None:
    before = product.clock()
    bad = [
        b"not json",
        b'{"user_id": "b", "item_id": "i", "weight": -1}',
        b'{"user_id": "b", "item_id": "i", "weight": NaN}',
        b'{"user_id": "b", "item_id": "i", "timestamp": 99999999999999}',
        b'{"user_id": "b", "item_id": "' + b"x" * 2_000_000 + b'"}',
    ]
    for value in bad:
        product.producer.send_raw(value, b"b")
    product.producer.send(Event("after the bad ones", "item-1"))
    product.producer.flush()
    until(lambda: product.embedding("user", "after%20the%20bad%20ones"), "the good event after the bad ones")
    assert product.clock() == before + 1, "only usable events move the clock"
    letters = _letters(product, len(bad))
    reasons = [dict(letter.headers)["reason"].decode() for letter in letters]
    assert any("weight" in reason and "-1" in reason for reason in reasons), reasons
    assert any("timestamp" in reason for reason in reasons), reasons
    assert any("max_record_bytes" in reason for reason in reasons), reasons
    whole = {letter.value for letter in letters if "truncated_from" not in dict(letter.headers)}
    assert whole == set(bad[:-1])
    (cut,) = (letter for letter in letters if "truncated_from" in dict(letter.headers))
    assert bad[-1].startswith(cut.value)
    assert dict(cut.headers)["truncated_from"] == str(len(bad[-1])).encode()


def test_a_trainer_killed_at_any_moment_loses_and_doubles_nothing(product: Product) -> None:
    before = product.clock()
    users, each = 30, 40
    for round_ in range(each):
        for user in range(users):
            product.producer.send(Event(f"k{user}", f"item-{(user + round_) % 25}", label=round_ % 3 != 0))
        if round_ in (10, 25):
            product.producer.flush()
            moment = product.clock()
            until(lambda m=moment: product.clock() > m or product.clock() >= before + 1, "progress before the kill")
            os.kill(product.pid("trainer"), signal.SIGKILL)
            until(lambda: _dead(product, "trainer"), "the trainer's death")
            product.stack.start_services()
    product.producer.flush()
    until(lambda: product.clock() >= before + users * each, "every event after the kills")
    for table in ("item", "history"):
        assert {s.clock for s in product.store.status(table)} == {before + users * each}, table
    for user in range(users):
        answer = product.embedding("user", f"k{user}")
        assert answer is not None
        assert answer["events"] == each, f"user k{user}"


def test_trainers_come_and_go_while_events_do_and_each_counts_once(product: Product) -> None:
    """A third one joins, one dies, two are stopped: with no word to the others but the group's."""
    before, sent = product.clock(), 0

    def learned_more_after(change: Callable[[], object]) -> None:
        nonlocal sent
        change()
        goal = sent + 200

        def asked() -> bool:
            nonlocal sent
            if sent < goal:
                product.producer.send(*(Event(f"e{n % 50}", f"item-{n % 25}") for n in range(sent, sent + 20)))
                product.producer.flush()
                sent += 20
            return product.clock() >= before + goal

        until(asked, f"{goal} events more")

    def own() -> list[str]:
        return [line.name for line in product.stack.status() if line.kind == "trainer"]

    learned_more_after(lambda: product.stack.start_services(trainers=3))
    assert own() == ["trainer 0", "trainer 1", "trainer 2"]
    learned_more_after(lambda: os.kill(product.pid("trainer"), signal.SIGKILL))
    until(lambda: _dead(product, "trainer"), "the trainer's death")
    learned_more_after(lambda: product.stack.start_services(trainers=1))
    assert own() == ["trainer 0"]
    learned_more_after(lambda: product.stack.start_services(trainers=2))
    for table in ("item", "history"):
        assert {s.clock for s in product.store.status(table)} == {before + sent}, table
    for user in range(50):
        answer = product.embedding("user", f"e{user}")
        assert answer is not None
        assert answer["events"] == len(range(user, sent, 50)), f"user e{user}"


def test_a_tombstone_forgets_a_user(product: Product) -> None:
    product.producer.send(Event("leaving", "item-1"))
    product.producer.flush()
    until(lambda: product.embedding("user", "leaving"), "an event of a user who leaves")
    product.producer.forget_user("leaving")
    product.producer.flush()
    until(lambda: product.get("/v1/embeddings/user/leaving")[0] == 404, "being forgotten")


def test_the_store_may_be_killed_and_everything_waits_for_it(product: Product) -> None:
    before = product.clock()
    os.kill(product.pid("store"), signal.SIGKILL)
    until(lambda: _dead(product, "store"), "the store's death")
    for i in range(50):
        product.producer.send(Event("patient", f"item-{i % 10}"))
    product.producer.flush()
    _, body = until(lambda: (r := product.get("/readyz"))[0] == 503 and r, "readiness to notice")
    assert "store_down" in json.dumps(body)
    product.stack.start_servers()
    until(lambda: product.clock() >= before + 50, "learning to go on")
    answer = until(lambda: _with_events(product, "patient", 50), "the events over HTTP")
    assert answer["events"] == 50
    until(lambda: product.get("/readyz")[0] == 200, "readiness to come back")


def test_trainer_metrics_tell_of_the_stream(product: Product) -> None:
    url = f"http://127.0.0.1:{product.config.trainer.metrics_port}/metrics"
    text = until(lambda: urllib.request.urlopen(url, timeout=5).read().decode(), "metrics")
    for name in (
        "towline_trainer_events_total",
        "towline_trainer_lag_records",
        "towline_prequential_tests",
        "towline_trainer_last_apply_timestamp_seconds",
    ):
        assert f"\n{name} " in text, name


def _with_events(product: Product, user: str, events: int) -> dict[str, Any] | None:
    answer = product.embedding("user", user)
    return answer if answer and answer["events"] >= events else None


def _dead(product: Product, kind: str) -> bool:
    return any(line.kind == kind and line.health == "dead" for line in product.stack.status())


def _letters(product: Product, count: int) -> list[Any]:
    consumer = KafkaConsumer(
        product.config.kafka.dead_letter_topic,
        **client_options(product.config.kafka),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    letters: list[Any] = []
    try:

        def enough() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                letters.extend(records)
            return len(letters) >= count

        until(enough, f"{count} dead letters")
    finally:
        consumer.close()
    return letters
