"""What a step is given: never the event itself or anything later, everything earlier, and the right masks."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from native.ragged import Ragged
from tests.flushes import flush_of, whole_state
from tests.trainer.small import MODEL, SOURCE, Click, declare, entries_of, events_of, store_clicks
from trainer.examples import ExampleReader, positives
from trainer.replay import ReplayBuffer

NO_USERS, NO_ENTRIES = np.zeros(0, np.uint64), entries_of([])


def reader_of(store, replays=0, model=MODEL, seed=0):
    buffer = ReplayBuffer(100, model.history_length, np.random.default_rng(seed))
    return ExampleReader(store, model, buffer, replays), buffer


def items_of(examples, numbers):
    return [int(examples.item_keys[n]) if n >= 0 else None for n in numbers]


def seen_of(examples, i):
    numbers = examples.seen[examples.seen_start[i] : examples.seen_stop[i]]
    return {int(examples.item_keys[n]) for n in numbers if n >= 0}


@pytest.fixture
def store():
    store = MemoryStore()
    declare(store, MODEL)
    return store


@pytest.mark.parametrize("seed", range(15))
def test_an_event_knows_what_is_strictly_earlier_and_no_more(store, seed):
    """Stored, pending and in the batch, with late events and equal times; every second time the store is ahead."""
    rng = np.random.default_rng(seed)
    clicks = [
        Click(int(rng.integers(0, 9)), int(rng.integers(0, 2)), place, int(rng.integers(0, 4)), 100 + place,
              label=float(rng.random() < 0.7))
        for place in rng.permutation(24).tolist()
    ]  # fmt: skip
    batch, pending = clicks[:10], [c for c in clicks[10:15] if c.label]
    stored = [c for c in clicks[15:] if c.label]
    ahead = [c for c in [*batch, *pending] if c.label] if seed % 2 else []
    store_clicks(store, stored + ahead)
    before = whole_state(store, "history"), whole_state(store, "item")
    reader, _ = reader_of(store)
    users = np.array([c.user for c in pending], np.uint64)
    examples, past = reader.read(events_of(batch), users, entries_of(pending))
    assert (whole_state(store, "history"), whole_state(store, "item")) == before
    assert examples.fresh == len(examples.target) == len(batch)
    for i, event in enumerate(batch):
        # the store keeps a user's newest seen_length entries: what it dropped is not known any more
        kept = sorted(c for c in stored + ahead if c.user == event.user)[-MODEL.seen_length :]
        mine = {c for c in [*kept, *pending, *batch] if c.user == event.user and c.label}
        known = sorted(c for c in mine if c.when < event.when)
        want = [c.item for c in known[::-1][: MODEL.history_length]]
        got = items_of(examples, examples.recent[i])
        assert got[: len(want)] == want
        assert got[len(want) :] == [None] * (MODEL.history_length - len(want))
        assert past.recent[i, : past.lengths[i]].tolist() == want
        assert set(past.seen(np.array([i]))[1].tolist()) == {c.item for c in known}
        # nothing that its user likes is pushed away, be it from the same batch or from a shard that is ahead
        liked = {c.item for c in mine} | {c.item for c in kept if c.label}
        assert seen_of(examples, i) == liked & set(examples.item_keys.tolist())
        assert items_of(examples, [examples.target[i]]) == [event.item]
        assert examples.is_row[i] == (event.label > 0 and len(want) > 0)
    assert examples.is_column.all()
    assert examples.weight.tolist() == [c.weight for c in batch]


def test_the_label_never_leaks_from_a_store_that_is_ahead(store):
    """The whole stream is applied already; replaying it shows each event exactly what came before it."""
    clicks = [Click(t, 0, t, 1, 50 + t) for t in range(6)]
    store_clicks(store, clicks)
    examples, past = reader_of(store)[0].read(events_of(clicks), NO_USERS, NO_ENTRIES)
    for t in range(6):
        assert past.recent[t, : past.lengths[t]].tolist() == [50 + k for k in range(t - 1, max(-1, t - 4), -1)]
        assert set(past.seen(np.array([t]))[1].tolist()) == {50 + k for k in range(t)}
        assert past.ever[t] == examples.length[t] == t
        assert seen_of(examples, t) == {50 + k for k in range(6)}  # left out of its negatives, not predicted from


def test_a_missing_item_of_a_history_is_skipped_unless_its_first_events_are_in_our_hands(store):
    stored = [Click(t, 0, t, 1, 10 + t) for t in range(3)]
    store_clicks(store, stored, items=False)
    batch = [Click(5, 0, 5, 1, 12), Click(6, 0, 6, 2, 99)]
    examples, _ = reader_of(store)[0].read(
        events_of(batch), np.array([3], np.uint64), entries_of([Click(4, 0, 4, 3, 11)])
    )
    # 12 is a target here, 11 is pending, 10 is nowhere
    assert items_of(examples, examples.recent[0]) == [12, 11, None]
    assert examples.is_row.tolist() == [True, False]
    store.apply("item", flush_of([10], 3, 4, gradients=np.ones((1, 4)), source=SOURCE))
    examples, _ = reader_of(store)[0].read(events_of(batch[1:]), NO_USERS, NO_ENTRIES)
    assert not examples.is_row.any()
    examples, _ = reader_of(store)[0].read(events_of([Click(7, 0, 7, 1, 98)]), NO_USERS, NO_ENTRIES)
    assert items_of(examples, examples.recent[0]) == [None, None, 10]
    assert examples.is_row.tolist() == [True]


def test_earlier_positives_of_the_batch_are_known_and_negatives_are_not(store):
    batch = [
        Click(1, 0, 0, 7, 1),
        Click(1, 0, 1, 7, 2, label=0.0),
        Click(1, 0, 2, 7, 3),
        Click(0, 0, 3, 7, 4),
        Click(2, 0, 4, 8, 5),
    ]
    examples, past = reader_of(store)[0].read(events_of(batch), NO_USERS, NO_ENTRIES)
    assert [past.recent[i, : past.lengths[i]].tolist() for i in range(5)] == [[4], [1, 4], [1, 4], [], []]
    assert examples.is_row.tolist() == [True, False, True, False, False]


def test_replays_are_as_of_their_own_time_and_masked_by_all_that_is_known_now(store):
    reader, buffer = reader_of(store, replays=4)
    first = [Click(1, 0, 0, 7, 1), Click(2, 0, 1, 7, 2)]
    _, past = reader.read(events_of(first), NO_USERS, NO_ENTRIES)
    reader.keep(events_of(first), past)
    assert len(buffer) == 2
    store_clicks(store, [*first, Click(3, 0, 2, 7, 3)])
    pending = [Click(4, 0, 3, 7, 4)]
    batch = [Click(9, 0, 8, 7, 5), Click(9, 0, 9, 8, 6)]
    examples, _ = reader.read(events_of(batch), np.array([7], np.uint64), entries_of(pending))
    assert (examples.fresh, len(examples.target)) == (2, 10)
    for i in range(2, 10):
        item = items_of(examples, [examples.target[i]])[0]
        assert items_of(examples, examples.recent[i]) == ([None] * 3 if item == 1 else [1, None, None])
        assert examples.is_row[i] == (item == 2)
        occur = set(examples.item_keys.tolist())
        assert seen_of(examples, i) == {1, 2, 3, 4, 5} & occur
    assert {items_of(examples, [t])[0] for t in examples.target[2:]} == {1, 2}
    assert examples.weight[2:].tolist() == [1.0] * 8
    assert examples.is_column.all()


@pytest.mark.parametrize("forgotten", ["item", "user"])
def test_a_replay_never_brings_back_what_was_forgotten(store, forgotten):
    reader, _ = reader_of(store, replays=6)
    clicks = [Click(1, 0, 0, 7, 1), Click(2, 0, 1, 7, 2), Click(3, 0, 2, 8, 3), Click(4, 0, 3, 8, 4)]
    _, past = reader.read(events_of(clicks), NO_USERS, NO_ENTRIES)
    reader.keep(events_of(clicks), past)
    store_clicks(store, clicks)
    table, key = ("item", 2) if forgotten == "item" else ("history", 7)
    store.apply(table, flush_of([], 4, 5, forget=[key], source=SOURCE, gradients=None))
    examples, _ = reader.read(events_of([Click(9, 0, 9, 9, 9)]), NO_USERS, NO_ENTRIES)
    dead = {2} if forgotten == "item" else {1, 2}
    drawn = [items_of(examples, [t])[0] for t in examples.target]
    assert dead <= set(drawn)
    for i, item in enumerate(drawn):
        assert examples.is_column[i] == (item not in dead)
        assert not (examples.is_row[i] and item in dead)


def test_user_vectors_make_every_positive_a_row():
    store, model = MemoryStore(), MODEL.model_copy(update={"user_id_vector": True})
    declare(store, model)
    batch = [Click(1, 0, 0, 7, 1), Click(2, 0, 1, 9, 2, label=0.0), Click(3, 0, 2, 7, 3)]
    examples, _ = reader_of(store, model=model)[0].read(events_of(batch), NO_USERS, NO_ENTRIES)
    assert examples.is_row.tolist() == [True, False, True]
    assert examples.user_keys[examples.user].tolist() == [7, 9, 7]
    assert examples.users is not None
    assert (examples.users.vectors != 0).any(axis=1).all()


def test_positives_are_entries_of_the_positive_events():
    clicks = [Click(5, 2, 9, 7, 1, weight=2.5), Click(6, 0, 8, 7, 2, label=0.0), Click(4, 1, 7, 8, 3, label=0.5)]
    assert positives(events_of(clicks)).tolist() == [(5, 9, 1, 2, 2.5), (4, 7, 3, 1, 1.0)]
    none = events_of([])
    assert len(positives(none)) == 0
    assert isinstance(none.user_id, Ragged)
