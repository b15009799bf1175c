"""Filters as they are asked for, and their masks in step with a mirror that goes on."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.features import Feature
from embedding_store.filter_masks import MOST
from embedding_store.item_filter import BadFilter, ItemFilter, read_filter
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from native.features import FeatureSchema, keys_of
from native.identity import key_and_check
from tests.trainer.features import MODEL, newest, source_of, topic
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

SCHEMA: FeatureSchema = ModelSettings(
    features=(
        Feature(name="genre", of="item", kind="categories"),
        Feature(name="maker", of="item", kind="category"),
        Feature(name="city", of="item", kind="category", hash_buckets=9),
        Feature(name="price", of="item", kind="number", boundaries=(1, 2.5, 10)),
        Feature(name="age", of="user", kind="number", boundaries=(18,)),
    )
).feature_schema


def keys(name: str, *values: object) -> tuple[int, ...]:
    feature = SCHEMA.declared[SCHEMA.by_name[name]]
    return tuple(sorted(key for value in values for key in keys_of(feature, value)))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"genre": "a"}, [keys("genre", "a")]),
        ({"genre": [1, "1", "b"]}, [keys("genre", 1, "b")]),
        ({"maker": ["x", "y"], "genre": ["a"]}, [keys("maker", "x", "y"), keys("genre", "a")]),
        ({"price": {"min": 1}}, [keys("price", 1, 2.5, 10)]),
        ({"price": {"max": 2.5}}, [keys("price", 0, 1)]),
        ({"price": {"min": 1, "max": 2.5}}, [keys("price", 2.4)]),
        ({"price": {"min": None, "max": 1.0}}, [keys("price", 0.9)]),
    ],
)
def test_a_filter_is_keys_of_values_and_buckets(wanted: dict[str, object], expected: list[tuple[int, ...]]) -> None:
    assert read_filter(SCHEMA, wanted) == ItemFilter(tuple(sorted(expected)))


def test_nothing_asked_for_is_no_filter() -> None:
    assert read_filter(SCHEMA, {}) is None


@pytest.mark.parametrize(
    ("wanted", "name", "said"),
    [
        ({"gnere": "a"}, "gnere", "did you mean 'genre'? the model's features of items are genre, maker, city, price"),
        ({"age": {"min": 18}}, "age", "'age' is no feature of items: those of the model are genre"),
        ({"city": "Rome"}, "city", "of 'city' the 9 hash buckets are kept, not the values"),
        ({"genre": []}, "genre", "genre names no category"),
        ({"genre": [["a"]]}, "genre", "send one of them, or a flat list"),
        ({"genre": {"min": 1}}, "genre", "genre holds categories"),
        ({"genre": [""]}, "genre", "genre has 0 bytes"),
        ({"maker": None}, "maker", "maker is None; send a text or an integer"),
        ({"price": 3}, "price", 'price is a number: send a range such as {"min": 1}'),
        ({"price": {}}, "price", "neither min nor max"),
        ({"price": {"min": 2}}, "price", "min 2 is no boundary, and items' numbers are known by bucket alone: use 1.0"),
        ({"price": {"max": 1e300}}, "price", "use 10.0"),
        ({"price": {"max": 10**400}}, "price", "max is no number"),
        ({"price": {"min": True}}, "price", "min is no number"),
        ({"price": {"min": 10, "max": 10}}, "price", "min 10 is not below max 10"),
        ({"price": {"min": 10, "max": 1}}, "price", "min 10 is not below max 1"),
        ({"genre": [str(n) for n in range(5000)]}, "", "filter holds 5000 values and buckets; at most 4096"),
        ({f"f{n}": 1 for n in range(65)}, "", "filter names 65 features; at most 64"),
    ],
)  # fmt: skip
def test_what_can_not_be_asked_for_is_named_with_the_remedy(wanted: dict[str, object], name: str, said: str) -> None:
    with pytest.raises(BadFilter) as raised:
        read_filter(SCHEMA, wanted)
    assert raised.value.name == name
    assert said in str(raised.value)


def test_masks_are_in_step_with_a_stream_and_bounded() -> None:
    logs = topic(0, records=300)
    store, source = MemoryStore(), source_of(logs, MODEL, 10)
    mirror = ItemMirror(store, MODEL)
    schema = MODEL.feature_schema
    filters = [
        read_filter(schema, wanted)
        for wanted in ({"genre": "a"}, {"genre": ["b", "d"], "price": {"min": 3, "max": 63}}, {"genre": "nobody's"})
    ]
    worker = Worker(store, source, MODEL, TrainerSettings(replay=1, evaluate_share=0.0, dense_sync_every=1), Metrics())
    looks = 0

    def look() -> bool:
        nonlocal looks
        if store.published_model() is None:
            return False
        mirror.refresh()
        for wanted in filters:
            assert wanted is not None
            with mirror.lock:
                found = mirror.passing(wanted)
                assert mirror.features is not None
                anew = mirror.features.passing(wanted, mirror._index.slot_keys)
            assert (found == anew).all()
        looks += 1
        return source.exhausted

    worker.run(look)
    look()
    assert looks > 10
    mirror._cursors["item"] = None  # a scan: slots are given out anew
    look()
    told = newest(logs, "item")
    for wanted in filters:
        assert wanted is not None
        passes = {i for i, values in told.items() if all(set(values) & set(any_of) for any_of in wanted.any_of)}
        with mirror.lock:
            there = mirror.slots(np.array([key_and_check(str(i).encode())[0] for i in told], np.uint64))
            mask = mirror.passing(wanted)
        assert {i for i, slot in zip(told, there.tolist(), strict=True) if slot >= 0 and mask[slot]} == {
            i for i, slot in zip(told, there.tolist(), strict=True) if slot >= 0 and i in passes
        }
    assert mirror._masks is not None
    before = mirror.nbytes
    for n in range(3 * MOST):
        with mirror.lock:
            mirror.passing(ItemFilter(((n,),)))
    assert len(mirror._masks._masks) == MOST
    assert before < mirror.nbytes <= before + MOST * 2048
