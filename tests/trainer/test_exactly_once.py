"""Workers that die, lose their partitions or their store at any point: in the end every shard has every event once."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from embedding_store import memory
from embedding_store.contract import EmbeddingStore, Source
from embedding_store.errors import StoreUnavailable
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.regularization import NoRegularization
from embedding_store.spec import Sgd
from embedding_store.transitions import LEAST, NEAR_MS, REACH, RECENCY
from ingest.columns import MicroBatch, Partition, Tombstones
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.trainer import numpy_step
from tests.trainer.small import TOPIC, Click, record
from trainer import learner, worker
from trainer.backoff import Backoff
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

MODEL = ModelSettings(dim=8, history_length=4, seen_length=6, shards=2, clocks=(0.8,), learned_gates=False)
DENSE = MODEL.model_copy(update={"dense_layers": (8,), "user_id_vector": True, "shards": 1})
START_MS = 1_700_000_000_000


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Faults:
    """What happens at which step; a step is one shard taking its part of a call, counted over all tables."""

    plan: dict[int, type[BaseException]] = field(default_factory=dict)
    step: int = 0
    half: int = 0  # even: before the step, odd: after it

    def meet(self) -> None:
        fault = self.plan.pop(self.half, None)
        self.half += 1
        if fault is not None:
            raise fault("injected")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Faults in the middle of the memory store's calls; a quick step and no waiting in the workers."""
    faults, real = Faults(), memory._apply

    def apply(*args: object) -> None:
        faults.meet()
        real(*args)
        faults.meet()

    monkeypatch.setattr(memory, "_apply", apply)
    monkeypatch.setattr(learner, "_compile_step", numpy_step.compile_step)
    monkeypatch.setattr(worker, "Backoff", functools.partial(Backoff, 0.0, 0.0))
    return faults


def topic(rng: random.Random, partitions: int, records: int) -> tuple[dict[Partition, list[bytes]], list[Click]]:
    """Messages per partition, some of several lines and some that can't be used, and the usable events in them."""
    messages: dict[Partition, list[bytes]] = {}
    clicks = []
    for p in range(partitions):
        messages[Partition(TOPIC, p)] = log = []
        for offset in range(records):
            lines = []
            for line in range(rng.choice([1, 1, 1, 2])):
                late = rng.choice([0, 0, 0, 500])
                click = Click(
                    START_MS + 100 * (offset // 2) - late, p, (offset << 16) + line,
                    user=10 * p + rng.randrange(5) if rng.random() < 0.9 else 99, item=100 + rng.randrange(12),
                    label=float(rng.random() < 0.8), weight=rng.choice([1.0, 2.5]),
                )  # fmt: skip
                lines.append(record(click))
                clicks.append(click)
            if rng.random() < 0.05:
                lines = [b'{"user_id": 1}']
                del clicks[-1 if line == 0 else -2 :]
            log.append(b"\n".join(lines))
    return messages, clicks


def check_everything_once(store: EmbeddingStore, model: ModelSettings, messages, clicks: list[Click]) -> None:
    offsets = {Source(*p): len(log) for p, log in messages.items()}
    for table, spec in model.tables().items():
        for status in store.status(table):
            assert dict(status.offsets) == offsets, table
            assert (status.clock, status.skipped) == (len(clicks), 0), table
            assert status.event_time_ms == max(c.time_ms for c in clicks)
        if spec.kind == "dense":
            continue
        side = "item" if table == "item" else "user"
        counts = Counter(getattr(c, side) for c in clicks)
        rows = store.changes(table, None)
        assert dict(zip(rows.keys.tolist(), rows.rows.count.tolist(), strict=True)) == counts, table
        assert rows.rows.ids.tolist() == [str(k).encode() for k in rows.keys.tolist()]
    users = np.array(sorted({c.user for c in clicks}), np.uint64)
    histories = store.histories("history", users)
    for i, user in enumerate(users.tolist()):
        mine = sorted(c for c in clicks if c.user == user and c.label)[-model.seen_length :]
        entries = histories.entries[histories.offsets[i] : histories.offsets[i + 1]]
        assert entries.tolist() == [(c.time_ms, c.place, c.item, c.partition, c.weight) for c in mine]


def complete(store: EmbeddingStore, model: ModelSettings, messages) -> bool:
    offsets = {Source(*p): len(log) for p, log in messages.items()}
    return all(dict(s.offsets) == offsets for table in model.tables() for s in store.status(table))


def settings_of(**changes: object) -> TrainerSettings:
    values = {
        "replay": 0,
        "group": 16,
        "evaluate_share": 0.0,
        "reconcile_every_s": 1e-9,
        "dense_sync_every": 3,
        **changes,
    }
    return TrainerSettings.model_validate(values)


def work(
    store: EmbeddingStore,
    model: ModelSettings,
    settings: TrainerSettings,
    source: ListedSource,
    each: Callable[[], object] = lambda: None,
) -> Metrics:
    """One worker's life: until its source is exhausted, or `each`, called at every turn, says so."""
    metrics, turns = Metrics(), itertools.count()

    def stopping() -> bool:
        assert next(turns) < 600, "no progress"
        return bool(each()) or source.exhausted

    Worker(store, source, model, settings, metrics).run(stopping)
    return metrics


def source_of(messages, batch: int = 7) -> ListedSource:
    return ListedSource(messages, IngestSettings(batch_events=batch), START_MS)


def lives(store, model, settings, messages, each=lambda source: None) -> Iterator[None]:
    """Workers after each other, until all is applied; yields after each death."""
    for _ in range(200):
        source = source_of(messages)
        try:
            work(store, model, settings, source, lambda source=source: each(source))
        except Killed:
            yield
        if complete(store, model, messages):
            return
    raise AssertionError("two hundred workers did not get to the end")


KNOBS = [
    pytest.param(MODEL, {}, id="plain"),
    pytest.param(MODEL, {"replay": 4, "evaluate_share": 1.0}, id="replay"),
    pytest.param(MODEL, {"apply_every": 4}, id="apply-every-4"),
    pytest.param(DENSE, {"apply_every": 2}, id="dense"),
    pytest.param(DENSE, {"dense_sync_every": 4, "dense_merge": "sum", "replay": 1}, id="dense-sum"),
]


@pytest.mark.parametrize(("model", "knobs"), KNOBS)
def test_an_undisturbed_run(faults, model, knobs):
    messages, clicks = topic(random.Random(1), 3, 30)
    store = MemoryStore()
    source = source_of(messages)
    metrics = work(store, model, settings_of(**knobs), source)
    check_everything_once(store, model, messages, clicks)
    assert source.committed == {p: len(log) for p, log in messages.items()}
    assert len(source.dead) == sum(b'{"user_id": 1}' in log for log in messages.values() for log in log)
    assert metrics.registry.get_sample_value("towline_trainer_events_total") == len(clicks)
    assert metrics.registry.get_sample_value("towline_trainer_restarts_total") == 0
    assert not metrics.registry.get_sample_value("towline_trainer_quarantined_total")


@pytest.mark.parametrize(("model", "knobs"), KNOBS)
def test_one_fault_at_every_point(faults, model, knobs):
    """Before and after each step of a short stream, once a kill and once a store that is away."""
    messages, clicks = topic(random.Random(2), 2, 9)
    settings = settings_of(**knobs)
    list(lives(MemoryStore(), model, settings, messages))
    halves = faults.half
    assert halves >= 8
    for half, fault in itertools.product(range(halves), (Killed, StoreUnavailable)):
        faults.half, faults.plan = 0, {half: fault}
        store = MemoryStore()
        deaths = len(list(lives(store, model, settings, messages)))
        assert not faults.plan
        assert deaths == (fault is Killed)
        check_everything_once(store, model, messages, clicks)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("model", "knobs"), KNOBS)
def test_many_faults_at_random(faults, seed, model, knobs):
    """Kills, outages, rebalances, and shards that are rolled back to an older copy of themselves."""
    rng = random.Random(seed)
    messages, clicks = topic(rng, rng.choice([1, 2, 3]), 40)
    list(lives(MemoryStore(), model, settings_of(**knobs), messages))
    points = rng.sample(range(2 * faults.half), 14)
    store, faults.half = MemoryStore(), 0
    faults.plan = {half: rng.choice([Killed, StoreUnavailable]) for half in points}
    saved: list[Callable[[], None]] = []
    rollbacks = iter(range(4))

    def chaos(source: ListedSource) -> None:
        roll = rng.random()
        if roll < 0.05:
            source.lose()
        elif roll < 0.15 and store._tables:
            shard = rng.choice([s for t in store._tables.values() for s in t.shards])
            if len(shard.meta.offsets) == len(messages):  # a shard that knows nothing is a new one
                saved.append(keep(shard))
        elif roll < 0.2 and saved and next(rollbacks, None) is not None:
            rng.choice(saved)()

    list(lives(store, model, settings_of(**knobs), messages, chaos))
    assert len(faults.plan) < 14
    check_everything_once(store, model, messages, clicks)


def keep(shard) -> Callable[[], None]:
    """Remember a shard; the answer puts it back, as a fail-over to a replica that lags does."""
    meta, rows, feed, indexes = shard.meta, dict(shard.rows), shard.feed.copy(), copy.deepcopy(shard.indexes)

    def put_back() -> None:
        shard.meta, shard.rows, shard.feed, shard.indexes = meta, dict(rows), feed.copy(), copy.deepcopy(indexes)

    return put_back


@pytest.mark.parametrize("table", ["item", "history", "dense"])
def test_a_quiet_worker_notices_a_shard_that_was_rolled_back(faults, table):
    """No event comes any more; the reconcile alone finds the gap, and replays it."""
    messages, clicks = topic(random.Random(5), 2, 20)
    store, model = MemoryStore(), DENSE
    copies = []
    turns = itertools.count()

    def each(source: ListedSource) -> bool:
        turn = next(turns)
        if turn == 0:
            return False
        if turn == 4:
            copies.append(keep(store._tables[table].shards[0]))
        if complete(store, model, messages) and copies:
            copies.pop()()
            assert not complete(store, model, messages)
        return turn > 4 and not copies and complete(store, model, messages)

    source = source_of(messages)
    metrics, left = Metrics(), itertools.count()

    def stopping() -> bool:
        assert next(left) < 1000
        return each(source)

    Worker(store, source, model, settings_of(dense_sync_every=1), metrics).run(stopping)
    check_everything_once(store, model, messages, clicks)
    assert metrics.registry.get_sample_value("towline_trainer_restarts_total") == 1


def test_gaps_of_two_sources_in_two_shards_are_closed_one_after_the_other(faults):
    """Shard 0 lacks one source, shard 1 the other: together their calls would be a conflict for ever."""
    messages, clicks = topic(random.Random(6), 2, 20)
    first, second = messages
    store, settings = MemoryStore(), settings_of()
    for table, spec in MODEL.tables().items():
        store.create(spec)
        for shard, p in itertools.product(range(2), messages):
            store.seek(table, shard, Source(*p), None, 0, "first start")
    shard0, shard1 = store._tables["item"].shards
    clean = keep(shard1)
    work(store, MODEL, settings, source_of({first: messages[first]}))
    clean()
    half = keep(shard0)
    work(store, MODEL, settings, source_of({second: messages[second]}))
    half()
    assert [list(s.offsets.values()) for s in store.status("item")] == [[20, 0], [0, 20]]
    work(store, MODEL, settings, source_of(messages))
    check_everything_once(store, MODEL, messages, clicks)


@pytest.mark.parametrize(("model", "knobs"), [KNOBS[0], KNOBS[3]])
def test_a_zombie_that_flushes_late_is_refused_and_drops_what_it_held(faults, model, knobs):
    messages, clicks = topic(random.Random(7), 2, 30)
    store = MemoryStore()
    turns = itertools.count()
    settings = settings_of(**knobs)

    def each() -> None:
        if next(turns) == 3:  # the zombie holds three micro-batches that another worker now applies
            work(store, model, settings, source_of(messages, batch=5))
            check_everything_once(store, model, messages, clicks)

    metrics = work(store, model, settings_of(apply_every=5, reconcile_every_s=3600), source_of(messages), each)
    check_everything_once(store, model, messages, clicks)
    sample = metrics.registry.get_sample_value
    # a duplicate where its whole range is behind the store, else a conflict; never applied
    assert not sample("towline_trainer_applies_total", {"table": "item", "outcome": "applied"})
    assert sample("towline_trainer_applies_total", {"table": "item", "outcome": "duplicate"})


def test_a_zombie_whose_range_reaches_beyond_the_store_is_a_conflict(faults):
    messages, clicks = topic(random.Random(8), 1, 60)
    store, (p, log) = (
        MemoryStore(),
        *messages.items(),
    )
    turns = itertools.count()

    def each() -> None:
        if next(turns) == 3:
            work(store, MODEL, settings_of(), source_of({p: log[:4]}))

    metrics = work(store, MODEL, settings_of(apply_every=5, reconcile_every_s=3600), source_of(messages), each)
    check_everything_once(store, MODEL, messages, clicks)
    sample = metrics.registry.get_sample_value
    assert sample("towline_trainer_applies_total", {"table": "item", "outcome": "conflict"}) == MODEL.shards
    assert sample("towline_trainer_restarts_total") == 1


def test_a_raised_generation_fences_the_flush_and_the_worker_goes_on(faults):
    messages, clicks = topic(random.Random(9), 1, 30)
    store, turns = MemoryStore(), itertools.count()

    def each() -> None:
        if next(turns) == 2:
            store.raise_generation()

    metrics = work(store, MODEL, settings_of(), source_of(messages), each)
    assert metrics.registry.get_sample_value("towline_trainer_restarts_total") == 1
    check_everything_once(store, MODEL, messages, clicks)


def test_a_rebalance_drops_what_is_pending(faults):
    messages, clicks = topic(random.Random(10), 2, 30)
    store, turns = MemoryStore(), itertools.count()
    source = source_of(messages)
    metrics = work(
        store, MODEL, settings_of(apply_every=100), source, lambda: source.lose() if next(turns) in {2, 5} else None
    )
    assert metrics.registry.get_sample_value("towline_trainer_restarts_total") == 2
    check_everything_once(store, MODEL, messages, clicks)


@pytest.mark.parametrize(("model", "knobs"), [KNOBS[0], KNOBS[3]])
def test_partitions_that_stay_go_on_when_others_are_taken_and_given(faults, model, knobs):
    """What is pending of a taken partition is applied before another worker has it: nothing is learned twice."""
    messages, clicks = topic(random.Random(15), 3, 40)
    store, (first, *others), turns = MemoryStore(), sorted(messages), itertools.count()
    source = source_of(messages)

    def each() -> None:
        turn = next(turns)
        if turn == 3:
            source.change(frozenset({first}))
        if turn == 5:
            assert source.committed.keys() >= set(others)
            work(store, model, settings_of(**knobs), source_of({p: messages[p][:30] for p in others}, batch=3))
            source.change(frozenset(messages))

    metrics = work(store, model, settings_of(**{**knobs, "apply_every": 100, "reconcile_every_s": 3600}), source, each)
    check_everything_once(store, model, messages, clicks)
    sample = metrics.registry.get_sample_value
    assert sample("towline_trainer_restarts_total") == 0
    assert sample("towline_trainer_handover_seconds_count") == 2


def test_the_gauge_of_partitions_follows_a_hand_over():
    messages, _ = topic(random.Random(15), 3, 4)
    source, metrics = source_of(messages), Metrics()
    worker = Worker(MemoryStore(), source, MODEL, settings_of(), metrics)
    seen = []
    for number in (3, 1, 2):
        source.change(frozenset(sorted(messages)[:number]))
        worker.step()
        seen.append(metrics.registry.get_sample_value("towline_trainer_partitions"))
    assert seen == [3, 1, 2]


def test_a_hand_over_that_comes_too_late_starts_over(faults):
    """A zombie: another worker has what was taken before it is let go."""
    messages, clicks = topic(random.Random(16), 2, 40)
    store, (first, second), turns = MemoryStore(), sorted(messages), itertools.count()
    source = source_of(messages)

    def each() -> None:
        if next(turns) == 3:
            work(store, MODEL, settings_of(), source_of({second: messages[second][:4]}, batch=3))
            source.change(frozenset({first}))

    work(store, MODEL, settings_of(apply_every=100, reconcile_every_s=3600), source, each)
    work(store, MODEL, settings_of(), source_of(messages))
    check_everything_once(store, MODEL, messages, clicks)


def test_workers_side_by_side_with_wrong_ideas_of_who_owns_what(faults):
    """Threads that take and lose partitions at random, some without being told; the last one tidies up."""
    rng = random.Random(11)
    messages, clicks = topic(rng, 3, 60)
    store, errors = MemoryStore(), []

    def live(seed: int) -> None:
        own = random.Random(seed)
        try:
            for _ in range(6):
                mine = own.sample(sorted(messages), own.randint(1, 3))
                turns = itertools.count()
                stop = own.randint(2, 12)
                source = source_of({p: messages[p] for p in mine}, batch=own.randint(2, 9))
                settings = settings_of(apply_every=own.choice([1, 3]))
                work(store, DENSE, settings, source, lambda turns=turns, stop=stop: next(turns) > stop)
        except BaseException as e:
            errors.append(e)
            raise

    threads = [threading.Thread(target=live, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    list(lives(store, DENSE, settings_of(), messages))
    check_everything_once(store, DENSE, messages, clicks)


class Forgetting(ListedSource):
    """One record a batch; a record that says `forget 7` is a tombstone of user 7, `forget item 7` one of item 7."""

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        batch = super().poll(stop_at)
        if batch is None:
            return None
        ((partition, (offset, _)),) = batch.ranges.items()
        value = self._records[partition][offset]
        if not value.startswith(b"forget"):
            return batch
        gone = Tombstones.of([(int(value.split()[-1]), 0, START_MS + offset, offset << 16, partition.number)])
        side = "forget_items" if b"item" in value else "forget_users"
        return dataclasses.replace(batch, **{side: gone}, dead_letters=0)


@pytest.mark.parametrize("apply_every", [1, 50])
def test_forgetting_keeps_its_place_in_the_stream_whatever_fails(faults, apply_every):
    """Counts and sequences of a forgotten user are those of the events after the tombstone."""
    users = [1, 2, 1, 1, 2, 1, 1, 2, 2, 1, 1]
    clicks = [Click(START_MS + n, 0, n << 16, user, 100 + n) for n, user in enumerate(users)]
    log = [record(c) for c in clicks]
    log[4], log[8] = b"forget 1", b"forget 3"
    messages = {Partition(TOPIC, 0): log}
    settings, after = settings_of(apply_every=apply_every), {1: [5, 6, 9, 10], 2: [1, 7]}

    def one_by_one(store: EmbeddingStore) -> None:
        for _ in range(9):
            with contextlib.suppress(Killed):
                source = Forgetting(messages, IngestSettings(batch_events=1), START_MS)
                work(store, MODEL, settings, source)
                assert complete(store, MODEL, messages)
                return

    halves = 10**6
    for half in range(-1, 10**6, 5 if apply_every == 1 else 1):
        if half >= halves:
            break
        faults.half, faults.plan, store = 0, {half: Killed}, MemoryStore()
        one_by_one(store)
        if half < 0:
            halves = faults.half
        histories = store.histories("history", np.array([1, 2], np.uint64))
        for i, user in enumerate((1, 2)):
            entries = histories.entries[histories.offsets[i] : histories.offsets[i + 1]]
            assert entries["item"].tolist() == [100 + n for n in after[user]]
        assert histories.count.tolist() == [4, 2]
        assert {s.clock for t in MODEL.tables() for s in store.status(t)} == {9}


@pytest.mark.parametrize("apply_every", [1, 4])
def test_transitions_are_kept_once_whatever_fails(faults, apply_every):
    """What came after each item, by users whose events come in their order, in sittings of several minutes."""
    changes = {
        "successors": 64,
        "shards": 3,
        "seen_length": 64,
    }  # an event's predecessor is still there when it is replayed
    model, rng = MODEL.model_copy(update=changes), random.Random(5)
    clicks = [
        Click(START_MS + 7000 * n, 0, n << 16, rng.randrange(6), 100 + rng.randrange(9), float(rng.random() < 0.8))
        for n in range(80)
    ]
    messages, expected = {Partition(TOPIC, 0): [record(c) for c in clicks]}, {}
    before: dict[int, list[Click]] = {}
    for c in clicks:
        if c.label:
            newest = before.setdefault(c.user, [])
            for k, other in enumerate(newest[: min(REACH, model.history_length)]):
                weight = RECENCY**k / (1 + ((newest[0].time_ms - other.time_ms) / NEAR_MS) ** 2)
                if weight >= LEAST and other.item not in [o.item for o in newest[:k]]:
                    entry = (c.time_ms, c.place, c.item, c.partition, pytest.approx(weight, rel=1e-6))
                    expected.setdefault(other.item, []).append(entry)
            newest.insert(0, c)
    assert sum(map(len, expected.values())) > 100
    settings = settings_of(apply_every=apply_every, evaluate_share=1.0)
    halves = 10**6
    for half in range(-1, 10**6, 7):
        if half >= halves:
            break
        faults.half, faults.plan, store = 0, {half: Killed, half + 9: StoreUnavailable}, MemoryStore()
        for _ in lives(store, model, settings, messages):
            pass
        if half < 0:
            halves = faults.half
        keys = np.array(sorted(expected), np.uint64)
        kept = store.histories("next", keys)
        for i, key in enumerate(keys.tolist()):
            assert kept.entries[kept.offsets[i] : kept.offsets[i + 1]].tolist() == expected[key]
        assert kept.count.tolist() == [len(expected[key]) for key in keys.tolist()]


def test_a_forgotten_item_is_followed_by_nothing(faults):
    """Its row of transitions goes with it; what comes after it later counts."""
    model = MODEL.model_copy(update={"successors": 8})
    items = [7, 8, 7, 9, 0, 7, 6]
    log = [record(Click(START_MS + n, 0, n << 16, n // 2, item)) for n, item in enumerate(items)]
    log[4] = b"forget item 7"
    log[5], log[6] = (record(Click(START_MS + n, 0, n << 16, 9, items[n])) for n in (5, 6))
    store, messages = MemoryStore(), {Partition(TOPIC, 0): log}
    work(store, model, settings_of(), Forgetting(messages, IngestSettings(batch_events=1), START_MS))
    kept = store.histories("next", np.array([7, 8], np.uint64))
    assert kept.entries["item"].tolist() == [6]
    assert kept.found.tolist() == [True, False]


def test_a_new_table_joins_where_the_others_stand(faults):
    messages, _ = topic(random.Random(12), 1, 30)
    (p, log) = next(iter(messages.items()))
    store = MemoryStore()
    work(store, MODEL, settings_of(), source_of({p: log[:20]}))
    wider = MODEL.model_copy(update={"user_id_vector": True})
    work(store, wider, settings_of(), source_of(messages))
    assert complete(store, wider, messages)
    clocks = {table: {s.clock for s in store.status(table)} for table in wider.tables()}
    assert clocks["user"] != clocks["item"] == clocks["history"]


@pytest.mark.parametrize("table", ["item", "history"])
def test_a_shard_that_lost_everything_is_filled_from_the_earliest_record(faults, table):
    """Not taken for a new one, which would join where the others stand."""
    messages, clicks = topic(random.Random(15), 2, 30)
    store = MemoryStore()
    for name, spec in MODEL.tables().items():
        store.create(spec)
        if name == table:
            empty = keep(store._tables[name].shards[1])
    work(store, MODEL, settings_of(), source_of(messages))
    empty()
    assert not complete(store, MODEL, messages)
    work(store, MODEL, settings_of(), source_of(messages))
    check_everything_once(store, MODEL, messages, clicks)


def test_what_can_not_be_learned_is_counted_all_the_same(faults):
    """Vectors that ran away: the ranges are applied everywhere, with counts and sequences and no gradients."""
    wild = {"optimizer": Sgd(learning_rate=100.0), "regularization": NoRegularization(), "initial_std": 1.0}
    model = MODEL.model_copy(update=wild)
    messages, clicks = topic(random.Random(13), 1, 60)
    store = MemoryStore()
    metrics = work(store, model, settings_of(), source_of(messages))
    check_everything_once(store, model, messages, clicks)
    vectors = store.changes("item", None).rows.vectors
    assert np.isfinite(vectors).all()
    assert metrics.registry.get_sample_value("towline_trainer_quarantined_total") > 2


def test_a_store_that_is_away_at_the_end_does_not_hurt(faults, caplog):
    messages, clicks = topic(random.Random(14), 1, 10)
    store, source = MemoryStore(), source_of(messages)
    faults.plan = {0: StoreUnavailable}
    work(store, MODEL, settings_of(apply_every=100), source)
    assert "left to the next owner" in caplog.text
    work(store, MODEL, settings_of(), source_of(messages))
    check_everything_once(store, MODEL, messages, clicks)
