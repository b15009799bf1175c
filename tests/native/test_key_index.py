"""The index against a dict, under adds, discards, reuse and growth."""

import numpy as np
import pytest

from native.key_index import KeyIndex, find, numbered, unique_keys


def keys_of(*values: int) -> np.ndarray:
    keys = np.array(values, np.uint64)
    keys.flags.writeable = False
    return keys


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("universe", [12, 300, 2**64 - 1])
def test_random_adds_and_discards_match_a_dict(seed, universe):
    rng = np.random.default_rng(seed)
    pool = np.unique(rng.integers(0, universe, 400, np.uint64, endpoint=True))
    index, want, highest = KeyIndex(1), {}, 0
    for _ in range(120):
        batch = rng.permutation(pool)[: rng.integers(0, min(len(pool), 60))]
        batch.flags.writeable = False
        if rng.random() < 0.55:
            slots = index.add(batch)
            for key, slot in zip(batch.tolist(), slots.tolist(), strict=True):
                assert want.setdefault(key, slot) == slot
            highest = max(highest, *slots.tolist()) if len(slots) else highest
        else:
            freed = index.discard(batch)
            assert sorted(freed.tolist()) == sorted(want.pop(k) for k in batch.tolist() if k in want)
        assert len(set(want.values())) == len(want) == len(index)
        assert index.find(pool).tolist() == [want.get(k, -1) for k in pool.tolist()]
        assert index.high_water <= index.capacity
        assert all(index.slot_keys[slot] == key for key, slot in want.items())
    assert index.high_water == highest + 1  # freed slots were reused before new ones


def test_freed_slots_are_reused_and_capacity_stands():
    index = KeyIndex(8)
    for start in range(0, 4000, 8):
        assert sorted(index.add(np.arange(start, start + 8, dtype=np.uint64)).tolist()) == list(range(8))
        index.discard(np.arange(start, start + 8, dtype=np.uint64))
    assert (len(index), index.high_water, index.capacity) == (0, 8, 8)


def test_growth_keeps_slots():
    index = KeyIndex(2)
    first = index.add(keys_of(5, 2**64 - 1, 0))
    assert first.tolist() == [0, 1, 2]
    index.add(np.arange(100, 5100, dtype=np.uint64))
    assert index.find(keys_of(5, 2**64 - 1, 0, 1)).tolist() == [0, 1, 2, -1]
    assert index.capacity >= 5003


def test_nothing():
    index, none = KeyIndex(), keys_of()
    assert (len(index.add(none)), len(index.discard(none)), len(index.find(none)), len(index)) == (0, 0, 0, 0)
    assert index.discard(keys_of(3)).tolist() == []
    distinct, inverse = unique_keys(none)
    assert (len(distinct), len(inverse)) == (0, 0)


def test_discarding_a_key_twice_frees_its_slot_once():
    index = KeyIndex()
    index.add(keys_of(1, 2))
    assert index.discard(keys_of(1, 1)).tolist() == [0]
    assert len(index) == 1
    assert len(set(index.add(keys_of(7, 8, 9)).tolist()) | set(index.find(keys_of(2)).tolist())) == 4


def test_probes_end_where_every_place_was_once_used():
    places, out = np.full(8, -1, np.int64), np.empty(2, np.int64)
    places[3] = 0  # deleted places lengthen a probe, one never used ends it
    find(places, np.zeros(1, np.uint64), keys_of(1, 2), out)
    assert out.tolist() == [-1, -1]


@pytest.mark.parametrize("n", [1, 2, 17, 1000])
@pytest.mark.parametrize("universe", [3, 2**64 - 1])
def test_unique_numbers_by_first_appearance(n, universe):
    keys = np.random.default_rng(n).integers(0, universe, n, np.uint64, endpoint=True)
    keys.flags.writeable = False
    distinct, inverse = unique_keys(keys)
    assert distinct.tolist() == list(dict.fromkeys(keys.tolist()))
    assert (distinct[inverse] == keys).all()
    odd, _ = unique_keys(keys[::2])  # a view with a stride
    assert odd.tolist() == list(dict.fromkeys(keys[::2].tolist()))


@pytest.mark.parametrize("n", [0, 1, 8, 9, 300])
def test_a_column_that_was_numbered_is_asked_for_others(n):
    rng = np.random.default_rng(n)
    column = rng.integers(0, 40, n).astype(np.uint64) << np.uint64(58)
    found = numbered(column)
    assert found.keys.tolist() == list(dict.fromkeys(column.tolist()))
    np.testing.assert_array_equal(found.keys[found.numbers], column)
    asked = np.arange(64, dtype=np.uint64) << np.uint64(58)
    where = {key: number for number, key in enumerate(found.keys.tolist())}
    assert found.find(asked).tolist() == [where.get(key, -1) for key in asked.tolist()]
