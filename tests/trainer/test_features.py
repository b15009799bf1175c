"""Context features: gradients by the formula, what is trained is what is served, records exactly once, and what is
known of an event is what came before it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random

import numpy as np
import pytest
import tensorflow as tf

from embedding_store.contract import ORDER, Source
from embedding_store.errors import StoreUnavailable
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.open import open_store
from embedding_store.ranking import Ranker
from embedding_store.settings import RedisSettings
from ingest.columns import Partition
from native.features import FeatureValues, concatenate
from native.identity import key_and_check
from native.key_index import unique_keys
from native.redis_module.compiler import module_path
from tests.servers import running, server_names
from tests.trainer.features import FEATURES, MODEL, START_MS, kept, newest, source_of, topic
from tests.trainer.small import TOPIC, Click, batch_of, declare, entries_of, events_of
from tests.trainer.test_exactly_once import Faults, Killed, faults  # noqa: F401  a fixture
from tests.trainer.test_learner import examples_of, learner_of, oracle, rows_of
from trainer.dense import DenseWorker
from trainer.examples import ExampleReader
from trainer.features import Bags, ExampleFeatures, recorded_of
from trainer.features import newest as newest_of
from trainer.layered_step import finished, forward
from trainer.learner import Learner
from trainer.metrics import Metrics
from trainer.pending import Pending
from trainer.replay import ReplayBuffer
from trainer.settings import TrainerSettings
from trainer.worker import Worker


def settings_of(**changes):
    values = {"replay": 0, "group": 16, "evaluate_share": 0.0, "reconcile_every_s": 1e-9, "guard": "off"}
    return TrainerSettings.model_validate(values | changes)


def work(store, source, model=MODEL, **changes):
    metrics, turns = Metrics(), itertools.count()

    def stopping():
        assert next(turns) < 600, "no progress"
        return source.exhausted

    Worker(store, source, model, settings_of(**changes), metrics).run(stopping)
    return metrics


# -- gradients -------------------------------------------------------------------------------------------------------


def bags_of(rng, n, w):
    counts = rng.integers(0, 4, n)
    rows = rng.integers(0, w, counts.sum())
    return Bags(np.cumsum([0, *counts]), rows, rng.uniform(0.2, 1, counts.sum()).astype(np.float32))


def matrix_of(bags, w):
    out = np.zeros((len(bags.offsets) - 1, w))
    for i in range(len(out)):
        for k in range(bags.offsets[i], bags.offsets[i + 1]):
            out[i, bags.rows[k]] += bags.weights[k]
    return out


def featured(seed, model, w=9, **size):
    """Examples with features, and the same with the features' sums in the rows themselves: what `oracle` knows."""
    rng = np.random.default_rng(100 + seed)
    examples = examples_of(seed, model, **size)
    n, u = len(examples.target), len(examples.item_keys)
    items, users = bags_of(rng, u, w), bags_of(rng, n, w)
    rows = rows_of(rng, w, model.dim)
    of_items, of_users = matrix_of(items, w), matrix_of(users, w)
    vectors = (examples.items.vectors + of_items @ rows.vectors).astype(np.float32)
    is_row = examples.is_row & ((examples.recent >= 0).any(axis=1) | users.filled | model.user_id_vector)
    features = ExampleFeatures(np.arange(w, dtype=np.uint64), rows, items, users, vectors)
    own = of_users @ rows.vectors
    if examples.users is not None:
        own = own + examples.users.vectors[examples.user]
    plain = dataclasses.replace(
        examples,
        is_row=is_row,
        items=dataclasses.replace(examples.items, vectors=vectors),
        user_keys=np.arange(n, dtype=np.uint64),
        users=dataclasses.replace(rows_of(rng, n, model.dim), vectors=own.astype(np.float32)),
        user=np.arange(n),
    )
    return dataclasses.replace(examples, is_row=is_row, features=features), plain, of_items, of_users


def means(examples, of_users, users):
    """Of the rows of features of users: over the examples that learn and have one."""
    often = np.zeros(of_users.shape[1])
    bags = examples.features.users
    for i in np.flatnonzero(examples.is_row & (examples.weight > 0)):
        np.add.at(often, bags.rows[bags.offsets[i] : bags.offsets[i + 1]], 1)
    return of_users.T @ users / np.maximum(often, 1)[:, None]


MODELS = {
    "history": ModelSettings(dim=6, history_length=4),
    "user": ModelSettings(dim=6, history_length=4, user_id_vector=True),
    "dense": ModelSettings(dim=6, history_length=4, dense_layers=(7, 3)),
    "dense, user": ModelSettings(dim=4, history_length=2, dense_layers=(4,), user_id_vector=True, clocks=(1.0,)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("group", [7, 32])
def test_gradients_are_those_of_the_formula(name, group):
    """An item's gradient is that of each row added to its own; a user's likewise, but for the mean over examples."""
    model, clock = MODELS[name], 25
    with_features = model.model_copy(update={"features": FEATURES})
    for seed in range(3):
        learner, dense = learner_of(with_features, group)
        towers = dense._parameters.to_towers(dense._local.copy())
        examples, plain, of_items, of_users = featured(seed, model)
        loss, items, users, _, _ = oracle(plain, model, group, clock, towers)
        step = learner.learn(examples, clock)
        assert step.finite
        assert step.loss == pytest.approx(loss, rel=1e-4)
        np.testing.assert_allclose(step.item_gradients, items, rtol=1e-3, atol=3e-5)
        expected = of_items.T @ items + means(examples, of_users, users)
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(step.feature_gradients, expected, rtol=1e-3, atol=1e-4)
        if model.user_id_vector:
            own = np.zeros_like(step.user_gradients)
            np.add.at(own, examples.user, users)
            np.testing.assert_allclose(step.user_gradients, own, rtol=1e-3, atol=3e-5)
        assert step.feature_keys is examples.features.keys


@pytest.mark.parametrize("layers", [(), (7, 3)])
def test_labels_teach_features_by_the_same_rule(layers):
    model = ModelSettings(dim=6, history_length=4, dense_layers=layers, features=FEATURES)
    plain_model = model.model_copy(update={"features": (), "user_id_vector": True})
    examples, plain, of_items, of_users = featured(1, ModelSettings(dim=6, history_length=4), n=21, fresh=21)
    changes = {"loss": "bce", "replay": 0}
    step = learner_of(model, 32, **changes)[0].learn(examples, 25)
    without = learner_of(plain_model, 32, **changes)[0].learn(plain, 25)
    assert step.loss == pytest.approx(without.loss, rel=1e-5)
    expected = of_items.T @ without.item_gradients + means(examples, of_users, without.user_gradients)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(step.feature_gradients, expected, rtol=1e-4, atol=1e-5)


def test_several_passes_move_copies_by_the_tables_own_optimizer():
    """The first pass's delta is Adagrad's on its gradient, and the state's is its square; passes go on from there."""
    model = ModelSettings(dim=6, history_length=4, clocks=(0.8,), learned_gates=False, features=FEATURES)
    examples, *_ = featured(
        3, ModelSettings(dim=6, history_length=4, clocks=(0.8,), learned_gates=False), n=16, fresh=16
    )
    examples = dataclasses.replace(
        examples, features=dataclasses.replace(examples.features, rows=rows_of(np.random.default_rng(5), 9, 6))
    )
    gradient = learner_of(model, 32)[0].learn(examples, 25).feature_gradients.astype(np.float64)
    one = learner_of(model, 32, update_events=64)[0].learn(examples, 25).feature_gradients
    want = np.concatenate([-0.05 * gradient / (np.sqrt(0.1 + gradient**2) + 1e-7), gradient**2], axis=1)
    np.testing.assert_allclose(one, want, rtol=2e-3, atol=2e-5)
    three = learner_of(model, 32, passes=3)[0].learn(examples, 25).feature_gradients
    assert (three[:, 6:] >= one[:, 6:] - 1e-6).all()
    assert three[:, 6:].sum() > 1.5 * one[:, 6:].sum()


def test_a_feature_row_that_is_not_finite_teaches_nothing():
    model = ModelSettings(dim=6, history_length=4, features=FEATURES)
    examples, *_ = featured(2, ModelSettings(dim=6, history_length=4))
    used = examples.features.users.rows[0]
    examples.features.rows.vectors[used] = np.nan
    assert not learner_of(model, 8)[0].learn(examples, 10).finite


# -- trained is served -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"user_id_vector": True},
        {"dense_layers": (6, 4), "user_id_vector": True},
        {"similarity": "cosine", "temperature": 0.1},
        {"similarity": "cosine", "dense_layers": (6, 4), "temperature": 0.2},
        {"features": FEATURES[:2]},
        {"features": FEATURES[2:]},
    ],
)
def test_the_vector_that_is_trained_is_the_one_that_is_served(changes):
    """Training-serving skew, to 1e-5: the learner's towers against ranker and mirror, users and items with features."""
    model = MODEL.model_copy(update=changes)
    store, logs = MemoryStore(), topic(0, records=200)
    mirror = ItemMirror(store, model)
    for part in (100, 200):  # the mirror takes in changes, and not only a scan
        work(
            store, source_of({p: log[:part] for p, log in logs.items()}, model, 25), model, replay=1, dense_sync_every=1
        )
        mirror.refresh()
    users = [*range(5), *range(10, 15), 77]
    clicks = [Click(START_MS + 10**6, 0, 1 << 40, user, 100 + i) for i, user in enumerate(users)]
    line = {"features": {"device": "phone", "tags": [1, 2]}}
    asked = [json.dumps(line | {"user_id": c.user, "item_id": c.item, "timestamp": c.time_ms}).encode() for c in clicks]
    later = source_of({Partition(TOPIC, 0): asked}, model, 100).poll({}).events
    request = later.features.of_side(model.feature_schema, 2)
    reader = ExampleReader(store, model, ReplayBuffer(10, model.history_length, np.random.default_rng(0)), 0)
    examples, _ = reader.read(later, np.zeros(0, np.uint64), entries_of([]))
    settings, dense = settings_of(dense_sync_every=1), DenseWorker(store, model, 0.01)
    dense.read()
    learner, taken = Learner(model, settings, dense, np.random.default_rng(0)), {}
    step = learner._step

    def spy(pooled, items, *rest):
        if not taken:
            taken.update(pooled=pooled.copy(), items=items.copy(), prior=rest[0].copy())
        return step(pooled, items, *rest)

    def in_order(rows):
        group = learner._group(len(rows))
        return np.append(rows, np.full(-len(rows) % group, -1))

    learner._step, learner._order = spy, in_order
    user_layers, _ = dense.towers(dense.variable + 0.0)
    learner.learn(examples, 300)
    n = len(later)
    served = Ranker(store, model, mirror).users(later.user_key, request)
    outputs = np.asarray(finished(forward(user_layers, taken["pooled"][:n]), model) / model.temperature)
    warm = served.warm
    assert warm[:-1].all()
    assert warm[-1] == any(f.of == "request" for f in model.features)  # nothing is known of 77 but its request
    warm[-1] &= not model.user_id_vector  # whose own vector, yet to be stored, is learned with, and not served
    np.testing.assert_allclose(outputs[warm], served.vectors[warm], rtol=1e-5, atol=1e-6)
    items = mirror.items(later.item_key)
    assert items.found.sum() > 5
    trained = np.asarray(finished(tf.constant(taken["items"][:n]), model))  # behind their layers
    np.testing.assert_allclose(trained[items.found], items.vectors[items.found], rtol=1e-5, atol=1e-6)
    bare = Ranker(store, model, mirror).users(later.user_key)
    assert np.abs(served.vectors - bare.vectors).max() > 1e-3 or all(f.of != "request" for f in model.features)


def test_a_model_without_features_reads_and_keeps_none():
    model = MODEL.model_copy(update={"features": ()})
    store = MemoryStore()
    metrics = work(store, source_of(topic(0), model), model)
    assert list(model.tables()) == ["item", "history", "dense"]
    reader = ExampleReader(store, model, ReplayBuffer(10, 3, np.random.default_rng(0)), 0)
    examples, _ = reader.read(events_of([Click(START_MS, 0, 0, 1, 100)]), np.zeros(0, np.uint64), entries_of([]))
    assert examples.features is None
    assert examples.vectors is examples.items.vectors
    assert ItemMirror(store, model).features is None
    assert metrics.registry.get_sample_value("towline_trainer_events_total") > 50


# -- what the store keeps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knobs", [{}, {"apply_every": 4}, {"passes": 1, "update_events": 0, "read_your_writes": True,
                                                            "apply_every": 3}])  # fmt: skip
def test_the_newest_that_was_told_of_an_id_is_kept(knobs):
    store, logs = MemoryStore(), topic(3)
    source = source_of(logs)
    work(store, source, **knobs)
    assert not source.dead
    for side in ("item", "user"):
        assert kept(store, side) == newest(logs, side)
        assert len(kept(store, side)) > 8
    taught = store.changes("feature", None)
    assert len(taught.keys) > 15
    assert (np.abs(taught.rows.vectors).max(axis=1) > 0).all()
    statuses = {table: {s.clock for s in store.status(table)} for table in MODEL.tables()}
    events = sum(b'"label"' in value for log in logs.values() for value in log)
    assert set().union(*statuses.values()) == {events}  # profiles move no clock


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", [MODEL, MODEL.model_copy(update={"dense_layers": (4,)})])
def test_workers_that_die_anywhere_keep_every_value_once(faults: Faults, seed, model):  # noqa: F811
    """Kills and a store that is away in the middle of flushes: records and clocks are the topic's in the end."""
    rng, store, logs = random.Random(seed), MemoryStore(), topic(seed, records=40)
    for _ in range(60):
        at = faults.half
        faults.plan = {at + rng.randrange(1, 120): rng.choice([Killed, StoreUnavailable]) for _ in range(2)}
        try:
            work(store, source_of(logs, model), model, apply_every=rng.choice([1, 3]))
        except Killed:
            continue
        break
    faults.plan = {}
    work(store, source_of(logs, model), model)
    offsets = {Source(*p): len(log) for p, log in logs.items()}
    events = sum(b'"label"' in value for log in logs.values() for value in log)
    for table in model.tables():
        assert all((dict(s.offsets), s.clock) == (offsets, events) for s in store.status(table)), table
    for side in ("item", "user"):
        assert kept(store, side, model) == newest(logs, side, model)


@pytest.mark.servers
@pytest.mark.parametrize("name", server_names())
@pytest.mark.parametrize("module", [False, True])
def test_redis_keeps_what_memory_does(name, module, tmp_path):
    """Records and feature rows, stock and with the module, to the byte."""
    memory, logs = MemoryStore(), topic(6)
    work(memory, source_of(logs))
    options = ("--loadmodule", module_path().path) if module else ()
    with running(name, tmp_path, *options) as server:
        store = open_store(RedisSettings(url=server.url))
        work(store, source_of(logs))
        mirrors = []
        for one in (memory, store):
            mirror = ItemMirror(one, MODEL)
            mirror.refresh()
            mirrors.append(mirror.raw_vectors(np.arange(100, 112, dtype=np.uint64))[0])
        np.testing.assert_array_equal(*mirrors)
        for side in ("item", "user"):
            assert kept(store, side) == kept(memory, side) == newest(logs, side)
        keys = np.sort(memory.changes("feature", None).keys)
        np.testing.assert_array_equal(store.lookup("feature", keys).vectors, memory.lookup("feature", keys).vectors)
        store.close()


def test_two_trainers_teach_the_same_rows():
    store, logs = MemoryStore(), topic(5)
    for partition, log in logs.items():  # each has a partition of its own, turn by turn
        work(store, source_of({partition: log[:30]}))
    for partition, log in logs.items():
        work(store, source_of({partition: log}))
    for side in ("item", "user"):
        assert kept(store, side) == newest(logs, side)
    one = MemoryStore()
    work(one, source_of(logs))
    keys = [np.sort(s.changes("feature", None).keys).tolist() for s in (store, one)]
    assert keys[0] == keys[1]


def test_who_is_forgotten_has_no_record():
    store, schema = MemoryStore(), MODEL.feature_schema
    declare(store, MODEL)
    pending = Pending(MODEL.dim, MODEL.tables()["item"].state_dim, schema)
    clicks = [Click(START_MS + n, 0, n << 16, 1 + n % 2, 100) for n in range(4)]
    entries, _ = schema.read({"age": 20, "genre": ["a"]})
    batch = batch_of(clicks, 0, 4)
    told = dataclasses.replace(batch.events, features=FeatureValues.of([entries] * 4))
    steps = ((told, ()), (told.take(np.zeros(0, np.int64)), (1,)))
    for start, (events, forget) in enumerate(steps):
        part = batch_of([], 4 * start, 4 * start + 4, forget_users=forget)
        pending.add(dataclasses.replace(part, events=events), None)
        for table in MODEL.tables():
            if table != "dense":
                flush = pending.flush(table, 0, {Partition(TOPIC, 0): 4 * start}, START_MS)
                assert {reply.outcome for reply in store.apply(table, flush)} == {"applied"}
        pending.clear()
        assert sorted(kept(store, "user")) == ([1, 2] if not forget else [2])
    assert sorted(kept(store, "item")) == [100]
    age = schema.read({"age": 20})[0][0].key
    assert kept(store, "user")[2] == [age]


# -- what an event knows ---------------------------------------------------------------------------------------------


def test_newest_is_the_last_that_is_not_newer():
    rng = np.random.default_rng(0)
    for _ in range(50):
        n, m = rng.integers(0, 12), 10
        rows, asked = rng.integers(0, 4, n), rng.integers(0, 4, m)
        orders, wanted = np.zeros(n, ORDER), np.zeros(m, ORDER)
        for column in (orders, wanted):
            for name in ("time_ms", "partition", "place"):
                column[name] = rng.integers(0, 3, len(column))
        found = newest_of(rows, orders, asked, wanted)
        for i in range(m):
            key = wanted[i]["time_ms"], wanted[i]["partition"], wanted[i]["place"]
            known = [
                ((o["time_ms"], o["partition"], o["place"]), k)
                for k, (row, o) in enumerate(zip(rows, orders, strict=True))
                if row == asked[i] and (o["time_ms"], o["partition"], o["place"]) <= key
            ]
            if not known:
                assert found[i] == -1
            else:
                assert known[[k for _, k in known].index(found[i])][0] == max(known)[0]


def read(store, lines, model=MODEL, buffer=None, replays=0):
    batch = source_of({Partition(TOPIC, 0): [json.dumps(line).encode() for line in lines]}, model, 100).poll({})
    buffer = ReplayBuffer(1000, 3, np.random.default_rng(0)) if buffer is None else buffer
    reader = ExampleReader(store, model, buffer, replays)
    told = recorded_of(batch.events, batch.profiles, model.feature_schema)
    examples, past = reader.read(batch.events, np.zeros(0, np.uint64), entries_of([]), recorded=told)
    reader.keep(batch.events, past)
    return examples


def names_of(examples, bags, i):
    keys = examples.features.keys[bags.rows[bags.offsets[i] : bags.offsets[i + 1]]].tolist()
    texts = [b"age=[-inf,18.0)", b"age=[18.0,25.0)", b"age=[25.0,40.0)", b"age=[40.0,inf)", b"device=tv",
             b"device=phone", b"genre=a", b"genre=b"]  # fmt: skip
    known = {key_and_check(text)[0]: text.decode() for text in texts}
    return [known[key] for key in keys]


def test_a_user_has_what_was_told_before_an_event_and_an_item_the_newest():
    store = MemoryStore()
    declare(store, MODEL)
    event = {"user_id": 1, "item_id": 100}
    lines = [
        event | {"timestamp": START_MS, "features": {"device": "tv"}},
        event | {"timestamp": START_MS + 10, "features": {"age": 20, "genre": ["a"]}},
        event | {"timestamp": START_MS + 20},
        event | {"timestamp": START_MS + 30, "features": {"age": 30, "genre": ["b"], "device": "phone"}},
        event | {"timestamp": START_MS + 25},
    ]
    examples = read(store, lines)
    known = [names_of(examples, examples.features.users, i) for i in range(5)]
    young = "age=[18.0,25.0)"
    assert known == [["device=tv"], [young], [young], ["age=[25.0,40.0)", "device=phone"], [young]]
    assert names_of(examples, examples.features.items, 0) == ["genre=b"]
    assert examples.is_row.tolist() == [True] * 5  # the first has nothing but its request


def test_a_replay_has_the_request_of_its_time_and_what_is_known_of_its_user_now():
    store, buffer = MemoryStore(), ReplayBuffer(1000, 3, np.random.default_rng(0))
    work(store, source_of({Partition(TOPIC, 0): [b'{"user_id":1,"item_id":100,"features":{"age":50,"genre":"a"}}']}))
    event = {"user_id": 1, "item_id": 100, "timestamp": START_MS + 10}
    assert len(read(store, [event | {"features": {"device": "tv"}}], buffer=buffer, replays=2).target) == 1
    examples = read(store, [event], buffer=buffer, replays=2)
    assert examples.fresh == 1
    assert len(examples.target) == 3
    known = [names_of(examples, examples.features.users, i) for i in range(3)]
    assert known == [["age=[40.0,inf)"], *2 * [["age=[40.0,inf)", "device=tv"]]]
    assert names_of(examples, examples.features.items, 0) == ["genre=a"]


def test_the_buffer_keeps_the_request_features_of_what_it_keeps():
    rng = np.random.default_rng(0)
    buffer, wanted = ReplayBuffer(1000, 2, rng), {}
    for _ in range(8):
        n = 300
        users = rng.integers(0, 2**62, n).astype(np.uint64)
        counts = rng.integers(0, 3, n)
        request = FeatureValues(np.cumsum([0, *counts]), rng.integers(0, 4, counts.sum()).astype(np.uint8),
                                rng.integers(0, 2**62, counts.sum()).astype(np.uint64))  # fmt: skip
        for i, user in enumerate(users.tolist()):
            wanted[user] = request.take(np.array([i])).key.tolist()
        none = np.zeros(n, np.int64)
        buffer.add(users, users, np.zeros((n, 2), np.uint64), none, none, request)
    drawn = buffer.draw(2000)
    assert len(unique_keys(drawn.user)[0]) > 500
    for i, user in enumerate(drawn.user.tolist()):
        assert drawn.request.take(np.array([i])).key.tolist() == wanted[user]
    assert len(concatenate([drawn.request, FeatureValues.empty(2)])) == 2002


def test_a_new_category_gets_a_row_by_being_used():
    store = MemoryStore()
    event = {"user_id": 1, "item_id": 100}
    lines = [
        event | {"user_id": n % 7, "item_id": 100 + n, "features": {"device": "tv" if n < 20 else "fridge"}}
        for n in range(40)
    ]
    work(store, source_of({Partition(TOPIC, 0): [json.dumps(line).encode() for line in lines]}))
    keys = np.array([key_and_check(text)[0] for text in (b"device=tv", b"device=fridge", b"device=car")], np.uint64)
    rows = store.lookup("feature", keys)
    assert rows.found.tolist() == [True, True, False]
    assert not rows.vectors[2].any()
