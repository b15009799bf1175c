"""Declared features: what is refused, what the model's document holds, and the mirror and explanations with them."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from embedding_store.explaining import explain
from embedding_store.feature_mirror import FeatureMirror, read_values
from embedding_store.features import MAX_FEATURES, Feature
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker
from embedding_store.regularization import NoRegularization
from embedding_store.towers import item_outputs
from native.features import REQUEST, FeatureValues, keys_of
from tests.trainer.features import FEATURES, MODEL, source_of, topic
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker


def feature(**changes):
    return {"name": "genre", "of": "item", "kind": "category"} | changes


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([feature(), feature(of="user")], "feature 'genre' is declared 2 times"),
        ([feature(name="user_id")], "a feature can't be named 'user_id': that is a field of every event"),
        ([feature(name="features")], "a feature can't be named 'features'"),
        ([feature(name="Genre")], "should match pattern"),
        ([feature(name="")], "should match pattern"),
        ([feature(kind="number")], "needs boundaries or log_buckets = true, and neither of them is set"),
        ([feature(kind="number", boundaries=[1], log_buckets=True)], "both set"),
        ([feature(kind="number", boundaries=[1, 3, 2])], "boundaries must rise, and 2 comes after 3"),
        ([feature(kind="number", boundaries=[1, 1])], "boundaries must rise, and 1 comes after 1"),
        ([feature(kind="number", boundaries=[1, float("nan")])], "boundaries must be finite"),
        ([feature(kind="number", boundaries=[1, float("inf")])], "the outer buckets are open anyway"),
        ([feature(kind="number", boundaries=list(range(1001)))], "at most 1000 boundaries are taken, got 1001"),
        ([feature(kind="number", boundaries=[1], hash_buckets=4)], "hash_buckets are for categories"),
        ([feature(boundaries=[1, 2])], "boundaries and log_buckets are for kind 'number'"),
        ([feature(hash_buckets=-1)], "greater than or equal to 0"),
        ([feature(of="shop")], "'item', 'user' or 'request'"),
        ([feature(kind="text")], "'category', 'categories' or 'number'"),
        ([feature(colour=1)], "Extra inputs"),
        ([feature(name=f"f{i}") for i in range(MAX_FEATURES + 1)], "at most 32 features are taken, got 33"),
    ],
)
def test_what_can_not_be_declared_is_refused_with_the_reason(features, said):
    with pytest.raises(ValidationError, match=said):
        ModelSettings(features=features)


def test_the_document_holds_them_and_one_of_an_older_release_has_none():
    assert ModelSettings.from_document(MODEL.document()) == MODEL
    document = msgspec.json.decode(ModelSettings(dim=8).document())
    del document["features"]
    assert ModelSettings.from_document(msgspec.json.encode(document)).features == ()


def test_tables_are_those_that_the_sides_need():
    def tables(*sides):
        return list(ModelSettings(features=[f for f in FEATURES if f.of in sides], learned_gates=False).tables())[2:]

    assert tables() == []
    assert tables("request") == ["feature"]
    assert tables("item") == ["feature", "item_features"]
    assert tables("user", "request") == ["feature", "user_features"]
    spec = MODEL.tables()["feature"]
    assert (spec.initial_std, spec.dim, spec.regularization) == (0.0, MODEL.dim, MODEL.regularization)


def test_logarithmic_buckets_double():
    declared = Feature(name="price", of="item", kind="number", log_buckets=True).declared
    assert [b for b in declared.boundaries if -8 < b < 8] == [-7, -3, -1, 1, 3, 7]
    keys = [keys_of(declared, x)[0] for x in (0, 0.9, 1, 2.9, 3, 6.9, 7, 1e300, 1e20)]
    assert len(set(keys)) == 5
    assert keys[0] == keys[1] != keys[2] == keys[3] != keys[4] == keys[5] != keys[6] != keys[7] == keys[8]


def world(model, events=150, seed=0):
    """(store, a call that learns up to so many records of a topic)."""
    store, logs = MemoryStore(), topic(seed, records=events)

    def learn(upto):
        source = source_of({p: log[:upto] for p, log in logs.items()}, model, 20)
        settings = TrainerSettings(replay=1, evaluate_share=0.0, dense_sync_every=1)
        Worker(store, source, model, settings, Metrics()).run(lambda: source.exhausted)

    return store, learn


MODELS = {
    "plain": MODEL,
    "undecayed": MODEL.model_copy(update={"regularization": NoRegularization()}),
    "fast decay": MODEL.model_copy(update={"step_events": 10}),
    "cosine": MODEL.model_copy(update={"similarity": "cosine", "temperature": 0.2}),
    "dense": MODEL.model_copy(update={"dense_layers": (5, 3), "user_id_vector": True}),
    "cold dense cosine": MODEL.model_copy(update={"dense_layers": (4,), "similarity": "cosine", "temperature": 0.5}),
    "of items": MODEL.model_copy(update={"features": FEATURES[:2]}),
    "of others": MODEL.model_copy(update={"features": FEATURES[2:]}),
}


def expected(store, model, mirror, keys):
    """(n, dim) rows of items with those of their features, by the store's own calls."""
    vectors = store.lookup("item", keys).vectors.astype(np.float64)
    if any(f.of == "item" for f in model.features):
        values = read_values(store, model.feature_schema, "item_features", keys)
        rows, weights = store.lookup("feature", values.key).vectors, values.weights()
        for i in range(len(keys)):
            part = slice(values.offsets[i], values.offsets[i + 1])
            vectors[i] += weights[part] @ rows[part]
    return vectors


@pytest.mark.parametrize("name", MODELS)
def test_the_mirrors_items_are_their_rows_and_features_as_they_are_in_the_store(name):
    """Whether rows, records, feature rows or the clock changed; fresh and kept mirrors hold the same."""
    model = MODELS[name]
    store, learn = world(model)
    kept = ItemMirror(store, model)
    for upto in (20, 60, 61, 150):
        learn(upto)
        kept.refresh()
        fresh = ItemMirror(store, model)
        fresh.refresh()
        keys = np.sort(store.changes("item", None).keys)
        want = expected(store, model, kept, keys)
        for mirror in (kept, fresh):
            raw, found = mirror.raw_vectors(keys)
            assert found.all()
            np.testing.assert_allclose(raw, want, rtol=1e-4, atol=1e-5)
            outputs = item_outputs(model, mirror.item_layers, raw)
            np.testing.assert_allclose(mirror.items(keys).vectors, outputs, rtol=1e-4, atol=1e-5)
    assert kept.nbytes > 0
    frozen = kept.frozen()
    before, _ = frozen.raw_vectors(keys)
    np.testing.assert_array_equal(before, kept.raw_vectors(keys)[0])


def test_records_that_change_often_are_compacted_and_gone_ones_add_nothing():
    model = MODEL
    store, learn = world(model)
    mirror = FeatureMirror(store, model)
    learn(150)
    mirror.take(mirror.fetch())
    items = np.sort(store.changes("item_features", None).keys)
    before = np.zeros((len(items), model.dim), np.float32)
    mirror.add_to_items(items, before)
    assert np.abs(before).max() > 0.05
    for _ in range(80):  # as if every record came again and again
        news = mirror.fetch()
        rows = store.changes("item_features", None)
        mirror._take_items(rows.__class__(rows.cursor, False, rows.keys, rows.rows, rows.deleted, rows.clock, 0, 0),
                           read_values(store, model.feature_schema, "item_features", rows.keys))  # fmt: skip
        mirror.take(news)
    assert len(mirror._values.key) < 3000
    after = np.zeros_like(before)
    mirror.add_to_items(items, after)
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_a_throttled_mirror_is_right_once_it_is_quiet():
    model = MODEL
    store, learn = world(model)
    mirror = ItemMirror(store, model, decay_share=0.01)
    for upto in (30, 60, 90, 150):
        learn(upto)
        mirror.refresh()
    for _ in range(1000):
        if not mirror._behind:
            break
        mirror.wait(1.0)
        mirror.refresh()
    assert not mirror._behind
    keys = np.sort(store.changes("item", None).keys)
    np.testing.assert_allclose(mirror.raw_vectors(keys)[0], expected(store, model, mirror, keys), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_an_explanations_parts_add_up_from_both_sides(name):
    model = MODELS[name]
    store, learn = world(model)
    learn(150)
    mirror = ItemMirror(store, model)
    mirror.refresh()
    ranker, schema = Ranker(store, model, mirror), model.feature_schema
    given = {n: v for n, v in {"device": "phone", "tags": [3, 4]}.items() if n in schema.by_name}
    request = FeatureValues.of([schema.read(given)[0]])
    told = set()
    for user in (0, 3, 12, 77):
        for item in (100, 105, 111):
            why = explain(model, ranker, user, item, request)
            if not why.personal:
                continue
            users = ranker.users(np.array([user], np.uint64), request)
            score = ranker.score(users.vectors[0], np.array([item], np.uint64), prior=float(users.prior[0]))[0]
            assert why.score == pytest.approx(score, abs=1e-6)
            total = why.clocks.sum() + why.own + sum(why.features.values()) + why.bias + why.popularity
            assert total == pytest.approx(why.score, abs=2e-5)
            told |= set(why.features)
            if why.of_item is not None:
                other = why.of_item.row + sum(why.of_item.features.values()) + why.of_item.bias
                assert other == pytest.approx(why.score - why.popularity, abs=2e-5)
                told |= set(why.of_item.features)
            else:
                assert name == "of others"
    assert {schema.declared[k].name for k in told} == {f.name for f in model.features}
    assert any(schema.declared[k].side == REQUEST for k in told) or name == "of items"


def test_what_is_not_declared_any_more_is_left_out_of_what_is_stored():
    store, learn = world(MODEL)
    learn(150)
    fewer = MODEL.model_copy(update={"features": FEATURES[1:]})
    values = read_values(store, fewer.feature_schema, "item_features", store.changes("item_features", None).keys)
    assert set(values.number.tolist()) == {0}
    assert json.loads(fewer.document())["features"][0]["name"] == "price"
