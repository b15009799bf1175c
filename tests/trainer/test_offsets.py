"""Where a source is continued when events or offsets are gone, by policy; and the whole worker doing so."""

from __future__ import annotations

import itertools
import random
import time
from types import SimpleNamespace

import pytest

from embedding_store.contract import Source
from embedding_store.memory import MemoryStore
from ingest.columns import Partition
from ingest.contract import StreamUnavailable
from ingest.listed import ListedSource
from tests.trainer.small import TOPIC, record
from tests.trainer.test_exactly_once import (
    MODEL,
    check_everything_once,
    complete,
    faults,  # noqa: F401  a fixture
    settings_of,
    source_of,
    topic,
    work,
)
from trainer import worker
from trainer.metrics import Metrics
from trainer.offsets import Finding, OffsetPolicy, OffsetsRefused, Shard, settle
from trainer.progress import Progress
from trainer.worker import Worker

A0, A1, B0 = Shard("a", 0), Shard("a", 1), Shard("b", 0)
STOP = OffsetPolicy("stop", "stop")


def kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.kind for finding in findings]


@pytest.mark.parametrize("policy", [OffsetPolicy(), STOP])
@pytest.mark.parametrize("stored", [{A0: 7, A1: 7, B0: 7}, {A0: 5, A1: 7, B0: 9}])
def test_a_shard_goes_on_from_where_it_stands(policy, stored):
    settled = settle("p", stored, 0, 9, policy)
    assert (settled.offsets, settled.moves, settled.findings) == (stored, (), ())


def test_nobody_knows_the_source():
    settled = settle("p", dict.fromkeys((A0, A1, B0)), 3, 9, STOP)
    assert set(settled.offsets.values()) == {3}
    assert {move.reason for move in settled.moves} == {"first start"}
    assert kinds(settled.findings) == ["first_start"]
    settled = settle("p", dict.fromkeys((A0, A1, B0)), 0, 9, STOP, topic_is_known=True)
    assert kinds(settled.findings) == ["new_partition"]


def test_a_first_start_that_was_interrupted_is_none_of_a_shards_loss():
    settled = settle("p", {A0: 3, A1: None, B0: None}, 3, 9, STOP)
    assert set(settled.offsets.values()) == {3}
    assert settled.findings == ()


def test_a_new_table_joins_the_lowest_of_the_others():
    settled = settle("p", {A0: 8, A1: 6, B0: None}, 0, 9, STOP)
    assert settled.offsets == {A0: 8, A1: 6, B0: 6}
    assert kinds(settled.findings) == ["new_table"]


def test_lost_retention_continues_at_the_earliest_or_stops():
    settled = settle("p", {A0: 8, A1: 2, B0: 8}, 5, 9, OffsetPolicy())
    assert settled.offsets == {A0: 8, A1: 5, B0: 8}
    assert [(m.shard, m.expected, m.new, m.reason) for m in settled.moves] == [(A1, 2, 5, "lost to retention")]
    assert [(f.kind, f.records, f.alarming) for f in settled.findings] == [("retention", 3, True)]
    with pytest.raises(OffsetsRefused, match=r"3 records of p are gone.*on_lost_offsets"):
        settle("p", {A0: 8, A1: 2, B0: 8}, 5, 9, STOP)


def test_a_log_that_was_cut_goes_on_at_its_end_or_stops():
    settled = settle("p", {A0: 8, A1: 4, B0: 8}, 0, 6, OffsetPolicy())
    assert settled.offsets == {A0: 6, A1: 4, B0: 6}
    assert {move.reason for move in settled.moves} == {"log was cut"}
    assert [(f.kind, f.records) for f in settled.findings] == [("truncated", 2)]
    with pytest.raises(OffsetsRefused, match="ends at offset 6, and was learned up to 8"):
        settle("p", {A0: 8, A1: 4, B0: 8}, 0, 6, STOP)


def test_a_lost_shard_is_replayed_if_all_of_it_is_kept():
    lost = {A0: 8, A1: None, B0: 8}
    settled = settle("p", lost, 0, 9, OffsetPolicy())
    assert settled.offsets == {A0: 8, A1: 0, B0: 8}
    assert kinds(settled.findings) == ["lost_shard"]
    with pytest.raises(OffsetsRefused, match=r"shard 1 of table 'a' lost .* holds no more than offsets 2 and up"):
        settle("p", lost, 2, 9, OffsetPolicy())
    settled = settle("p", lost, 2, 9, OffsetPolicy(on_lost_shard="continue"))
    assert settled.offsets == {A0: 8, A1: 2, B0: 8}
    assert [(f.kind, f.records) for f in settled.findings] == [("lost_shard", 2)]
    with pytest.raises(OffsetsRefused, match="on_lost_shard"):
        settle("p", lost, 0, 9, STOP)


def test_a_cut_is_believed_only_after_a_while():
    """The broker that comes back may need a moment until its log is whole."""
    store, found = MemoryStore(), []
    for spec in MODEL.tables().values():
        store.create(spec)
        for shard in range(spec.shards):
            store.seek(spec.name, shard, Source(TOPIC, 0), None, 5, "test")
    stream = ListedSource({Partition(TOPIC, 0): [b"{}"] * 3})
    patient = Progress(store, stream, MODEL.tables(), OffsetPolicy(), 3600, found.append)
    with pytest.raises(StreamUnavailable, match="ends at offset 3, and was learned up to 5"):
        patient.take(stream.assignment(0))
    assert not found
    Progress(store, stream, MODEL.tables(), OffsetPolicy(), 0, found.append).take(stream.assignment(0))
    assert [(f.kind, f.records) for f in found] == [("truncated", 2)]
    assert {o for t in MODEL.tables() for s in store.status(t) for o in s.offsets.values()} == {3}


@pytest.mark.parametrize("table", ["item", "history"])
def test_a_shard_that_lost_everything_has_all_counts_again(faults, table):  # noqa: F811
    """Nothing of it was silently gone: the stream is replayed for it, and the other shards see repeats."""
    messages, clicks = topic(random.Random(3), 2, 30)
    store = MemoryStore()
    work(store, MODEL, settings_of(), source_of({p: log[:20] for p, log in messages.items()}))
    spec = store.spec(table)
    empty = MemoryStore()
    empty.create(spec)
    store._tables[table].shards[1] = empty._tables[table].shards[1]
    metrics = work(store, MODEL, settings_of(), source_of(messages))
    assert complete(store, MODEL, messages)
    check_everything_once(store, MODEL, messages, clicks)
    sample = metrics.registry.get_sample_value
    assert sample("towline_trainer_stream_events_total", {"kind": "lost_shard"}) == 2


def test_a_policy_that_stops_ends_the_worker_and_changes_nothing(faults):  # noqa: F811
    messages, _ = topic(random.Random(4), 1, 20)
    store = MemoryStore()
    work(store, MODEL, settings_of(), source_of(messages))
    before = {t: store.status(t) for t in MODEL.tables()}
    cut = source_of({p: log[:10] for p, log in messages.items()})
    with pytest.raises(OffsetsRefused):
        Worker(store, cut, MODEL, settings_of(), Metrics(), STOP).run(lambda: False)
    assert {t: store.status(t) for t in MODEL.tables()} == before


def test_a_log_that_was_cut_is_learned_on_from_its_end(faults):  # noqa: F811
    """What was learned of the lost records stays; what is written in their place is learned too."""
    messages, clicks = topic(random.Random(5), 1, 20)
    ((p, log),) = messages.items()
    store = MemoryStore()
    work(store, MODEL, settings_of(), source_of(messages))
    before = store.status("item")[0].clock
    others = [record(c) for c in clicks[:5]]
    work(store, MODEL, settings_of(), source_of({p: log[:10]}), each=iter([False, False, True]).__next__)
    assert {o for t in MODEL.tables() for s in store.status(t) for o in s.offsets.values()} == {10}
    work(store, MODEL, settings_of(), source_of({p: log[:10] + others}))
    assert {s.clock for t in MODEL.tables() for s in store.status(t)} == {before + 5}


def test_clocks_an_hour_apart_do_no_harm(faults, monkeypatch):  # noqa: F811
    """Two workers on machines that disagree take turns: counts, sequences, offsets and clock are the stream's alone."""
    messages, clicks = topic(random.Random(6), 2, 40)
    store = MemoryStore()
    for skew_s, upto in zip(itertools.cycle((3600, -3600)), range(5, 41, 5), strict=False):
        own = SimpleNamespace(
            time_ns=lambda skew_s=skew_s: time.time_ns() + skew_s * 10**9,
            monotonic=time.monotonic,
            perf_counter=time.perf_counter,
        )
        monkeypatch.setattr(worker, "time", own)
        work(store, MODEL, settings_of(), source_of({p: log[:upto] for p, log in messages.items()}))
    assert complete(store, MODEL, messages)
    check_everything_once(store, MODEL, messages, clicks)
