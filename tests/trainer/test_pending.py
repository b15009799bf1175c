"""What a flush carries, against dicts filled event by event."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pytest

from embedding_store.contract import Range, Source
from embedding_store.memory import MemoryStore
from embedding_store.validation import checked_flush
from ingest.columns import Partition
from native.identity import key_and_check
from native.ragged import Ragged
from tests.flushes import outcomes
from tests.trainer.small import MODEL, SOURCE, TOPIC, Click, batch_of, declare
from trainer.learner import Step
from trainer.pending import Pending

USERS = MODEL.model_copy(update={"user_id_vector": True})
P0, P1 = Partition(TOPIC, 0), Partition(TOPIC, 1)


def step_of(rng, clicks, *, finite=True):
    """Gradients of the batch's items and users and of a few others; some of them zero."""
    sides = {}
    for side in ("item", "user"):
        keys = np.unique([*(getattr(c, side) for c in clicks), *rng.integers(300, 320, 5)]).astype(np.uint64)
        gradients = rng.normal(size=(len(keys), MODEL.dim)).astype(np.float32)
        gradients[rng.random(len(keys)) < 0.3] = 0
        sides[f"{side}_keys"], sides[f"{side}_gradients"] = keys, gradients
    return Step(**sides, loss=0.0, rows=len(clicks), finite=finite)


def clicks_of(rng, n, start, partition):
    return [
        Click(int(rng.integers(0, 99)), partition, start + i, int(rng.integers(0, 6)), int(rng.integers(100, 108)),
              label=float(rng.choice([0.0, 0.5, 1.0])), weight=float(rng.uniform(0.5, 2)))
        for i in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_flush_is_the_sum_of_its_batches(seed):
    rng = np.random.default_rng(seed)
    pending, store = Pending(MODEL.dim), MemoryStore()
    declare(store, USERS, SOURCE, Source(TOPIC, 1))
    everything, sums, at = [], {"item": defaultdict(float), "user": defaultdict(float)}, {0: 0, 1: 0}
    for _ in range(rng.integers(1, 6)):
        partition = int(rng.integers(0, 2))
        clicks = clicks_of(rng, int(rng.integers(0, 12)), at[partition], partition)
        stop = at[partition] + len(clicks) + int(rng.integers(1, 3))  # records without usable events
        finite = bool(rng.random() < 0.7)
        step = step_of(rng, clicks, finite=finite) if clicks else None
        pending.add(batch_of(clicks, at[partition], stop, partition=partition), step)
        at[partition] = stop
        everything += clicks
        if step is not None and finite:
            for side, total in sums.items():
                keys, gradients = getattr(step, f"{side}_keys"), getattr(step, f"{side}_gradients")
                for key, gradient in zip(keys.tolist(), gradients, strict=True):
                    total[key] = total[key] + gradient.astype(np.float64)
    assert pending.events == len(everything)
    assert pending.entries["item"].tolist() == [c.item for c in everything if c.label]
    assert pending.users.tolist() == [c.user for c in everything if c.label]
    starts = {P0: 0, P1: 0}
    for table, side in (("item", "item"), ("user", "user"), ("history", "user")):
        flush = pending.flush(table, 0, starts, 1234)
        checked_flush(USERS.tables()[table], flush)
        assert flush.ranges == tuple(Range(Source(TOPIC, p), 0, at[p]) for p in (0, 1) if at[p])
        assert (flush.events, flush.now_ms, flush.generation) == (len(everything), 1234, 0)
        assert flush.event_time_ms == max((c.time_ms for c in everything), default=0)
        assert flush.produced_ms == max((c.time_ms + 1000 for c in everything), default=0)
        own = list(dict.fromkeys(getattr(c, side) for c in everything))
        events = flush.own_events
        assert flush.keys[events.rows].tolist() == [getattr(c, side) for c in everything]
        assert events.orders.tolist() == [(c.time_ms, c.place, c.partition) for c in everything]
        assert events.positives.tolist() == [np.float32(c.weight) if c.label > 0 else 0 for c in everything]
        extra = [k for k in sums[side] if k not in own and np.any(sums[side][k])] if table != "history" else []
        assert flush.keys[: len(own)].tolist() == own
        assert sorted(flush.keys[len(own) :].tolist()) == sorted(extra)
        for i, key in enumerate(flush.keys.tolist()):
            mine = [c for c in everything if getattr(c, side) == key]
            assert flush.counts[i] == len(mine)
            assert flush.positives[i] == pytest.approx(sum(c.weight for c in mine if c.label > 0), rel=1e-6)
            assert flush.ids.at(i) == (str(key).encode() if mine else b"")
            assert flush.checks[i] == (key_and_check(str(key).encode())[1] if mine else 0)
            if flush.gradients is not None:
                np.testing.assert_allclose(flush.gradients[i], sums[side].get(key, 0) + np.zeros(4), atol=1e-5)
        if table == "history":
            assert (flush.gradients, len(flush.append_rows)) == (None, len(pending.entries))
            got = zip(flush.keys[flush.append_rows].tolist(), flush.appends.tolist(), strict=True)
            want = [
                (c.user, (c.time_ms, c.place, c.item, c.partition, np.float32(c.weight))) for c in everything if c.label
            ]
            assert list(got) == want
        assert outcomes(store.apply(table, flush)) == {"applied"}


def test_text_ids_carry_their_check_bits():
    batch = batch_of([Click(1, 0, 0, 1, 2)], 0, 1)
    key, check = key_and_check(b"caf\xc3\xa9")
    events = dataclasses.replace(
        batch.events,
        item_key=np.array([key], np.uint64),
        item_check=np.array([check], np.uint32),
        item_id=Ragged.of([b"caf\xc3\xa9"]),
    )
    pending = Pending(MODEL.dim)
    pending.add(dataclasses.replace(batch, events=events), None)
    flush = pending.flush("item", 0, {P0: 0}, 1)
    assert (flush.keys.tolist(), flush.checks.tolist(), flush.ids.tolist()) == ([key], [check], [b"caf\xc3\xa9"])


def test_a_quarantined_step_still_counts():
    rng, clicks = np.random.default_rng(0), [Click(1, 0, i, 1, 100 + i) for i in range(4)]
    pending = Pending(MODEL.dim)
    step = step_of(rng, clicks, finite=False)
    step.item_gradients[:] = np.nan
    pending.add(batch_of(clicks, 0, 4), step)
    flush = pending.flush("item", 0, {P0: 0}, 1)
    assert (flush.counts.tolist(), flush.gradients.any()) == ([1] * 4, False)
    assert len(pending.flush("history", 0, {P0: 0}, 1).appends) == 4


def test_a_range_without_events_is_a_flush_without_rows():
    pending = Pending(MODEL.dim)
    pending.add(batch_of([], 3, 9), None)
    for table in ("item", "user", "history"):
        flush = pending.flush(table, 0, {P0: 3}, 1)
        checked_flush(USERS.tables()[table], flush)
        assert (len(flush.keys), flush.events, flush.event_time_ms) == (0, 0, 0)
        assert flush.ranges == (Range(SOURCE, 3, 9),)


def test_forgetting_forces_a_flush_and_goes_to_its_side():
    pending = Pending(MODEL.dim)
    pending.add(batch_of([Click(1, 0, 0, 1, 2)], 0, 1), None)
    assert not pending.must_flush
    pending.add(batch_of([], 1, 2, forget_users=[5, 1]), None)
    pending.add(batch_of([], 2, 3, forget_users=[5], forget_items=[9]), None)
    assert pending.must_flush
    flushes = {table: pending.flush(table, 0, {P0: 0}, 1) for table in ("item", "user", "history")}
    forgets = {table: flush.forget.tolist() for table, flush in flushes.items()}
    assert forgets == {"item": [9], "user": [5, 1, 5], "history": [5, 1, 5]}
    assert flushes["user"].forget_orders.tolist() == [(0, 1 << 16, 0), (0, 1 << 16, 0), (0, 2 << 16, 0)]
    assert flushes["item"].forget_checks.tolist() == [0]
    pending.clear()
    assert (pending.must_flush, pending.batches, pending.ranges, len(pending.entries)) == (False, 0, {}, 0)
    assert len(pending.flush("item", 0, {}, 1).forget) == 0


def test_ranges_grow_by_their_stops():
    pending = Pending(MODEL.dim)
    for start, stop in ((4, 6), (6, 7), (7, 12)):
        pending.add(batch_of([], start, stop), None)
    pending.add(batch_of([], 0, 2, partition=1), None)
    assert pending.ranges == {P0: (4, 12), P1: (0, 2)}
    assert pending.flush("item", 3, {P0: 4, P1: 0}, 1).ranges == (Range(SOURCE, 4, 12), Range(Source(TOPIC, 1), 0, 2))
