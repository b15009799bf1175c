"""Exactly once, whatever happens and in whatever order: real workers and real stores under schedules that hypothesis
finds, against a single worker that nothing ever happened to.

What is faked is the network alone: a `Line` between a worker and the store loses calls and replies, or holds calls back
until their worker is long dead; a `Group` gives and takes partitions, and does not tell everybody.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from embedding_store.contract import EmbeddingStore, Flush, ShardReply, Source
from embedding_store.errors import GenerationError, StoreUnavailable
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from ingest.columns import Partition
from tests.servers import RedisServer, server_names
from tests.trainer import numpy_step
from tests.trainer.grounds import Ground, MemoryGround, ServerGround
from tests.trainer.group import Member, Topic
from tests.trainer.small import Click, record
from trainer import learner
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

START_MS = 1_700_000_000_000
PARTITIONS, WORKERS = 3, 3
COURSE = st.lists(st.integers(0, WORKERS + PARTITIONS - 1), min_size=4, max_size=20)
MODEL = ModelSettings(
    dim=4, history_length=3, seen_length=5, shards=2, user_id_vector=True, dense_layers=(4,), step_events=7
)
SHARDS = [(table, shard) for table, spec in MODEL.tables().items() for shard in range(spec.shards)]


class Killed(BaseException):
    """The process is gone."""


class Line:
    """A worker's way to the store. All but `apply` goes through."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self.faults: dict[int, str] = {}  # number of an apply from now → what befalls it
        self.late: list[tuple[str, Flush]] = []  # calls that are still on their way
        self.holding = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, table: str, flush: Flush) -> tuple[ShardReply, ...]:
        fault = self.faults.pop(0, "")
        self.faults = {n - 1: what for n, what in self.faults.items()}
        if self.holding:  # the worker is made to believe in them, so that all the calls of a flush are on their way
            self.late.append((table, flush))
            return tuple(ShardReply("applied", s.clock + flush.events, {}) for s in self._store.status(table))
        if fault == "killed before":
            raise Killed
        if fault == "call lost":
            raise StoreUnavailable("the call was lost")
        replies = self._store.apply(table, flush)
        if fault == "killed after":
            raise Killed
        if fault == "reply lost":
            raise StoreUnavailable("the reply was lost")
        return replies

    def apply_all(self, flushes: Mapping[str, Flush]) -> dict[str, tuple[ShardReply, ...]]:
        """What is lost of one table's call is none of the others'; a kill leaves those behind it undone."""
        replies, away = {}, None
        for table, flush in flushes.items():
            try:
                replies[table] = self.apply(table, flush)
            except StoreUnavailable as error:
                away = error
        if away is not None:
            raise away
        return replies


@dataclass
class Life:
    """A worker with all that is its own."""

    worker: Worker
    member: Member
    line: Line


@dataclass
class World:
    """What a machine starts in."""

    ground: Callable[[], Ground]
    lives: Iterator[int] = field(default_factory=itertools.count)


class Protocol(RuleBasedStateMachine):
    """The rules are what may happen; `settle` lets all calm down and compares with the oracle."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.ground = self.world.ground()
        self.topics = [Topic("clicks-0", PARTITIONS)]
        self.lives: list[Life] = []
        self.late: list[tuple[str, Flush]] = []
        self.copies: list[Callable[[], None]] = []
        self.whole: list[list[Callable[[], None]]] = []
        self.made = itertools.count()
        for spec in MODEL.tables().values():
            self.ground.store.create(spec)
        self.empty = {shard: self.ground.keep(*shard) for shard in SHARDS}
        for apply_every in (1, 3, 5):
            self._hire({"apply_every": apply_every, "dense_sync_every": 3})
        self._give_to_all()

    @property
    def topic(self) -> Topic:
        return self.topics[-1]

    def _hire(self, knobs: dict[str, object]) -> None:
        values = {
            "replay": 1,
            "group": 16,
            "evaluate_share": 0.0,
            "reconcile_every_s": 1e-9,
            "seed": next(self.made),
            **knobs,
        }
        line, member = Line(self.ground.store), Member(5, START_MS)
        worker = Worker(line, member, MODEL, TrainerSettings.model_validate(values), Metrics())
        self.lives.append(Life(worker, member, line))

    def _give_to_all(self) -> None:
        self._give([n % max(1, len(self.lives)) for n in range(PARTITIONS)], set())

    def _give(self, owners: list[int], deaf: set[int]) -> None:
        for i, life in enumerate(self.lives):
            if i not in deaf:
                life.member.tell(self.topic.of([n for n, owner in enumerate(owners) if owner == i]))

    def _step(self, life: Life) -> None:
        try:
            life.worker.step()
        except Killed:
            self.lives.remove(life)

    def _life(self, i: int) -> Life:
        return self.lives[i % len(self.lives)]

    def _produce(self, number: int, records: int) -> None:
        """Users are their partition's own; times go back and forth; some are negatives; some offsets hold nothing."""
        log = self.topic.logs[Partition(self.topic.identity, number)]
        for at in range(len(log), len(log) + records):
            if at % 11 == 7:
                log.append(None)
                continue
            item = (at * at + number) % 7
            when = START_MS + 10 * at - 25 * (item == 3)
            click = Click(
                when, number, at << 16, 10 * number + at * 7 % 5, 100 + item, float(at % 9 != 4), 1 + item / 4
            )
            log.append(record(click))

    def _happen(self, course: list[int]) -> None:
        """Below WORKERS: that worker's turn. Above: records of a partition."""
        for n in course:
            if n >= WORKERS:
                self._produce(n - WORKERS, 4)
            elif self.lives:
                self._step(self._life(n))

    @rule(course=COURSE)
    def go_on(self, course: list[int]) -> None:
        self._happen(course)

    @rule(number=st.integers(0, PARTITIONS - 1))
    def hole(self, number: int) -> None:
        """A transaction's marker: an offset that holds no record, the last one so far."""
        self.topic.logs[Partition(self.topic.identity, number)].append(None)

    @precondition(lambda self: len(self.lives) < WORKERS)
    @rule(
        apply_every=st.sampled_from([1, 2, 5]),
        dense_sync_every=st.sampled_from([1, 3]),
        read_your_writes=st.booleans(),
        max_staleness_events=st.sampled_from([0, 0, 3, 20]),
        staleness_correction=st.booleans(),
    )
    def hire(self, **knobs: object) -> None:
        """A worker more, who is given a share."""
        self._hire(knobs)
        self._give_to_all()

    @precondition(lambda self: self.lives)
    @rule(
        owners=st.lists(st.integers(0, WORKERS - 1), min_size=PARTITIONS, max_size=PARTITIONS),
        deaf=st.sets(st.integers(0, WORKERS - 1), max_size=2),
        course=COURSE,
    )
    def rebalance(self, owners: list[int], deaf: set[int], course: list[int]) -> None:
        """Some members don't hear of it, and go on with what they had."""
        self._give([o % len(self.lives) for o in owners], deaf)
        self._happen(course)

    @precondition(lambda self: self.lives)
    @rule(
        i=st.integers(0, WORKERS - 1),
        n=st.integers(0, 5),
        what=st.sampled_from(["killed before", "killed after", "call lost", "reply lost"]),
        course=COURSE,
    )
    def fault(self, i: int, n: int, what: str, course: list[int]) -> None:
        """Befalls the worker's n-th call from now."""
        self._life(i).line.faults[n] = what
        self._happen(course)

    @precondition(lambda self: self.lives)
    @rule(i=st.integers(0, WORKERS - 1))
    def kill(self, i: int) -> None:
        """Its pending is gone, its partitions are idle until they are given anew."""
        self.lives.remove(self._life(i))

    @precondition(lambda self: self.lives)
    @rule(i=st.integers(0, WORKERS - 1), turns=st.integers(1, 6))
    def become_a_zombie(self, i: int, turns: int) -> None:
        """The process stops with calls on their way, which come later, or never."""
        life = self._life(i)
        life.line.holding = True
        for number in range(PARTITIONS):
            self._produce(number, 3)
        for _ in range(turns):
            if life in self.lives:
                self._step(life)
        self.late += life.line.late
        if life in self.lives:
            self.lives.remove(life)

    @precondition(lambda self: self.late)
    @rule(places=st.lists(st.integers(0, 100), min_size=1, max_size=6), course=COURSE)
    def late_calls_arrive(self, places: list[int], course: list[int]) -> None:
        """In any order."""
        for place in places[: len(self.late)]:
            self._deliver(place % len(self.late))
        self._happen(course)

    def _deliver(self, i: int) -> None:
        table, flush = self.late.pop(i)
        try:
            self.ground.store.apply(table, flush)
        except GenerationError:
            assert flush.generation < self.ground.store.generation()

    @rule(shard=st.sampled_from(SHARDS))
    def keep_a_copy(self, shard: tuple[str, int]) -> None:
        """A replica lags from here on. A table that knows nothing of a source is a new one: not to be told apart."""
        table = shard[0]
        sources = {Source(*p) for p in self.topic.logs}
        known = [sources <= set(s.offsets) for s in self.ground.store.status(table)]
        if all(known) or (len(known) > 1 and known[1 - shard[1]]):
            self.copies.append(self.ground.keep(*shard))

    @precondition(lambda self: len(self.topics) == 1 and not self.ground.store.generation())
    @rule(shard=st.sampled_from(SHARDS), course=COURSE)
    def empty_a_shard(self, shard: tuple[str, int], course: list[int]) -> None:
        """It has lost everything, and the other shard of its table knows: all of the stream comes again."""
        table, number = shard
        known = [set(s.offsets) == {Source(*p) for p in self.topic.logs} for s in self.ground.store.status(table)]
        if len(known) > 1 and known[1 - number]:
            self.empty[shard]()
            self.copies = []  # of the other shard: if both know nothing the table is a new one
        self._happen(course)

    @precondition(lambda self: self.copies)
    @rule(place=st.integers(0, 100), course=st.one_of(st.just([]), COURSE))
    def roll_a_shard_back(self, place: int, course: list[int]) -> None:
        """Rows and offsets together, whether or not anything is going on."""
        self.copies[place % len(self.copies)]()
        self._happen(course)

    @precondition(lambda self: self.copies)
    @rule(place=st.integers(0, 100))
    def a_quiet_shard_is_rolled_back(self, place: int) -> None:
        """No record comes, nobody is told anything: the workers notice by themselves."""
        wanted = self.settle()
        self.copies[place % len(self.copies)]()
        for _ in range(100):
            for life in list(self.lives):
                self._step(life)
            if all(self._stands(table, wanted) for table in MODEL.tables()):
                return
        raise AssertionError("a quiet shard was rolled back, and nobody noticed")

    @rule()
    def keep_all(self) -> None:
        """A snapshot of the whole store, once every source is known."""
        sources = {Source(*p) for p in self.topic.logs}
        if all(sources <= set(s.offsets) for table in MODEL.tables() for s in self.ground.store.status(table)):
            self.whole.append([self.ground.keep(*shard) for shard in SHARDS])

    @precondition(lambda self: self.whole)
    @rule(place=st.integers(0, 100))
    def rewind(self, place: int) -> None:
        """Restore the snapshot; whoever is paused must not write into the rewound store."""
        for put_back in self.whole[place % len(self.whole)]:
            put_back()
        self.ground.store.raise_generation()
        self.copies, self.whole = [], []

    @precondition(lambda self: len(self.topics) < 3)
    @rule()
    def make_the_topic_anew(self) -> None:
        """Under its old name, with another id, after all of the old one was applied."""
        self.settle()
        self.topics.append(Topic(f"clicks-{len(self.topics)}", PARTITIONS))
        self.copies, self.whole = [], []
        self._give_to_all()

    @invariant()
    def clocks_are_offsets(self) -> None:
        """Nothing is ever counted that is not behind an offset: the clock is the number of events behind them."""
        logs = {Source(*p): log for topic in self.topics for p, log in topic.logs.items()}
        for table in MODEL.tables():
            for status in self.ground.store.status(table):
                events = sum(
                    sum(value is not None for value in logs[source][:offset])
                    for source, offset in status.offsets.items()
                )
                assert status.clock == events, (table, status)

    def settle(self) -> dict[Source, int]:
        """All late calls arrive, everybody hears everything, no more faults; then the store is the oracle's."""
        while self.late:
            self._deliver(0)
        if not self.lives:
            self._hire({})
        for life in self.lives:
            life.line.faults = {}
        self._give_to_all()
        wanted = {Source(*p): len(log) for topic in self.topics for p, log in topic.logs.items()}
        for turn in range(300):
            for life in list(self.lives):
                self._step(life)
                if turn % 10 == 9:  # the dense table moves every so many batches, and when a worker leaves
                    life.worker.leave()
            if all(self._stands(table, wanted) for table in MODEL.tables()):
                break
        self._compare(wanted)
        return wanted

    def _stands(self, table: str, wanted: dict[Source, int]) -> bool:
        return all(
            all(s.offsets.get(source) == offset for source, offset in wanted.items())
            for s in self.ground.store.status(table)
        )

    def _compare(self, wanted: dict[Source, int]) -> None:
        oracle = self._oracle()
        for table, spec in MODEL.tables().items():
            assert [dict(s.offsets) for s in self.ground.store.status(table)] == [wanted] * spec.shards, table
            assert [s.clock for s in self.ground.store.status(table)] == [s.clock for s in oracle.status(table)], table
            if spec.kind != "dense":
                assert _exact(self.ground.store, table) == _exact(oracle, table), table

    def _oracle(self) -> EmbeddingStore:
        """One worker, one event after the other, nothing ever happens."""
        store = MemoryStore()
        values = {"replay": 0, "group": 16, "evaluate_share": 0.0}
        for topic in self.topics:
            member = Member(1000, START_MS)
            member.tell(topic.of(list(range(PARTITIONS))))
            worker = Worker(store, member, MODEL, TrainerSettings.model_validate(values), Metrics())
            for _ in range(4):
                worker.step()
            worker.leave()
        return store

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.ground.close()


def _exact(store: EmbeddingStore, table: str) -> dict[int, object]:
    """What must not depend on anything: of each key its count and id, and the bytes of its sequence."""
    changes = store.changes(table, None)
    counts = {
        key: [count, name]
        for key, count, name in zip(
            changes.keys.tolist(), changes.rows.count.tolist(), changes.rows.ids.tolist(), strict=True
        )
        if count  # a row may have gradients alone, of a negative that the oracle never drew
    }
    if store.spec(table).kind == "sequence":
        keys = np.array(sorted(counts), np.uint64)
        histories = store.histories(table, keys)
        for i, key in enumerate(keys.tolist()):
            entries = histories.entries[histories.offsets[i] : histories.offsets[i + 1]]
            counts[key].append(entries.tobytes())
    return counts


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without TensorFlow, and no waiting."""
    monkeypatch.setattr(learner, "_compile_step", numpy_step.compile_step)


def explore(ground: Callable[[], Ground], examples: int, steps: int) -> None:
    machine = type("Machine", (Protocol,), {"world": World(ground)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_exactly_once_in_memory(quick):
    explore(MemoryGround, 25, 30)


@pytest.mark.servers
@pytest.mark.parametrize(
    ("kind", "backend"),
    [*((name, "stock") for name in server_names()), ("module", "module")],
)
def test_exactly_once_on_a_server(quick, server_of: Callable[[str], RedisServer], kind: str, backend: str):
    explore(functools.partial(ServerGround, server_of(kind), backend), 6, 25)
