"""The stream that is a list: every record once, in order, within the stops, and again after a seek."""

from __future__ import annotations

import random

import pytest

from ingest.columns import Partition
from ingest.contract import AssignmentLost
from ingest.listed import ListedSource
from ingest.settings import IngestSettings

P, Q, R = (Partition("clicks", n) for n in (0, 1, 2))


def source_of(batch: int = 4, **lengths: int) -> ListedSource:
    logs = {
        Partition("clicks", int(name[1:])): [b'{"user_id": %d, "item_id": %d}' % (int(name[1:]), k) for k in range(n)]
        for name, n in lengths.items()
    }
    return ListedSource(logs, IngestSettings(batch_events=batch), 1_700_000_000_000)


def drain(source: ListedSource, stop_at=None):
    batches = []
    while (batch := source.poll(stop_at or {})) is not None:
        assert all(start < stop for start, stop in batch.ranges.values())
        batches.append(batch)
    return batches


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
def test_everything_comes_once_and_in_order(batch):
    source = source_of(batch, p0=9, p1=0, p2=20)
    at = {P: 0, R: 0}
    assert not source.exhausted
    for got in drain(source):
        assert sum(stop - start for start, stop in got.ranges.values()) == len(got.events) <= batch
        for partition, (start, stop) in got.ranges.items():
            assert start == at[partition]
            at[partition] = stop
        items = [
            (int(n), int(place) >> 16, int(item))
            for n, place, item in zip(got.events.partition, got.events.place, got.events.item_key, strict=True)
        ]
        assert items == sorted(items)
        assert all(offset == item for _, offset, item in items)
    assert at == {P: 9, R: 20}
    assert source.exhausted
    assert source.lag() == 0


def test_a_batch_is_shared_by_the_partitions_that_have_something():
    source = source_of(9, p0=100, p1=100, p2=1)
    first = source.poll({})
    assert first is not None
    assert {p: stop - start for p, (start, stop) in first.ranges.items()} == {P: 4, Q: 4, R: 1}
    assert list(first.ranges) == [P, Q, R]
    assert source.lag() == 192


def test_stops_pauses_and_seeks():
    source = source_of(4, p0=10, p1=10)
    batches = drain(source, {P: 3, Q: 0})
    assert [b.ranges for b in batches] == [{P: (0, 3)}]
    source.pause(frozenset({P}))
    assert all(P not in b.ranges for b in drain(source))
    source.pause(frozenset())
    source.seek(P, 1)
    assert next(iter(drain(source))).ranges == {P: (1, 5)}
    assert source.bounds(P) == (0, 10)
    source.seek(P, 25)  # the store is ahead of the list: nothing comes
    assert drain(source) == []
    assert source.exhausted


def test_a_loss_is_told_until_it_is_accepted():
    source = source_of(4, p0=10)
    source.lose()
    for _ in range(2):
        with pytest.raises(AssignmentLost):
            source.poll({})
    assert source.assignment(0.0) == {P}
    assert source.poll({}) is not None


def test_what_can_not_be_used_is_kept_with_its_place():
    good = b'{"user_id": 1, "item_id": 2}'
    source = ListedSource({P: [good, b"?", good + b"\n{}"]}, IngestSettings(batch_events=10))
    batch = source.poll({})
    assert batch is not None
    assert (len(batch.events), batch.dead_letters, batch.ranges) == (2, 2, {P: (0, 3)})
    assert [(p, offset) for p, offset, _ in source.dead] == [(P, 1), (P, 2)]
    source.dead_letter(batch, [1], "refused by the store")
    assert source.dead[-1] == (P, 2, "refused by the store")
    source.flush_dead_letters()
    source.commit({P: 3})
    assert source.committed == {P: 3}
    source.close()


@pytest.mark.parametrize("seed", range(5))
def test_random_polls_never_lose_or_repeat(seed):
    rng = random.Random(seed)
    source, at = source_of(rng.randint(1, 9), p0=40, p1=3, p2=17), {P: 0, Q: 0, R: 0}
    ends = {P: 40, Q: 3, R: 17}
    for _ in range(400):
        paused = frozenset(p for p in at if rng.random() < 0.3)
        source.pause(paused)
        stops = {p: rng.randint(0, ends[p]) for p in at if rng.random() < 0.5}
        if rng.random() < 0.1:
            p = rng.choice([P, Q, R])
            at[p] = rng.randint(0, at[p])
            source.seek(p, at[p])
        batch = source.poll(stops)
        for p, (start, stop) in batch.ranges.items() if batch else ():
            assert p not in paused
            assert start == at[p]
            assert stop <= stops.get(p, ends[p])
            at[p] = stop
