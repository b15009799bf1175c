"""What is quarantined, what is not, and that a quarantined range counts exactly once and teaches nothing."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from embedding_store.contract import ENTRY, Range, Source
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.settings import RedisSettings
from embedding_store.snapshots.create import create
from embedding_store.snapshots.restore import opened_registered
from embedding_store.towers import DenseParameters
from ingest.columns import MAX_LINES, MicroBatch, Partition, Tombstones
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.servers import server_names
from tests.streams import HARD, LAWS, Law, make
from tests.trainer.small import MODEL, TOPIC, Click, batch_of, events_of, record
from trainer.examples import ExampleReader
from trainer.foretold import Foretold, foretell
from trainer.guard import TOGETHER, Band, Guard
from trainer.guarded import left_out
from trainer.learner import Step
from trainer.metrics import Metrics
from trainer.replay import ReplayBuffer
from trainer.rewind import SnapshotRewind
from trainer.settings import TrainerSettings
from trainer.worker import Worker

PARTITION = Partition(TOPIC, 0)
TOWERS = ModelSettings(dim=16, history_length=10, seen_length=200, shards=1, clocks=(0.9, 0.6))
SETTINGS = TrainerSettings(
    passes=1, update_events=0, group=64, replay=1, evaluate_share=0.0, guard_after=1000, reconcile_every_s=1e-9
)
BATCH = 128
EVENTS, FROM, TO = 40 * BATCH, 28 * BATCH, 30 * BATCH
"""The poisoned stretch is of two micro-batches."""

LAW = Law(events=EVENTS, items=150, clusters=8, users=400, activity=0.3)


def clicks_of(law: Law, poison: str = "", to: int = TO) -> list[Click]:
    made, rng = make(law), np.random.default_rng(5)
    rows = []
    rare = np.argsort(np.bincount(made.items, minlength=law.items))[: law.items // 3]
    for i, (user, item) in enumerate(zip(made.users.tolist(), made.items.tolist(), strict=True)):
        label = weight = 1.0
        if FROM <= i < to and poison:
            if poison == "one item for all events":
                item = 3
            elif poison == "labels flipped":  # what nobody would have taken is what everybody takes
                item = int(rng.choice(rare))
            elif poison == "items nobody has seen":
                item = 10_000 + i
            elif poison == "weights":
                weight = 1000.0
        rows.append(Click(1_700_000_000_000 + 1000 * i, 0, i << 16, 10_000_000 + user, item, label, weight))
    return rows


def work(store, clicks, metrics=None, each=lambda worker, source: False, rewind=None, **knobs):
    source = ListedSource(
        {PARTITION: [record(c) for c in clicks]}, IngestSettings(batch_events=BATCH), 1_800_000_000_000
    )
    metrics, turns = metrics or Metrics(), itertools.count()
    worker = Worker(store, source, TOWERS, SETTINGS.model_copy(update=knobs), metrics, rewind=rewind)
    worker._backoff._first_s = worker._backoff._most_s = worker._backoff.next_s = 0.0

    def stopping() -> bool:
        assert next(turns) < 500, "no progress"
        return bool(each(worker, source)) or source.exhausted

    worker.run(stopping)
    return worker, source, metrics


def quarantined(metrics, kind=None) -> float:
    sample = metrics.registry.get_sample_value
    if kind is None:
        return sample("towline_trainer_quarantined_total")
    return sample("towline_trainer_quarantined_by_total", {"kind": kind}) or 0.0


def exact(store):
    """Counts, sequences, clocks and offsets."""
    found = {}
    for table in TOWERS.tables():
        changes = store.changes(table, None)
        found[table] = dict(zip(changes.keys.tolist(), changes.rows.count.tolist(), strict=True))
        found[f"{table} shards"] = [(s.clock, dict(s.offsets), s.rows) for s in store.status(table)]
    del found["dense"], found["dense shards"]
    users = np.array(sorted(found["history"]), np.uint64)
    found["entries"] = store.histories("history", users).entries.tolist()
    return found


@pytest.mark.parametrize("name", [*LAWS, *HARD])
def test_ordinary_streams_with_all_their_drift_are_learned_whole(name):
    law = {**LAWS, **HARD}[name]
    made = make(law)
    clicks = [
        Click(1_700_000_000_000 + 1000 * i, 0, i << 16, 10_000_000 + int(made.users[i]), int(made.items[i]))
        for i in range(6000)
    ]
    _, source, metrics = work(MemoryStore(), clicks)
    assert source.quarantined == []
    assert quarantined(metrics) == 0


@pytest.mark.parametrize("poison", ["one item for all events", "labels flipped", "items nobody has seen", "weights"])
def test_poison_counts_and_is_not_learned(poison):
    clicks = clicks_of(LAW, poison)
    guarded, bare = MemoryStore(), MemoryStore()
    _, source, metrics = work(guarded, clicks)
    work(bare, clicks, guard="off")
    places = [ranges[PARTITION] for ranges, _ in source.quarantined]
    assert (FROM, FROM + BATCH) in places
    assert all(start >= FROM and stop <= TO for start, stop in places), "only what is poison"
    assert quarantined(metrics) == len(places)
    assert exact(guarded) == exact(bare)


def test_what_is_quarantined_moves_no_row_no_gate_and_is_never_replayed():
    clicks = clicks_of(LAW, "one item for all events")[: FROM + BATCH]
    before, after = MemoryStore(), MemoryStore()
    untouched, _, _ = work(before, clicks[:FROM])
    worker, source, _ = work(after, clicks)
    assert [r for r, _ in source.quarantined] == [{PARTITION: (FROM, FROM + BATCH)}]
    keys = before.changes("item", None).keys
    expected, found = (s.lookup("item", keys, with_state=True) for s in (before, after))
    np.testing.assert_array_equal(found.state, expected.state)
    # the clock has moved: decay has done its work, and nothing else has
    ratio = found.vectors / expected.vectors
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0, 0], ratio.shape), rtol=1e-5)
    parameters = DenseParameters(TOWERS)
    np.testing.assert_array_equal(parameters.read(after), parameters.read(before))
    assert len(worker._replay) == len(untouched._replay)


def test_without_a_guard_what_is_not_finite_is_left_out_all_the_same():
    class Wild:
        intercept = None

        def learn(self, examples, clock, *, again=False):
            rows = np.full((len(examples.item_keys), TOWERS.dim), np.nan, np.float32)
            return Step(examples.item_keys, rows, examples.user_keys, rows[:0], math.nan, 1, finite=False)

    clicks = clicks_of(LAW)[: 2 * BATCH]
    store, expected = MemoryStore(), MemoryStore()

    def wild(worker, source):
        worker._guarded._learner = Wild()

    _, source, metrics = work(store, clicks, each=wild, guard="off")
    work(expected, clicks)
    assert quarantined(metrics, "not_finite") == len(source.quarantined) == 2
    assert exact(store) == exact(expected)
    assert np.isfinite(store.changes("item", None).rows.vectors).all()


def test_a_replay_of_what_some_shards_have_quarantines_nothing_anew():
    """The other shards of the range had its gradients: this one gets what it lacks."""
    clicks = clicks_of(LAW, "one item for all events")[: FROM + BATCH]
    store = MemoryStore()
    replaying = []

    def each(worker, source):
        # a guard that refuses whatever it is asked about
        worker._guarded.guard.judged = lambda told: replaying.append(worker._progress.replaying) and None
        return False

    work(store, clicks[: 4 * BATCH], each=each)
    assert replaying
    assert not any(replaying)


def test_paused_it_reads_nothing_until_the_store_is_another(tmp_path):
    clicks = clicks_of(LAW, "one item for all events")
    store, metrics, alarm = MemoryStore(), Metrics(), tmp_path / "alarm.json"
    seen = []

    def each(worker, source):
        if worker._paused:
            offsets = dict(store.status("item")[0].offsets)
            seen.append((offsets[Source(*PARTITION)], json.loads(alarm.read_text())))
            assert metrics.registry.get_sample_value("towline_trainer_paused") == 1
            if len(seen) == 3:
                store.raise_generation()
        return False

    work(store, clicks, metrics, each, guard="pause", alarm_file=str(alarm))
    assert len(seen) >= 3
    assert {offset for offset, _ in seen[:3]} == {FROM + BATCH}, "the range itself is applied, and nothing after it"
    first = seen[0][1]
    assert first["paused"]
    assert f"restore NAME --exclude {TOPIC}:0:{FROM}-{FROM + BATCH - 1}" in first["text"]
    assert store.status("item")[0].offsets[Source(*PARTITION)] == EVENTS
    assert metrics.registry.get_sample_value("towline_trainer_paused") == 0
    assert not alarm.exists()


@pytest.mark.servers
@pytest.mark.parametrize("kind", [server_names()[0], "module"])
def test_rolled_back_it_learns_all_but_the_poison_again(kind, server_of, tmp_path):
    server = server_of(kind)
    server.command("FLUSHALL")
    redis = RedisSettings(url=server.url)
    store, operator = opened_registered(redis), opened_registered(redis)
    turns = itertools.count()

    def each(worker, source):
        if next(turns) == 24:
            create(operator, tmp_path, "good")
            create(operator, tmp_path, "newer")
        return False

    clicks = clicks_of(LAW, "one item for all events", FROM + BATCH)
    _, _, metrics = work(store, clicks, each=each, guard="rollback", rewind=SnapshotRewind(redis, tmp_path))
    excluded = store.excluded()
    assert excluded == (Range(Source(*PARTITION), FROM, FROM + BATCH),)
    expected = MemoryStore()
    expected.exclude(excluded)
    work(expected, clicks, guard="off")
    assert exact(store) == exact(expected)
    assert quarantined(metrics) >= 1
    for one in (store, operator):
        one.close()


def test_without_a_snapshot_rollback_pauses_and_says_why(tmp_path, caplog):
    clicks = clicks_of(LAW, "one item for all events")
    rewind = SnapshotRewind(RedisSettings(), tmp_path)
    worker, _, metrics = work(
        MemoryStore(), clicks, each=lambda worker, source: worker._paused, guard="rollback", rewind=rewind
    )
    assert worker._paused
    assert "towline snapshot create" in caplog.text
    assert metrics.registry.get_sample_value("towline_trainer_paused") == 1


def test_a_tombstone_is_never_left_out():
    batch = batch_of([Click(1, 0, i * MAX_LINES, 1, 2) for i in range(5)], 0, 6, forget_users=[7])
    assert left_out(batch) == [Range(Source(TOPIC, 0), 0, 5)]
    only = MicroBatch(
        events_of([]), {PARTITION: (3, 4)}, Tombstones.of([(1, 1, 0, 3 * MAX_LINES, 0)]), Tombstones.of(), 0
    )
    assert left_out(only) == []


# -- the judge itself --


def told(rng, mean, n=128, spread=1.0, **more):
    losses = rng.normal(mean, spread, n)
    targets = more.pop("targets", rng.integers(0, 1000, n).astype(np.uint64))
    return Foretold(n, float(losses.mean()), float(losses.var()), targets=targets, **more)


def step_of(size):
    rows = np.full((2, 3), size, np.float32)
    return Step(np.arange(2, dtype=np.uint64), rows, np.zeros(0, np.uint64), rows[:0], 1.0, 2, finite=True)


def usual(guard, rng, n=60):
    for _ in range(n):
        assert guard.judged(told(rng, 1.0)) is None
        assert guard.judged_step(step_of(0.1), 3) is None


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_nothing_is_judged_before_enough_was_seen(rng):
    guard = Guard(6.0, 100.0, 5000)
    assert guard.judged(told(rng, 1.0)) is None
    assert guard.judged(told(rng, 50.0)) is None
    assert guard.judged_step(step_of(1e6), 3) is None


@pytest.mark.parametrize(
    ("mean", "kind"), [(6.0, "loss"), (-4.0, "calibration"), (math.nan, "not_finite"), (math.inf, "not_finite")]
)
def test_a_jump_of_the_loss_is_seen_either_way(rng, mean, kind):
    guard = Guard(6.0, 100.0, 5000)
    usual(guard, rng)
    verdict = guard.judged(Foretold(128, mean, 1.0, targets=np.arange(128, dtype=np.uint64)))
    assert verdict is not None
    assert verdict.kind == kind
    usual(guard, rng, 5)


def test_a_loss_that_wanders_is_followed(rng):
    guard = Guard(6.0, 100.0, 5000)
    for i in range(600):
        assert guard.judged(told(rng, 1.0 + i / 150 + math.sin(i / 20))) is None


def test_a_lasting_change_is_followed_in_the_end(rng):
    guard = Guard(6.0, 100.0, 5000)
    usual(guard, rng)
    refused = [guard.judged(told(rng, 7.0)) is not None for _ in range(1000)]
    assert all(refused[:20])
    assert not any(refused[-100:])


def test_few_events_are_judged_together_with_those_before(rng):
    guard = Guard(6.0, 100.0, 1000)
    usual(guard, rng)
    verdicts = [guard.judged(told(rng, 12.0, n=4)) is not None for _ in range(TOGETHER // 4)]
    assert not verdicts[0], "four unlucky events are no alarm"
    assert verdicts[-1]


def test_a_row_that_leaps_is_seen_in_gradients_and_in_sums_of_squares(rng):
    guard = Guard(6.0, 100.0, 5000)
    usual(guard, rng)
    verdict = guard.judged_step(step_of(50.0), 3)
    assert verdict is not None
    assert verdict.kind == "growth"
    behind = np.array([[0.1, 0.1, 1e6]], np.float32)
    verdict = guard.judged_step(
        Step(np.zeros(1, np.uint64), behind, np.zeros(0, np.uint64), behind[:0], 1.0, 1, finite=True), 2
    )
    assert verdict is not None
    assert verdict.kind == "growth"


def test_labels_that_are_not_what_was_predicted_are_seen(rng):
    guard = Guard(6.0, 100.0, 5000)
    for _ in range(60):
        found = told(rng, 0.6, labels=True, calibration=rng.normal(0.0, 0.01), calibration_variance=0.2)
        assert guard.judged(found) is None
    verdict = guard.judged(told(rng, 0.6, labels=True, calibration=0.6, calibration_variance=0.2))
    assert verdict is not None
    assert verdict.kind == "calibration"


def test_the_running_figures_are_those_of_the_events(rng):
    band = Band(4000, floor=0.0)
    values = rng.normal(3.0, 2.0, (2000, 50))
    for row in values:
        band.deviation(float(row.mean()), float(row.var()), len(row))
    assert band.mean == pytest.approx(3.0, abs=0.2)
    assert band._variance == pytest.approx(4.0, rel=0.15)
    assert band._between < 0.05


def test_foretold_is_the_loss_of_a_softmax_over_the_replays():
    store, buffer = MemoryStore(), ReplayBuffer(1000, TOWERS.history_length, np.random.default_rng(1))
    clicks = clicks_of(LAW)[: 4 * BATCH]
    work(store, clicks)
    reader = ExampleReader(store, TOWERS, buffer, 1)
    none, no_entries = np.zeros(0, np.uint64), np.zeros(0, events_of([]).user_key.dtype)

    none, no_entries = np.zeros(0, np.uint64), np.zeros(0, ENTRY)
    events = events_of(clicks[-100:])
    _, past = reader.read(events, none, no_entries)
    reader.keep(events, past)
    again = events_of([Click(c.time_ms + 10**9, 0, c.place + (1 << 40), c.user, c.item) for c in clicks[-40:]])
    examples, _ = reader.read(again, none, no_entries)
    parameters = DenseParameters(TOWERS)
    towers = parameters.to_towers(parameters.read(store))
    clock = 4 * BATCH
    found = foretell(examples, TOWERS, towers, clock)
    items = examples.items
    lp = np.log(np.maximum(items.popularity * 0.5 ** (np.maximum(clock - items.last_seen, 0) / 1000), 0.01))
    columns = examples.target[examples.fresh :]
    losses = []
    for i in range(examples.fresh):
        x = np.zeros(TOWERS.dim)
        bucket = min(int(np.log2(examples.length[i] + 1)), 7)
        for v, part in enumerate(np.split(np.arange(TOWERS.dim), 2)):
            at = np.flatnonzero(examples.recent[i] >= 0)
            share = np.exp(towers.gates.logits[v, at].astype(float))
            x[part] = (
                towers.gates.scales[v, bucket] * (share / share.sum()) @ items.vectors[examples.recent[i, at]][:, part]
            )
        score = items.vectors @ x + towers.gates.prior[bucket] * lp
        others = columns[columns != examples.target[i]]
        own = score[examples.target[i]]
        losses.append(np.log(np.exp(score[others]).sum() + np.exp(own)) - own - np.log(len(others) + 1))
    assert found.events == examples.fresh == 40
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert found.variance == pytest.approx(np.var(losses), rel=1e-3)


def test_where_nothing_can_be_told_nothing_is():
    store = MemoryStore()
    for spec in MODEL.tables().values():
        store.create(spec)
    reader = ExampleReader(store, MODEL, ReplayBuffer(1000, MODEL.history_length, np.random.default_rng(1)), 1)

    examples, _ = reader.read(events_of([Click(1, 0, 0, 7, 1)]), np.zeros(0, np.uint64), np.zeros(0, ENTRY))
    parameters = DenseParameters(MODEL)
    assert foretell(examples, MODEL, parameters.to_towers(parameters.initial()), 0).events == 0
    guard = Guard(6.0, 100.0, 100)
    assert guard.judged(foretell(examples, MODEL, parameters.to_towers(parameters.initial()), 0)) is None
