"""Past events from a file, each once whatever happens, and then the live stream."""

from __future__ import annotations

import gzip
import itertools
import logging
import random
from pathlib import Path

import numpy as np
import pytest

from embedding_store.contract import Source
from embedding_store.errors import StoreUnavailable
from embedding_store.memory import MemoryStore
from ingest.contract import StreamMisconfigured
from ingest.history_file import HistoryFile
from ingest.settings import IngestSettings
from tests.trainer.test_exactly_once import (
    MODEL,
    Killed,
    faults,  # noqa: F401  a fixture
    settings_of,
    source_of,
    topic,
    work,
)
from trainer.bootstrap import learn_history
from trainer.metrics import Metrics

SMALL = IngestSettings(batch_events=150)


def lines(n: int) -> list[str]:
    return [
        f'{{"user_id": {i % 7}, "item_id": {100 + i % 11}, "timestamp": {1_700_000_000_000 + i}}}' for i in range(n)
    ]


def counts(store: MemoryStore) -> dict[int, int]:
    rows = store.changes("item", None)
    return dict(zip(rows.keys.tolist(), rows.rows.count.tolist(), strict=True))


def learn(store: MemoryStore, path: Path, stop_after: int = 10**6) -> bool:
    turns = itertools.count()
    return learn_history(
        store, HistoryFile(path, SMALL), MODEL, settings_of(), Metrics(), lambda: next(turns) > stop_after
    )


def test_killed_at_any_moment_every_event_counts_once_and_the_live_stream_follows(faults, tmp_path):  # noqa: F811
    path = tmp_path / "past.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines(1000)).encode()))
    rng = random.Random(1)
    store = MemoryStore()
    faults.plan = dict.fromkeys(rng.sample(range(40), 6), Killed)
    deaths = 0
    for _ in range(20):
        try:
            assert learn(store, path)
            break
        except Killed:
            deaths += 1
    assert deaths == 6 - len(faults.plan) > 0
    faults.plan = {}
    expected = {100 + r: len(range(r, 1000, 11)) for r in range(11)}
    assert counts(store) == expected
    assert {s.clock for t in MODEL.tables() for s in store.status(t)} == {1000}
    assert learn(store, path), "once learned, never again"
    assert counts(store) == expected
    messages, clicks = topic(rng, 2, 20)
    work(store, MODEL, settings_of(), source_of(messages))
    assert {s.clock for t in MODEL.tables() for s in store.status(t)} == {1000 + len(clicks)}
    offsets = store.status("item")[0].offsets
    assert {offsets[Source(*p)] for p in messages} == {20}


def test_told_to_stop_it_is_taken_up_later(faults, tmp_path):  # noqa: F811
    path = tmp_path / "past.jsonl"
    path.write_text("\n".join(lines(1000)))
    store = MemoryStore()
    assert not learn(store, path, stop_after=6)
    assert 0 < store.status("item")[0].clock < 1000
    assert learn(store, path)
    assert store.status("item")[0].clock == 1000


def test_a_file_without_an_event_is_learned_at_once(faults, tmp_path):  # noqa: F811
    (tmp_path / "past.jsonl").write_text("")
    store = MemoryStore()
    assert learn(store, tmp_path / "past.jsonl", stop_after=50)
    assert store.status("item")[0].clock == 0


def test_what_could_not_be_applied_at_the_end_is_learned_again(faults, tmp_path):  # noqa: F811
    """The store was away just when the worker left."""
    path = tmp_path / "past.jsonl"
    path.write_text("\n".join(lines(100)))
    store, source = MemoryStore(), HistoryFile(path, SMALL)
    delivered = []

    class Slow(HistoryFile):
        def poll(self, stop_at):
            batch = super().poll(stop_at)
            if batch is not None and not delivered:
                delivered.append(len(batch.events))
                faults.plan = {faults.half: StoreUnavailable}
            return batch

    source.__class__ = Slow
    assert learn_history(store, source, MODEL, settings_of(apply_every=100), Metrics(), lambda: False)
    assert store.status("item")[0].clock == 100


def test_a_table_of_commas_is_the_same_events(tmp_path):
    table = ["user_id,item_id,label,timestamp,note", 'a,7,1,1700000000000,"x, y"', "00123,b,0,2023-11-15T00:00:00Z,"]
    (tmp_path / "past.csv").write_text("\n".join(table))
    batch = HistoryFile(tmp_path / "past.csv", SMALL).poll({})
    assert batch is not None
    events = batch.events
    assert (events.user_id.tolist(), events.item_id.tolist()) == ([b"a", b"00123"], [b"7", b"b"])
    assert events.label.tolist() == [1.0, 0.0]
    assert np.all(events.time_ms > 1_690_000_000_000)


def test_what_can_not_be_used_is_said_and_the_rest_goes_on(faults, tmp_path, caplog):  # noqa: F811
    path = tmp_path / "past.jsonl"
    path.write_text("\n".join([*lines(150), "not json", *lines(10)]))
    store = MemoryStore()
    with caplog.at_level(logging.WARNING):
        assert learn(store, path)
    assert store.status("item")[0].clock == 160
    assert "1 events of" in caplog.text


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("past.parquet", b"", "should be named"),
        ("past.jsonl.gz", b"not gzip", "can't be read from line 1 on: Not a gzipped file"),
        ("past.csv", b"user,item\n", "no column item_id nor user_id"),
        ("past.csv", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_file_that_can_not_be_read_is_one_sentence(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(StreamMisconfigured, match=says):
        HistoryFile(tmp_path / name, SMALL)
    with pytest.raises(StreamMisconfigured, match="can't be read: No such file"):
        HistoryFile(tmp_path / "missing.jsonl", SMALL)
