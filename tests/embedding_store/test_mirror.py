"""The mirror is the table: rows, outputs, ids and popularity, whatever the feed says and in whatever order."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.contract import Source
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker
from embedding_store.towers import DenseParameters, forward
from embedding_store.turn_lock import TurnLock
from tests.coarse_rows import assert_in_step
from tests.flushes import SOURCE, flush_of

NOW_MS = 1_700_000_000_000
PLAIN = ModelSettings(
    dim=4, shards=2, popularity_half_life=20, popularity_floor=1e-12, clocks=(0.8,), learned_gates=False
)
DENSE = PLAIN.model_copy(update={"dense_layers": (6, 3)})
SQUARE = PLAIN.model_copy(update={"dense_layers": (4,)})  # outputs as wide as rows, and not the same


class Writer:
    """Applies to the item and the dense table as workers do, and remembers what the item table should give."""

    def __init__(self, model: ModelSettings, seed: int = 0) -> None:
        self.store, self.model, self.rng = MemoryStore(), model, np.random.default_rng(seed)
        self.at = {"item": 0, "dense": 0}
        for table in self.at.keys() & model.tables().keys():
            self.store.create(model.tables()[table])
            for shard in range(model.tables()[table].shards):
                self.store.seek(table, shard, SOURCE, None, 0, "first start")

    def items(
        self,
        counts: dict[int, int],
        events: int = 10,
        positive: bool = True,
        forget: tuple[int, ...] = (),
        now_ms: int = NOW_MS,
    ) -> None:
        keys = list(counts)
        start = self.at["item"]
        self.at["item"] += events
        values = np.array(list(counts.values()), np.int64)
        gradients = self.rng.normal(size=(len(keys), self.model.dim))
        positives = values * np.float32(positive)
        flush = flush_of(
            keys, start, start + events, gradients=gradients, counts=values, positives=positives, forget=forget,
            now_ms=now_ms, event_time_ms=1000 + self.at["item"],
        )  # fmt: skip
        assert {r.outcome for r in self.store.apply("item", flush)} == {"applied"}

    def dense(self) -> None:
        parameters = DenseParameters(self.model)
        deltas = parameters.to_rows(self.rng.normal(0, 0.3, parameters.size).astype(np.float32))
        start = self.at["dense"]
        self.at["dense"] += 1
        self.store.apply("dense", flush_of(parameters.keys.tolist(), start, start + 1, gradients=deltas))

    def check(self, mirror: ItemMirror) -> None:
        """Everything that the mirror answers, against a fresh scan of the table."""
        table = self.store.changes("item", None)
        rows, keys = table.rows, table.keys
        assert mirror.size == len(keys)
        assert (mirror.clock, mirror.event_time_ms) == (min(table.clock), table.event_time_ms)
        towers = None
        if self.model.dense_layers:
            parameters = DenseParameters(self.model)
            towers = parameters.to_towers(parameters.read(self.store))
        assert_in_step(mirror)
        got = mirror.items(keys)
        assert got.found.all()
        outputs = forward(towers.item, rows.vectors) if towers else rows.vectors
        np.testing.assert_allclose(got.vectors, outputs, rtol=1e-5, atol=1e-6)
        raw, found = mirror.raw_vectors(keys)
        assert found.all()
        assert (raw == rows.vectors).all()
        for name in ("clock", "count", "updated_ms"):
            assert (getattr(got, name) == getattr(rows, name)).all()
        unknown = mirror.items(np.array([2**63 + 5], np.uint64))
        assert not unknown.found.any()
        assert not unknown.vectors.any()
        with mirror.lock:
            slots = mirror.slots(keys)
            assert len(set(slots.tolist())) == len(keys)
            described = mirror.describe(slots)
            assert described[0].tolist() == keys.tolist()
            assert described[1] == rows.ids.tolist()
            now = mirror.clock + 123  # any clock gives the same differences
            with np.errstate(divide="ignore"):
                log_p = np.log(rows.popularity.astype(np.float64)) + np.log(2) * (rows.last_seen - now) / 20
            if len(keys) and np.isfinite(log_p).any():
                scores = mirror.scores(None, 0.5)[slots].astype(np.float64)
                finite = np.isfinite(log_p)
                assert np.isneginf(scores[~finite]).all()
                np.testing.assert_allclose(
                    scores[finite] - scores[finite].max(), log_p[finite] - log_p[finite].max(), rtol=1e-5, atol=1e-4
                )


@pytest.mark.parametrize("model", [PLAIN, DENSE, SQUARE], ids=["plain", "dense", "square"])
@pytest.mark.parametrize("seed", range(3))
def test_feed_and_scan_are_the_table(model, seed):
    """Random writes, deletions and dense versions; one mirror follows every feed, one sleeps, one scans at the end."""
    writer = Writer(model, seed)
    rng = np.random.default_rng(seed)
    often, seldom = ItemMirror(writer.store, model), ItemMirror(writer.store, model)
    for turn in range(25):
        keys = rng.choice(60, int(rng.integers(0, 12)), replace=False).tolist()
        forget = tuple(rng.choice(60, int(rng.integers(0, 3)), replace=False).tolist())
        writer.items({k: int(rng.integers(0, 3)) for k in keys}, 30, positive=rng.random() < 0.7, forget=forget)
        if model.dense_layers and rng.random() < 0.3:
            writer.dense()
        often.refresh()
        writer.check(often)
        if turn % 9 == 8:
            seldom.refresh()
            writer.check(seldom)
    fresh = ItemMirror(writer.store, model)
    fresh.refresh()
    writer.check(fresh)
    with fresh.lock, often.lock:
        keys = writer.store.changes("item", None).keys
        vector = rng.normal(size=model.output_dim).astype(np.float32)
        one, two = (m.scores(vector, 0.5)[m.slots(keys)] for m in (fresh, often))
        np.testing.assert_allclose(one - one.max(), two - two.max(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [PLAIN, SQUARE], ids=["plain", "square"])
def test_growth_beyond_the_first_capacity(model):
    writer = Writer(model)
    mirror = ItemMirror(writer.store, model)
    mirror.refresh()
    for start in range(0, 3000, 500):
        writer.items(dict.fromkeys(range(start, start + 500), 1), 500)
        mirror.refresh()
    writer.check(mirror)


def one(mirror: ItemMirror, key: int) -> np.ndarray:
    found = mirror.item(np.array([key], np.uint64))
    assert found is not None, key
    return found[0]


def test_many_rows_at_once_are_taken_in_while_others_read(monkeypatch):
    """Who reads in between finds every row as it was or as it is, and none twice."""
    monkeypatch.setattr("embedding_store.mirror._AT_ONCE", 16)
    writer = Writer(DENSE)
    writer.items(dict.fromkeys(range(1, 41), 1))
    mirror = ItemMirror(writer.store, DENSE)
    mirror.refresh()
    before = {key: one(mirror, key) for key in range(1, 41)}
    writer.items(dict.fromkeys(range(21, 2001), 1), forget=(1, 2))
    whole = ItemMirror(writer.store, DENSE)
    whole.refresh()
    sizes = []

    class Watched(TurnLock):
        """Somebody looks whenever it is free."""

        def release(self) -> None:
            super().release()
            if self._depth or self is not mirror.lock:
                return
            mirror.lock = TurnLock()
            sizes.append(mirror.size)
            for key in range(3, 41):
                seen = one(mirror, key)
                assert any(np.array_equal(seen, known) for known in (before[key], one(whole, key)))
            assert_in_step(mirror)
            mirror.lock = self

    mirror.lock = Watched()
    mirror.refresh()
    mirror.lock = TurnLock()
    assert len(sizes) > 100
    assert sizes == sorted(sizes), "rows came one lot after the other"
    assert mirror.size == whole.size == 1998
    assert_in_step(mirror)
    for key in (3, 20, 21, 40, 41, 2000):
        np.testing.assert_array_equal(one(mirror, key), one(whole, key))


def test_a_deleted_item_leaves_the_answers_and_its_slot_serves_another():
    writer = Writer(PLAIN)
    mirror = ItemMirror(writer.store, PLAIN)
    ranker = Ranker(writer.store, PLAIN, mirror)
    none = np.zeros(0, np.uint64)
    writer.items({1: 1, 2: 5, 3: 2}, 10)
    mirror.refresh()
    assert ranker.recommend(None, exclude=none, k=9).keys.tolist() == [2, 3, 1]
    writer.items({}, forget=(2,))
    assert mirror.refresh() == 1
    assert ranker.recommend(None, exclude=none, k=9).keys.tolist() == [3, 1]
    vector = np.ones(4, np.float32)
    assert 2 not in ranker.recommend(vector, exclude=none, k=9).keys
    assert not mirror.items(np.array([2], np.uint64)).found.any()
    writer.items({777: 9}, 10)
    mirror.refresh()
    writer.check(mirror)
    best = ranker.recommend(None, exclude=none, k=1)
    assert (best.keys.tolist(), best.ids) == ([777], [b"777"])
    writer.items({2: 1}, 10)
    mirror.refresh()
    assert set(ranker.recommend(vector, exclude=none, k=9).ids) == {b"1", b"2", b"3", b"777"}


@pytest.mark.parametrize(
    ("limits", "later"),
    [
        ({"item_max_rows": 3}, {}),
        ({"item_ttl_s": 60.0}, {"now_ms": NOW_MS + 60_000}),
    ],
    ids=["max-rows", "ttl"],
)
def test_an_evicted_item_can_not_be_retrieved_or_recommended(limits, later):
    """By whatever call; and its place in the arrays serves the next item."""
    model = PLAIN.model_copy(update={"shards": 1, **limits})
    writer = Writer(model)
    mirror = ItemMirror(writer.store, model)
    ranker = Ranker(writer.store, model, mirror)
    none, gone = np.zeros(0, np.uint64), np.array([1, 2], np.uint64)
    writer.items({1: 50, 2: 40}, 90, now_ms=NOW_MS)
    mirror.refresh()
    assert set(ranker.recommend(np.ones(4, np.float32), exclude=none, k=9).ids) == {b"1", b"2"}
    writer.items({3: 1, 4: 1, 5: 1}, 10, **{"now_ms": NOW_MS + 1, **later})
    mirror.refresh()
    writer.items({1: 0, 2: 0}, 10, **{"now_ms": NOW_MS + 2, **later})  # late gradients of a step that began before
    mirror.refresh()
    writer.check(mirror)
    assert mirror.size == 3
    assert not mirror.items(gone).found.any()
    assert not mirror.raw_vectors(gone)[1].any()
    for vector in (None, np.ones(4, np.float32), -np.ones(4, np.float32)):
        answer = ranker.recommend(vector, exclude=none, k=9)
        assert set(answer.ids) == {b"3", b"4", b"5"}
        assert not set(answer.keys.tolist()) & {1, 2}
    writer.items({1: 1}, 10, **{"now_ms": NOW_MS + 3, **later})
    mirror.refresh()
    writer.check(mirror)
    assert b"1" in ranker.recommend(np.ones(4, np.float32), exclude=none, k=9).ids


def test_a_key_that_went_to_another_id_between_two_refreshes_answers_with_the_new_one():
    writer = Writer(PLAIN)
    mirror = ItemMirror(writer.store, PLAIN)
    key = (1 << 63) | 5
    for start, columns in (
        (0, {"counts": [1], "identities": [(11, b"old")], "gradients": [[1, 1, 1, 1]]}),
        (1, {"gradients": [[0, 0, 0, 0]], "forget": [key]}),
        (2, {"counts": [1], "identities": [(12, b"new")], "gradients": [[1, 1, 1, 1]]}),
    ):
        writer.store.apply("item", flush_of([key], start, start + 1, **{"identities": [(0, b"")], **columns}))
        if start != 1:
            mirror.refresh()
    with mirror.lock:
        assert mirror.describe(mirror.slots(np.array([key], np.uint64)))[1] == [b"new"]


def test_an_item_is_recommended_from_its_admission_on():
    model = PLAIN.model_copy(update={"item_admit_after": 3})
    writer = Writer(model)
    mirror = ItemMirror(writer.store, model)
    ranker = Ranker(writer.store, model, mirror)
    none = np.zeros(0, np.uint64)
    for expected in ([], [], [1], [1]):
        writer.items({1: 1, 2: 0}, 5)
        mirror.refresh()
        writer.check(mirror)
        assert ranker.recommend(np.ones(4, np.float32), exclude=none, k=9).keys.tolist() == expected
        assert mirror.size == len(expected)


def test_a_slot_used_again_by_a_row_without_an_id_has_none():
    writer = Writer(PLAIN)
    mirror = ItemMirror(writer.store, PLAIN)
    writer.items({5: 1})
    mirror.refresh()
    writer.items({}, forget=(5,))
    mirror.refresh()
    writer.items({6: 0})
    mirror.refresh()
    writer.check(mirror)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_items_that_no_positive_has_named_are_never_recommended(weight):
    model = PLAIN.model_copy(update={"popularity_weight": weight})
    writer = Writer(model)
    mirror = ItemMirror(writer.store, model)
    ranker = Ranker(writer.store, model, mirror)
    writer.items({1: 1, 2: 1}, positive=False)
    writer.items({3: 0})
    mirror.refresh()
    writer.items(dict.fromkeys(range(100, 1600), 0))  # beyond the first capacity
    mirror.refresh()
    vector, none = np.ones(4, np.float32), np.zeros(0, np.uint64)
    assert len(ranker.recommend(vector, exclude=none, k=5).keys) == 0
    assert len(ranker.recommend(None, exclude=none, k=5).keys) == 0
    writer.items({2: 1, 4: 1})
    mirror.refresh()
    assert sorted(ranker.recommend(vector, exclude=none, k=5).keys.tolist()) == [2, 4]
    writer.check(mirror)


def test_popularity_keeps_its_digits_at_a_clock_of_millions_of_half_lives():
    model = PLAIN.model_copy(update={"popularity_half_life": 1})
    writer = Writer(model)
    mirror = ItemMirror(writer.store, model)
    writer.items({1: 1}, 50_000_000)
    writer.items({2: 3}, 3)
    mirror.refresh()
    scores = mirror.scores(None, 1.0)[mirror.slots(np.array([1, 2], np.uint64))]
    assert scores[1] - scores[0] == pytest.approx(np.log(3) + 3 * np.log(2), rel=1e-5)


def test_scores_are_dot_products_plus_weighted_log_popularity():
    writer = Writer(PLAIN)
    writer.items({k: k + 1 for k in range(30)}, 100)
    mirror = ItemMirror(writer.store, PLAIN)
    mirror.refresh()
    vector = np.random.default_rng(1).normal(size=4).astype(np.float32)
    keys = np.arange(30, dtype=np.uint64)
    slots = mirror.slots(keys)
    rows = writer.store.lookup("item", keys)
    for weight in (0.0, 0.5, 2.0):
        want = rows.vectors.astype(np.float64) @ vector + weight * np.log(rows.popularity / rows.popularity.max())
        np.testing.assert_allclose(mirror.scores(vector, weight)[slots], want, rtol=1e-4, atol=1e-5)
        outputs, popularity, _ = mirror.columns()
        np.testing.assert_allclose((outputs @ vector + weight * popularity)[slots], want, rtol=1e-4, atol=1e-5)


def test_a_new_dense_version_recomputes_every_item_and_the_user_tower_with_it():
    writer = Writer(SQUARE)
    writer.items(dict.fromkeys(range(20), 1), 20)
    mirror = ItemMirror(writer.store, SQUARE)
    mirror.refresh()
    before = mirror.items(np.arange(20, dtype=np.uint64)).vectors
    user = mirror.user_layers[0][0].copy()
    writer.dense()
    mirror.refresh()
    writer.check(mirror)
    assert (np.abs(mirror.items(np.arange(20, dtype=np.uint64)).vectors - before).max(axis=1) > 1e-3).all()
    assert np.abs(mirror.user_layers[0][0] - user).max() > 1e-3


def test_a_store_that_lost_its_tables_is_seen_as_it_is():
    writer = Writer(DENSE)
    writer.items(dict.fromkeys(range(20), 1), 20)
    writer.dense()
    mirror = ItemMirror(writer.store, DENSE)
    mirror.refresh()
    for table in writer.store._tables.values():
        for shard in table.shards:
            shard.rows.clear()
            shard.feed.clear()
    writer.store._run_id = "another"
    writer.items({3: 1}, 20)
    mirror.refresh()
    writer.check(mirror)
    assert (
        mirror.user_layers[0][0] == DenseParameters(DENSE).to_towers(DenseParameters(DENSE).initial()).user[0][0]
    ).all()


def test_waiting_is_for_changes_of_either_table():
    writer = Writer(DENSE)
    mirror = ItemMirror(writer.store, DENSE)
    assert mirror.wait(0.0)  # nothing was read yet
    assert not mirror.loaded
    mirror.refresh()
    assert mirror.loaded
    assert not mirror.wait(0.0)
    writer.dense()
    assert mirror.wait(1.0)
    mirror.refresh()
    assert not mirror.wait(0.0)
    writer.items({1: 1})
    assert mirror.wait(1.0)


def test_the_clock_moves_without_rows():
    writer = Writer(PLAIN)
    mirror = ItemMirror(writer.store, PLAIN)
    mirror.refresh()
    writer.items({}, 50)
    mirror.refresh()
    assert (mirror.clock, mirror.event_time_ms) == (50, 1050)
    assert Source("clicks", 0) == SOURCE


@pytest.mark.parametrize("model", [PLAIN, DENSE], ids=["plain", "dense"])
def test_a_frozen_copy_is_what_it_was(model):
    writer = Writer(model)
    mirror = ItemMirror(writer.store, model)
    writer.items(dict.fromkeys(range(40), 2), 40)
    writer.items({}, forget=(3, 4))
    mirror.refresh()
    writer.items({4: 1, 90: 1})
    mirror.refresh()
    frozen, keys = mirror.frozen(), np.arange(100, dtype=np.uint64)
    vector = np.ones(model.output_dim, np.float32)
    was = mirror.scores(vector, 0.5)[mirror.slots(keys)]
    was[mirror.slots(keys) < 0] = -1.0
    for _ in range(3):
        writer.items(dict.fromkeys(range(20, 60), 3), 40)
        if model.dense_layers:
            writer.dense()
        mirror.refresh()
    now = frozen.scores(vector, 0.5)[frozen.slots(keys)]
    now[frozen.slots(keys) < 0] = -1.0
    np.testing.assert_allclose(now, was, rtol=1e-5)
    assert (frozen.slots(keys) >= 0).sum() == 40


def test_an_old_item_counts_as_popular_as_the_floor():
    model = PLAIN.model_copy(update={"popularity_floor": 0.25})
    writer = Writer(model)
    mirror = ItemMirror(writer.store, model)
    writer.items({1: 4}, 20)
    writer.items({2: 4}, 200)  # ten half-lives later: 1 has 4/1024 left
    mirror.refresh()
    slots = mirror.slots(np.array([1, 2], np.uint64))
    scores = mirror.scores(np.zeros(4, np.float32), 2.0)[slots]
    assert scores[1] - scores[0] == pytest.approx(2.0 * np.log(4 / 0.25), rel=1e-4)
    alone = mirror.scores(None, 2.0)[slots]
    assert alone[1] - alone[0] == pytest.approx(10 * np.log(2), rel=1e-4)
