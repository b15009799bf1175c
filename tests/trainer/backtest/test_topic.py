"""Back-tests from a range of a topic and on Redis: a real broker, real servers, and the same figures as of a file."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from embedding_store.features import Feature
from embedding_store.model import ModelSettings
from embedding_store.settings import RedisSettings
from embedding_store.snapshots.restore import opened_registered
from ingest.columns import Partition
from ingest.kafka_client import client_options
from ingest.kafka_topics import prepare_topics
from ingest.settings import IngestSettings, KafkaSettings
from native.redis_module.compiler import module_path
from tests.servers import running, server_names
from tests.streams import make_shop
from trainer.backtest.command import Columns, run
from trainer.backtest.errors import BacktestError, DataUnusable, StoreUnusable
from trainer.backtest.topic import read_topic
from trainer.settings import TrainerSettings

pytestmark = pytest.mark.servers
FEATURES = (
    Feature(name="genre", of="item", kind="category"), Feature(name="device", of="request", kind="category"),
)  # fmt: skip
MODEL = ModelSettings(dim=16, history_length=10, shards=2, features=FEATURES)
TRAINER = TrainerSettings.model_validate({"passes": 1, "replay": 1, "group": 128})
INGEST = IngestSettings(batch_events=64)
START_MS = 1_767_225_600_000  # 2026-01-01
DAY_MS = 86_400_000
COLUMNS = Columns("user_id", "item_id", "timestamp", None, "label > 0", "ms", None, None)


@pytest.fixture
def kafka(broker: str) -> KafkaSettings:
    name = uuid.uuid4().hex[:8]
    return KafkaSettings(
        bootstrap_servers=broker, topic=f"live-{name}", dead_letter_topic=f"dead-{name}", group=f"group-{name}",
        partitions=2, request_timeout_ms=15_000,
    )  # fmt: skip


def events(n: int = 1200, days: int = 4) -> list[dict[str, Any]]:
    shop = make_shop(shelf=10, renewed=40, events=n)
    return [
        {"user_id": int(user), "item_id": int(item), "timestamp": START_MS + i * days * DAY_MS // n,
         "features": {"genre": int(genre), "device": "tv" if tv else "phone"}}
        for i, (user, item, genre, tv) in enumerate(zip(*shop, strict=True))
    ]  # fmt: skip


def produce(kafka: KafkaSettings, records: list[tuple[bytes | None, int, bytes | None]]) -> None:
    """(value, time, key) each, to the partition of its number."""
    prepare_topics(kafka)
    producer = KafkaProducer(**client_options(kafka))
    for n, (value, ms, key) in enumerate(records):
        producer.send(kafka.topic, value, key=key, partition=n % 2, timestamp_ms=ms)
    producer.flush()
    producer.close()


def messages(made: list[dict[str, Any]]) -> list[tuple[bytes | None, int, bytes | None]]:
    return [(json.dumps(event).encode(), event["timestamp"], None) for event in made]


def report(capsys: pytest.CaptureFixture[str], data: str, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "warmup": 0.2, "first_only": True, "negatives": False, "frozen": True, "picture": None, "as_json": True,
    }  # fmt: skip
    run(data, COLUMNS, MODEL, TRAINER, INGEST, **(options | changes))
    answer = capsys.readouterr()
    assert "tests of" in answer.err
    document: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    return document


SAME = (
    "events",
    "tests",
    "warmup_events",
    "hr10",
    "hr10_late",
    "ndcg10",
    "mrr",
    "popularity",
    "warm",
    "cold",
    "frozen",
)


def test_a_topic_is_tested_as_a_file_of_its_events_is(kafka, tmp_path: Path, capsys) -> None:
    """Partitions are merged by event time; features come along; the broker is left as it was."""
    made = events()
    produce(kafka, [*messages(made), (b"not json", START_MS, None), (b"{}", START_MS, None)])
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(json.dumps(event) for event in made))
    of_file = report(capsys, str(file))
    of_topic = report(capsys, f"topic:{kafka.topic}", kafka=kafka)
    assert {name: of_topic[name] for name in SAME} == {name: of_file[name] for name in SAME}
    assert (of_topic["unusable_events"], of_topic["forgotten_events"], of_topic["dead_letters"]) == (2, 0, 0)
    plain = MODEL.model_copy(update={"features": ()})
    run(f"topic:{kafka.topic}", COLUMNS, plain, TRAINER, INGEST, warmup=0.2, first_only=True, negatives=False,
        frozen=False, picture=None, as_json=True, kafka=kafka)  # fmt: skip
    without = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert of_topic["hr10"] > 1.1 * without["hr10"]  # they do come along
    admin = KafkaAdminClient(**client_options(kafka))
    assert all(group["group_id"] != kafka.group for group in map(_as_dict, admin.list_groups()))
    admin.close()
    dead = KafkaConsumer(kafka.dead_letter_topic, **client_options(kafka))
    assert dead.poll(timeout_ms=500) == {}
    dead.close()


def _as_dict(group: Any) -> dict[str, Any]:
    return group if isinstance(group, dict) else {"group_id": group[0]}


def test_a_range_is_cut_by_the_times_of_records(kafka, capsys) -> None:
    made = events()
    produce(kafka, messages(made))
    inside = [e for e in made if START_MS + DAY_MS <= e["timestamp"] < START_MS + 3 * DAY_MS]
    told: list[tuple[int, int]] = []
    text = f"topic:{kafka.topic}@2026-01-02..2026-01-04"
    stream = read_topic(text, kafka, INGEST, MODEL.feature_schema, lambda n, total: told.append((n, total)))
    assert len(stream) == len(inside) == told[-1][0] == told[-1][1]
    ordered = stream.ordered(first_only=False, negatives=True).events
    assert ordered.time_ms.tolist() == [e["timestamp"] for e in inside]
    assert ordered.item_key.tolist() == [e["item_id"] for e in inside]
    assert report(capsys, text, kafka=kafka)["events"] == len(inside)


def test_what_is_asked_for_is_learned(kafka) -> None:
    """Negatives, repeats, profiles at their place, and nobody who is forgotten later."""
    event = {"user_id": 1, "item_id": 2}
    lines = [
        event | {"timestamp": START_MS}, event | {"timestamp": START_MS + 2}, {"item_id": 2, "features": {"genre": 7}},
        event | {"timestamp": START_MS + 1, "label": 0}, event | {"user_id": 9, "timestamp": START_MS + 3},
        event | {"user_id": 9, "timestamp": START_MS + 60},
    ]  # fmt: skip
    times = [START_MS + n for n in (0, 2, 2, 1, 3, 60)]
    records: list[tuple[bytes | None, int, bytes | None]] = [
        (json.dumps(line).encode(), ms, None) for line, ms in zip(lines, times, strict=True)
    ]
    produce(kafka, [*records, (None, START_MS + 50, b"user:9")])
    stream = read_topic(f"topic:{kafka.topic}", kafka, INGEST, MODEL.feature_schema, lambda *_: None)
    assert (len(stream), stream.forgotten) == (4, 1)
    both = stream.ordered(first_only=True, negatives=True)
    assert both.events.label.tolist() == [1, 0, 1]
    assert both.events.user_key.tolist() == [1, 1, 9]
    assert stream.ordered(first_only=False, negatives=False).events.label.tolist() == [1, 1, 1]
    source = both.source(Partition("backtest", 0), IngestSettings(batch_events=1), MODEL.feature_schema)
    batches = [source.poll({}) for _ in range(3)]
    assert [batch.profiles is not None for batch in batches if batch] == [False, False, True]
    assert source.poll({}) is None


def test_what_can_not_be_read_is_said(kafka) -> None:
    prepare_topics(kafka)

    def read(text: str) -> Any:
        return read_topic(text, kafka, INGEST, MODEL.feature_schema, lambda *_: None)

    with pytest.raises(DataUnusable, match="there is no topic 'nowhere'"):
        read("topic:nowhere")
    with pytest.raises(DataUnusable, match="names no range of a topic"):
        read("topic:no where")
    with pytest.raises(DataUnusable, match="ends before it begins"):
        read(f"topic:{kafka.topic}@2026-02-01..2026-01-01")
    assert len(read(f"topic:{kafka.topic}")) == 0
    with pytest.raises(BacktestError, match="no event is left"):
        run(f"topic:{kafka.topic}", COLUMNS, MODEL, TRAINER, INGEST, warmup=0.2, first_only=True, negatives=False,
            frozen=False, picture=None, as_json=False, kafka=kafka)  # fmt: skip


@pytest.mark.parametrize("name", server_names())
@pytest.mark.parametrize("module", [False, True])
def test_on_redis_it_is_what_it_is_in_memory(name: str, module: bool, tmp_path: Path, capsys) -> None:
    """By the same calls; the store is empty again afterwards, and one that isn't is not touched."""
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(json.dumps(event) for event in events(600)))
    options = ("--loadmodule", module_path().path) if module else ()
    with running(name, tmp_path, *options) as server:
        redis = RedisSettings(url=server.url)
        of_memory, of_redis = report(capsys, str(file)), report(capsys, str(file), redis=redis)
        assert {n: of_redis[n] for n in SAME} == {n: of_memory[n] for n in SAME}
        store = opened_registered(redis)
        assert store.tables() == {}
        assert store.published_model() is None
        store.create(MODEL.tables()["item"])
        with pytest.raises(StoreUnusable, match=r"the store holds tables \(item\)"):
            report(capsys, str(file), redis=redis)
        assert list(store.tables()) == ["item"]
        store.close()
    started = time.monotonic()
    with pytest.raises(StoreUnusable):
        report(capsys, str(file), redis=redis.model_copy(update={"timeout_s": 0.5}))
    assert time.monotonic() - started < 30
    assert np.isfinite(of_redis["hr10"])
