"""The verifier finds what is planted: a lost event, a doubled one, a wrong weight, a wrong history, a wrong offset."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.contract import Source
from embedding_store.memory import MemoryStore
from embedding_store.transitions import TABLE as TRANSITIONS
from native.identity import canonical, key_and_check
from tests.chaos.linear import PARTITIONS, effect
from tests.chaos.plan import Plan
from tests.chaos.report import quantile
from tests.chaos.topic_log import EVENT, Told, TopicLog
from tests.chaos.verifier import Verifier, compare_with_single
from tests.flushes import flush_of

TOPIC = "topic"
USERS = [user for user in range(30) if user % PARTITIONS in (0, 1)]


def some_log(events: int = 60) -> TopicLog:
    rng = np.random.default_rng(4)
    columns = np.zeros(events, EVENT)
    columns["user"] = rng.choice(USERS, events)
    columns["item"] = rng.integers(100, 108, events)
    columns["partition"] = columns["user"] % PARTITIONS
    columns["time_ms"] = 1_700_000_000_000 + rng.integers(0, 50, events)
    columns["label"] = rng.integers(0, 2, events)
    columns["weight"] = rng.integers(1, 33, events) / 8
    ends = {}
    for partition in range(PARTITIONS):
        mine = np.flatnonzero(columns["partition"] == partition)
        columns["place"][mine] = np.arange(len(mine)) << 16
        ends[partition] = len(mine)
    ids = {int(key): canonical(int(key)) for name in ("user", "item") for key in columns[name]}
    return TopicLog(np.sort(columns, order=("partition", "place")), frozenset(), {}, {}, ends, ids)


def apply_all(store: MemoryStore, model, log: TopicLog, *, left_out: int = -1, doubled: int = -1, heavier: int = -1):
    """One call per table and partition. left_out, doubled, heavier: numbers of events that go wrong."""
    for spec in model.tables().values():
        store.create(spec)
        side, other = ("item", "user") if spec.name == "item" else ("user", "item")
        for partition, end in log.ends.items():
            source = Source(TOPIC, partition)
            for shard in range(spec.shards):
                store.seek(spec.name, shard, source, None, 0, "first start")
            if not end:
                continue
            if spec.name == TRANSITIONS:
                usable = int((log.events["partition"] == partition).sum())
                store.apply(spec.name, flush_of([], 0, end, source=source, events=usable))
                continue
            numbers = np.flatnonzero(log.events["partition"] == partition)
            usable = len(numbers)
            numbers = np.concatenate([numbers[numbers != left_out], numbers[numbers == doubled]])
            events = log.events[numbers]
            keys, rows = np.unique(events[side], return_inverse=True)
            weight = np.where(numbers == heavier, events["weight"] * 2, events["weight"])
            gradients = np.zeros((len(keys), model.dim), np.float32)
            np.subtract.at(gradients, rows, effect(events[other], weight))
            positive = np.flatnonzero(events["label"] > 0)
            is_history = spec.name == "history"
            appends = [(rows[i], *events[i][["time_ms", "place", "item", "partition", "weight"]]) for i in positive]
            flush = flush_of(
                keys.tolist(),
                0,
                end,
                gradients=None if is_history else gradients,
                counts=np.bincount(rows),
                appends=appends if is_history else None,
                identities=[(key_and_check(log.ids[key])[1], log.ids[key]) for key in keys.tolist()],
                source=source,
                events=usable,
            )
            assert {reply.outcome for reply in store.apply(spec.name, flush)} == {"applied"}


@pytest.fixture(params=[False, True], ids=["keeps", "evicts"])
def checked(request, tmp_path):
    """(apply with mistakes and verify, whether rows may be evicted)."""
    config = Plan(tmp_path, eviction=request.param).config("broker", "redis://nowhere", "0")
    model = config.model.model_copy(update={"item_admit_after": 0, "item_ttl_s": 0.0, "user_ttl_s": 0.0})

    def verdict_of(**mistakes):
        log, store = some_log(), MemoryStore()
        apply_all(store, model, log, **mistakes)
        return Verifier(store, model, log, TOPIC, linear=True, eviction=request.param).verify()

    return verdict_of, request.param


def test_a_right_store_is_clean(checked):
    verdict_of, _ = checked
    verdict = verdict_of()
    assert verdict.clean, dict(verdict.violations)
    assert (verdict.lost, verdict.duplicated) == (0, 0)


def test_a_lost_event_is_found(checked):
    verdict_of, evicts = checked
    verdict = verdict_of(left_out=7)
    assert not verdict.right("weights")
    if not evicts:
        assert (verdict.lost, verdict.duplicated) == (3, 0), "in its item's row, its user's row, its user's history"


def test_a_doubled_event_is_found(checked):
    verdict_of, _ = checked
    verdict = verdict_of(doubled=7)
    assert not verdict.right("counts")
    assert (verdict.lost, verdict.duplicated) == (0, 3)


def test_a_wrong_gradient_is_found(checked):
    verdict_of, _ = checked
    verdict = verdict_of(heavier=7)
    assert verdict.right("counts")
    assert verdict.numbers["weights"] == 2


def test_a_wrong_history_an_unfinished_shard_and_a_missing_row_are_found(tmp_path):
    model = Plan(tmp_path).config("broker", "redis://nowhere", "0").model
    log, store = some_log(), MemoryStore()
    apply_all(store, model, log)
    changed = log.events.copy()
    newest = max(np.flatnonzero(changed["label"] > 0), key=lambda i: changed["time_ms"][i])
    changed["time_ms"][newest] += 1
    ids = log.ids | {9: b"9"}
    extra = changed[:1].copy()
    extra["user"], extra["place"] = 9, 1 << 40
    other = TopicLog(np.concatenate([changed, extra]), log.unusable, {}, {}, log.ends | {0: log.ends[0] + 1}, ids)
    verdict = Verifier(store, model, other, TOPIC, linear=True, eviction=False).verify()
    assert verdict.numbers["sequences"] == 1
    assert verdict.numbers["rows"] == 2, "no row and no history of user 9"
    assert not verdict.right("offsets")
    assert not verdict.right("clocks")


def recorded(tmp_path, *, stored: list[int], eviction: bool = False):
    """What is found wrong where a user was told of three times, the second time the latest, and some were stored."""
    config = Plan(tmp_path, features=True, eviction=eviction).config("broker", "redis://nowhere", "0")
    model, user = config.model.model_copy(update={"user_ttl_s": 0.0, "item_admit_after": 0, "item_ttl_s": 0.0}), 6
    told = [Told((1_700_000_000_000 + late, 0, place << 16), b"plan %d " % place * 2)
            for place, late in enumerate((5, 9, 7))]  # fmt: skip
    ends = {0: 3} | dict.fromkeys(range(1, PARTITIONS), 0)
    ids = {user: canonical(user)}
    nothing = np.zeros(0, EVENT)
    log = TopicLog(nothing, frozenset(), {}, {}, ends, ids, {"user": {user: told}, "item": {}})
    store = MemoryStore()
    for spec in model.tables().values():
        store.create(spec)
        for partition in ends:
            for shard in range(spec.shards):
                store.seek(spec.name, shard, Source(TOPIC, partition), None, 0, "first start")
        values = [(0, told[i].order[0], told[i].order[2], told[i].order[1], told[i].value) for i in stored]
        of_user = spec.name == "user_features" and stored
        flush = flush_of(
            [user] if of_user else [], 0, 3, source=Source(TOPIC, 0), events=0, counts=[0] if of_user else [],
            values=values if of_user else None, identities=[(key_and_check(ids[user])[1], ids[user])] * bool(of_user),
        )  # fmt: skip
        assert {reply.outcome for reply in store.apply(spec.name, flush)} == {"applied"}
    return Verifier(store, model, log, TOPIC, linear=True, eviction=eviction).verify()


def test_the_newest_word_of_an_id_must_be_stored(tmp_path):
    assert recorded(tmp_path, stored=[0, 1, 2]).clean
    assert recorded(tmp_path, stored=[1]).clean
    for lost in ([0, 2], []):
        assert dict(recorded(tmp_path, stored=lost).numbers) == {"records": 1}


def test_an_evicted_record_is_the_newest_word_since(tmp_path):
    assert recorded(tmp_path, stored=[2], eviction=True).clean
    assert recorded(tmp_path, stored=[], eviction=True).clean
    assert dict(recorded(tmp_path, stored=[0], eviction=True).numbers) == {"records": 1}


def test_a_store_is_compared_with_that_of_a_single_worker_bit_by_bit(tmp_path):
    model = Plan(tmp_path).config("broker", "redis://nowhere", "0").model
    log, stores = some_log(), (MemoryStore(), MemoryStore(), MemoryStore())
    for store, mistakes in zip(stores, ({}, {}, {"heavier": 3}), strict=True):
        apply_all(store, model, log, **mistakes)
    verifier = Verifier(stores[0], model, log, TOPIC, linear=True, eviction=False)
    same, different = verifier.verify(), verifier.verify()
    compare_with_single(stores[0], stores[1], model, same)
    compare_with_single(stores[0], stores[2], model, different)
    assert same.clean
    assert different.numbers["weights"] == 2


def test_the_log_is_compared_with_what_was_acknowledged():
    from tests.chaos.stream import Acknowledged, Produced

    places = [Acknowledged(0, 0), Acknowledged(0, 1)]
    sent = [Produced(b"k", 0, b"a", 1), Produced(b"k", 0, b"b", 1)]
    empty = np.zeros(0, EVENT)
    log = TopicLog(empty, frozenset(), {places[0]: 0, places[1]: 1}, {places[0]: b"a", places[1]: b"b"}, {}, {})
    assert log.against(sent, dict(enumerate(places))) == []
    missing = TopicLog(empty, frozenset(), {places[0]: 0}, {places[0]: b"a"}, {}, {})
    assert len(missing.against(sent, dict(enumerate(places)))) == 1
    twice = TopicLog(empty, frozenset(), dict.fromkeys(places, 0), dict.fromkeys(places, b"a"), {}, {})
    assert len(twice.against(sent, {0: places[0]})) == 1


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.99, 4.0), (1.0, 4.0), (0.01, 1.0)])
def test_quantiles_are_by_nearest_rank(share, value):
    assert quantile([4.0, 2.0, 1.0, 3.0], share) == value
    assert quantile([], share) is None
    assert quantile([float("inf")], share) is None
