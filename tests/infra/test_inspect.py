"""`towline inspect`: every answer to "why isn't my event there?", and one of them on real servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedding_store.contract import Range, ShardStatus, Source
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from infra.inspection.command import document
from infra.inspection.facts import Facts, Row
from infra.inspection.verdict import reasons
from ingest.columns import Partition
from ingest.kafka_topics import prepare_topics
from ingest.producer import Event, EventProducer
from ingest.settings import KafkaSettings
from ingest.topic_search import Found, Sighting
from tests.brokers import start_kafka
from tests.infra.test_cli import towline
from tests.servers import running, server_names
from tests.serving.conftest import MODEL, Writer

SOURCE, PLACE = Source("T", 0), Partition("T", 0)


def seen(offset: int, *, refused: str = "", tombstone: bool = False) -> Sighting:
    return Sighting(0, offset, 1_700_000_000_000, 1_700_000_000_000, 1.0, refused, tombstone)


def facts(
    *sightings: Sighting,
    row: bool = True,
    offsets: dict[Source, int] | None = None,
    end: int = 100,
    searched: int | None = None,
    table: str = "item",
    **options: Any,
) -> Facts:
    status = ShardStatus(
        clock=50, generation=1, rows=3, event_time_ms=0, produced_ms=0, skipped=0,
        offsets={SOURCE: 100} if offsets is None else offsets,
        stubs=0, remembered=0, evicted=0, expired=0, forgotten=0, late=0, refused=0,
    )  # fmt: skip
    status = replace(status, **options.pop("status", {}))
    found = Found({PLACE: (0, end)}, {PLACE: (0, end if searched is None else searched)}, sightings)
    stored = Row(40, 2, 1_700_000_000_000, np.array([3.0, 4.0], np.float32), ()) if row else None
    spec = MODEL.tables()[table].model_copy(update=options.pop("spec", {}))
    made = Facts("item", "i1", 7, spec, 1, status, stored, False, (), "events", found, "")
    return replace(made, **options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (facts(seen(3)), ["nothing is missing"]),
        (facts(), ["nothing is missing"]),
        (facts(row=False), ["was not produced to 'events'"]),
        (facts(seen(3), seen(99), offsets={SOURCE: 90}), ["1 event of it are produced and not learned", "10 records"]),
        (facts(seen(3), row=False, offsets={}), ["learned from other topics only (none)", "not learned yet"]),
        (facts(row=False, offsets={Source("old", 0): 9}), ["other topics only (old)", "was not produced"]),
        (facts(seen(5, refused="weight is -1")), ["dead letters, the newest, at partition 0 offset 5, as weight"]),
        (facts(seen(5), seen(7), excluded=(Range(SOURCE, 4, 6),)), ["1 event of it are in excluded records (0:4-5)"]),
        (facts(seen(5), row=False, spec={"admit_after": 3}), ["one after 3 events (admit_after)"]),
        (facts(seen(5), seen(6, tombstone=True), row=False), ["offset 6; events before", "it was forgotten"]),
        (facts(seen(5), row=False, status={"evicted": 4}, spec={"max_rows": 9}), ["4 evicted (max_rows 9"]),
        (facts(seen(5), row=False), ["before what the store was restored to"]),
        (facts(seen(5), row=False, taken=True), ["taken by another id"]),
        (facts(seen(5), searched=60), ["before the end of partition 0"]),
        (facts(found=None, away="no broker"), ["can't be asked", "no broker"]),
    ],
)  # fmt: skip
def test_reasons(given: Facts, said: Sequence[str]) -> None:
    told = reasons(given)
    for part in said:
        assert any(part in reason for reason in told), told
    assert ("nothing is missing" in said[0]) == any("nothing is missing" in reason for reason in told)


def test_the_document_is_json_whatever_the_row_holds() -> None:
    row = Row(40, 2, 1_700_000_000_000, np.array([3.0, np.nan, np.inf], np.float32), ())
    told = json.loads(json.dumps(document(facts(seen(3), row=True), 1_700_000_001_500), allow_nan=False))
    assert (told["row"]["norm"], told["row"]["first_values"], told["row"]["age_s"]) == (5.0, [3.0, 4.0], 1.5)
    assert told["sources"] == [{"source": "T:0", "offset": 100, "end": 100}]
    broken = document(replace(facts(), row=row), 1_700_000_001_500)
    assert json.loads(json.dumps(broken, allow_nan=False))["row"]["first_values"] == [3.0, None, None]


@pytest.mark.servers
def test_on_real_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers, stop = start_kafka(tmp_path / "kafka")
    try:
        kafka = KafkaSettings(bootstrap_servers=servers)
        identity = prepare_topics(kafka).identity
        monkeypatch.setattr("tests.serving.conftest.TOPIC", identity)
        with EventProducer(kafka) as producer:
            producer.send(Event("u1", "i1"), Event("u1", 2), Event("u1", "i1", weight=-1), Event("u 2", "i1"))
            producer.forget_user("gone")
            producer.flush()
        folder = tmp_path / "redis"
        folder.mkdir()
        with running(server_names()[0], folder) as redis:
            environ = {
                "TOWLINE_REDIS__URL": redis.url,
                "TOWLINE_KAFKA__BOOTSTRAP_SERVERS": servers,
                "PYTHONPATH": str(Path(__file__).parents[2]),
            }
            early = towline(tmp_path, "inspect", "user", "u1", **environ)
            assert (early.returncode, "no model is published" in early.stderr) == (1, True)
            store = open_store(RedisSettings(url=redis.url))
            writer = Writer(store, MODEL)
            writer.declare()
            writer.apply([("u1", "i1", 1.0)])
            writer.apply([("u1", "2", 1.0)])

            def told(*arguments: str) -> dict[str, Any]:
                answer = towline(tmp_path, "inspect", *arguments, "--json", **environ)
                assert answer.returncode == 0, answer.stderr
                document: dict[str, Any] = json.loads(answer.stdout)
                return document

            user = told("user", "u1")
            assert user["row"]["events"] == 2
            assert [(e["item_id"], e["offset"]) for e in user["row"]["history"]] == [("2", 1), ("i1", 0)]
            assert user["sources"] == [{"source": f"{identity}:0", "offset": 2, "end": 5}]
            assert {name: user["stream"][name] for name in ("records", "events", "waiting", "refused")} == {
                "records": 5, "events": 2, "waiting": 0, "refused": 1,
            }  # fmt: skip
            assert "weight is -1" in " ".join(user["reasons"])
            item = told("item", "i1")
            assert (len(item["row"]["first_values"]), item["stream"]["waiting"]) == (MODEL.dim, 1)
            other = told("user", "u 2")
            assert (other["row"], other["stream"]["newest"]["offset"]) == (None, 3)
            assert "produced and not learned yet" in " ".join(other["reasons"])
            store.exclude([Range(Source(identity, 0), 3, 4)])
            assert "excluded records (0:3-3)" in " ".join(told("user", "u 2")["reasons"])
            assert told("user", "gone")["stream"]["tombstones"] == 1
            assert "was not produced" in " ".join(told("item", "never")["reasons"])
            text = towline(tmp_path, "inspect", "user", "u1", **environ).stdout
            assert "'u1', key" in text
            assert "\nso       1 event" in text
            store.close()
    finally:
        stop()
