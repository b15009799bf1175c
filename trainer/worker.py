"""The worker's loop: poll, read, measure, learn, apply."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from embedding_store.contract import EmbeddingStore, Flush, Range, Source
from embedding_store.dense_versions import flush_without_events
from embedding_store.errors import GenerationError, SeekConflict, StoreUnavailable
from embedding_store.model import ModelSettings
from ingest.columns import Events, MicroBatch, Partition
from ingest.contract import AssignmentChanged, AssignmentLost, EventSource, StreamUnavailable
from trainer.alarm import Alarm
from trainer.backoff import Backoff
from trainer.copies import check_deltas
from trainer.dense import DenseWorker
from trainer.dense_layout import check_dense_layout
from trainer.examples import ExampleReader, Past
from trainer.exclusion import Exclusion
from trainer.features import recorded_of
from trainer.guard import Verdict
from trainer.guarded import GuardedLearner, Policy, Rewind
from trainer.identities import Identities
from trainer.label_scores import LabelTests
from trainer.learner import Learner
from trainer.metrics import Metrics
from trainer.offsets import OffsetPolicy
from trainer.own_writes import OwnWrites
from trainer.pending import Clocks, Pending
from trainer.prequential import Prequential, Tests
from trainer.progress import Progress
from trainer.replay import ReplayBuffer
from trainer.replay_restore import fill
from trainer.settings import TrainerSettings
from trainer.transitions import check_transitions

log = logging.getLogger(__name__)

_RELEARN_TRIES = 3
_CLOCKS_EVERY_S = 1.0  # where only the metric asks: a round trip that a micro-batch need not wait for


SHOWN = 3
"""Ranges that a log line names."""


def named(ranges: Sequence[Range]) -> str:
    """The first few, as `towline snapshot restore --exclude` takes them."""
    first = [f"{source}:{start}-{stop - 1}" for source, start, stop in ranges[:SHOWN]]
    return ", ".join([*first, "…"] if len(ranges) > SHOWN else first)


class Moved(Exception):
    """The store does not stand where this worker left it."""


class Paused(Exception):
    """Something was quarantined, and nothing more is read until a person has looked at it."""


class Worker:
    """One trainer process.

    Single-threaded; all exact state is in the store, everything here may be lost at any time.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        stream: EventSource,
        model: ModelSettings,
        settings: TrainerSettings,
        metrics: Metrics,
        policy: OffsetPolicy = OffsetPolicy(),  # noqa: B008  frozen
        confirm_truncation_s: float = 0.0,
        observe: Callable[[Tests], None] | None = None,
        rewind: Rewind | None = None,
        observe_labels: Callable[[LabelTests], None] | None = None,
    ) -> None:
        """observe: is told of all tests before their events are learned. rewind: what policy `rollback` does."""
        self._store, self._stream, self._settings, self._metrics = store, stream, settings, metrics
        self._rng = rng = np.random.default_rng(settings.seed)
        self._tables = tuple(model.tables())
        self._model, self._published = model, False
        check_deltas(model, settings)
        check_transitions(model, settings)
        self._dense = DenseWorker(store, model, settings.dense_learning_rate, settings.gate_learning_rate)
        self._replay = ReplayBuffer(settings.replay_capacity, model.history_length, rng)
        self._schema = model.feature_schema
        state_dim = model.tables()["item"].state_dim if settings.deltas else None
        self._pending = Pending(model.dim, state_dim, self._schema)
        rows = OwnWrites(store, self._pending) if settings.read_your_writes else store
        replays = settings.replay * settings.passes
        self._reader = ExampleReader(
            store, model, self._replay, replays, rows, with_state=settings.deltas, labels=settings.loss == "bce"
        )
        self._learner = Learner(model, settings, self._dense, rng)
        self._guarded = GuardedLearner(self._learner, self._dense, model, settings)
        self._policy = Policy(settings.guard, Alarm(metrics, settings.alarm_file), rewind)
        self._paused = self._rolled_back = False
        self._prequential = Prequential(
            store,
            model,
            settings.evaluate_k,
            settings.evaluate_share,
            freeze_after=settings.evaluate_freeze_after,
            observe=observe,
            observe_labels=observe_labels,
        )
        self._progress = Progress(store, stream, self._tables, policy, confirm_truncation_s, metrics.found)
        self._identities = Identities(store)
        self._generation = 0
        self._exclusion = Exclusion()
        self._clock = 0
        self._dense_events = self._dense_batches = 0
        self._dense_times = (0, 0)
        self._checked_s = 0.0
        self._latest: Clocks = ()  # the item table's, when rows were last read; () where they were not asked for
        self._clocks_read_s = 0.0
        self._ready = False
        self._in_a_row = 0  # of starts over without a step between them
        self._spare = False
        self._backoff = Backoff()
        self._held_since_s = 0.0

    def run(self, stopping: Callable[[], bool]) -> None:
        """Learn until told to stop; what is pending then is applied first. Store and broker may come and go."""
        while not stopping():
            away = self.step()
            if away:
                self._hold(away, stopping)
        self.leave()

    def step(self) -> str:
        """One turn of `run`: start over where that is needed, else a micro-batch. What is to be waited for, or "".

        All exact state is in the store, so a turn may end, or never come, at any point.
        """
        try:
            if self._paused and not self._put_right():
                return "guard"
            if not self._ready:
                self._ready = self._start_over()
                if not self._ready:  # it waited for one
                    self._idle()
                    return ""
            self._once()
        except (Moved, AssignmentLost, SeekConflict, GenerationError) as moved:
            log.info("starting over from the store's offsets: %s", moved)
            self._metrics.restarts.inc()
            self._ready = False
            self._in_a_row += 1
            return "others" if self._in_a_row > 1 else ""
        except (StoreUnavailable, StreamUnavailable) as away:
            what = "store" if isinstance(away, StoreUnavailable) else "stream"
            log.warning("%s; all partitions are held, trying again in %.1f s", away, self._backoff.next_s)
            self._metrics.away.labels(what).inc()
            self._ready = False
            return what
        except Paused:
            self._paused, self._ready = True, False
            return "guard"
        self._in_a_row = 0
        return ""

    def _idle(self) -> None:
        """No partition is ours; a trainer too many stays so, ready to take over."""
        if not self._spare:
            log.info("others own all partitions: waiting for one")
        self._spare = True
        self._backoff.reset()
        self._metrics.held.set(0)
        self._held_since_s = 0.0

    def _put_right(self) -> bool:
        """Whether the store is another than the one in which something was quarantined."""
        if self._store.generation() == self._generation:
            return False
        self._paused = False
        self._policy.over()
        return True

    def _hold(self, away: str, stopping: Callable[[], bool]) -> None:
        """Back-pressure: nothing is read while something is away, and the group still hears of us.

        What was pending is dropped: it is read and learned again, so memory is bounded by one flush. The delay grows
        until something was applied: a store that can be read and is full must not make us spin.
        """
        started = time.monotonic()
        self._pending.clear()
        self._metrics.held.set(1)
        self._held_since_s = self._held_since_s or started
        self._backoff.wait(stopping, self._stream.stay)
        self._metrics.held_seconds.labels(away).inc(time.monotonic() - started)

    def _going_on(self) -> None:
        """Something was applied, or there is nothing to apply."""
        self._backoff.reset()
        if self._held_since_s:
            log.info("going on after %.1f s; partitions are read again", time.monotonic() - self._held_since_s)
            self._metrics.held.set(0)
            self._held_since_s = 0.0

    def leave(self) -> None:
        """Apply what is left. If that fails it is learned again: by the next owner, from the store's offsets."""
        if not self._ready:
            return
        self._ready = False
        try:
            self._flush_all()
        except (Moved, AssignmentLost, GenerationError, StoreUnavailable, StreamUnavailable) as fault:
            log.warning("what was pending is left to the next owner of the partitions: %s", fault)

    def _flush_all(self) -> None:
        if self._pending.batches:
            self._flush(everything=True)
        elif self._dense_batches:
            self._flush_dense(time.time_ns() // 1_000_000)

    def _hand_over(self) -> None:
        """Partitions were given or taken. 1. What is pending is applied, while nobody else has what was taken: the
        group learns that it is let go in 2. 2. The change is accepted. 3. New ones start from the store's offsets; the
        others, and everything local, go on.
        """
        started = time.perf_counter()
        self._flush_all()
        owned = self._stream.assignment(timeout_s=0)
        if not owned:
            raise AssignmentLost("no partition is left")
        self._progress.change(owned)
        self._metrics.partitions.set(len(owned))
        self._metrics.handed_over.observe(time.perf_counter() - started)

    def _declare(self) -> None:
        """Tables and model are in the store, also after it was emptied. The newest process decides on the model."""
        if not self._published:
            check_dense_layout(self._store, self._model)  # first: a table that is declared stays
        for spec in self._model.tables().values():
            self._store.create(spec)
        if not self._published or self._store.published_model() is None:
            self._store.publish_model(self._model.document())
            self._published = True

    def _start_over(self) -> bool:
        """Drop all local state since the last applied range and continue from what the store holds."""
        self._declare()
        self._pending.clear()
        self._identities.clear()
        self._dense_events = self._dense_batches = 0
        self._dense_times = (0, 0)
        owned = self._stream.assignment(timeout_s=1.0)
        self._metrics.partitions.set(len(owned))
        generation = self._store.generation()
        if generation != self._generation:
            self._replay.clear()
            if not self._rolled_back:  # by a person, to who knows where
                self._guarded.forget()
            self._rolled_back = False
        self._generation = generation
        if self._settings.replay and not len(self._replay):
            self._remember()
        self._exclude()  # after the generation, before which they are published
        self._progress.take(owned)
        self._dense.read()
        self._clock = min(self._clocks())
        self._checked_s = time.monotonic()
        self._spare = self._spare and not owned
        return bool(owned)

    def _once(self) -> None:
        started = time.perf_counter()
        try:
            batch = self._stream.poll(self._progress.stop_at())
        except AssignmentChanged:
            self._hand_over()
            return
        if batch is not None:
            self._metrics.stage("poll", started)
        self._metrics.lag.set(self._stream.lag())
        if batch is not None:
            self._learn(batch)
        if self._due(idle=batch is None):
            started = time.perf_counter()
            self._flush(everything=self._progress.at_barrier(self._pending.ranges))
            self._metrics.stage("flush", started)
            self._going_on()
        elif batch is None and not self._pending.batches:
            self._going_on()
        if time.monotonic() - self._checked_s > self._settings.reconcile_every_s:
            self._check()

    def _remember(self) -> None:
        """The past to be replayed is the store's: after a restart, and after a rewind."""
        started = time.perf_counter()
        n = fill(self._replay, self._store, self._model.history_length, self._rng)
        if n:
            log.info("%d past positives to replay, read in %.1f s", len(self._replay), time.perf_counter() - started)

    def _exclude(self) -> None:
        ranges = self._store.excluded()
        if ranges:
            log.info("%d ranges of records are left out, as the store says: %s", len(ranges), named(ranges))
        self._exclusion = Exclusion(ranges)

    def _learn(self, batch: MicroBatch) -> None:
        step = verdict = past = None
        started = time.perf_counter()
        batch, excluded = self._exclusion.without(batch)
        if excluded:
            log.info("%d events of excluded records are left out", excluded)
            self._metrics.excluded.inc(excluded)
        events = self._screened(batch)
        if len(events):
            self._latest = self._clocks_before()
            told = [*self._pending.recorded, *recorded_of(events, batch.profiles, self._schema)]
            examples, past = self._reader.read(events, self._pending.users, self._pending.entries, recorded=told)
            started = self._metrics.stage("read", started)
            if not self._progress.replaying:
                self._prequential.measure(events, past, examples)
            clock = self._clock + self._pending.events
            predicted = None if self._progress.replaying else self._guarded.predicted(examples, clock)
            if predicted is not None:
                self._prequential.measure_labels(events, predicted)
            step, verdict = self._guarded.learn(examples, clock, judge=not self._progress.replaying)
            self._metrics.stage("learn", started)
            if verdict is None:
                self._metrics.learned(step)
                self._reader.keep(events, past)
        if verdict is None:
            self._pending.add(
                batch,
                step,
                events,
                self._latest if step is not None else (),
                past if self._model.successors else None,
            )
            self._metrics.took(batch)
        else:
            self._quarantine(batch, events, verdict, past)

    def _quarantine(self, batch: MicroBatch, events: Events, verdict: Verdict, past: Past | None) -> None:
        """Count events without learning from them. The call that carries them goes out as ever: exactly once."""
        if not self._progress.replaying and self._policy.rolled_back(batch, verdict, self._clock):
            self._rolled_back = True
            raise Moved("the store was rolled back to a snapshot")
        # transitions are counts, as histories are: they must not depend on whether it was judged
        self._pending.add(batch, None, events, (), past if self._model.successors else None)
        self._metrics.took(batch)
        self._stream.quarantine(batch, verdict.reason)
        if self._policy.pauses(batch, verdict):
            self._flush_all()
            raise Paused

    def _clocks_before(self) -> Clocks:
        """`_clocks` where a setting asks for each micro-batch's staleness, else now and then, for the metric: or ()."""
        asked = self._settings.max_staleness_events or self._settings.staleness_correction
        now_s = time.monotonic()
        if not asked and now_s - self._clocks_read_s < _CLOCKS_EVERY_S:
            return ()
        self._clocks_read_s = now_s
        return self._clocks()

    def _clocks(self) -> Clocks:
        """Of the item table's shards, before rows are read: what is read may be newer, never older."""
        return tuple(status.clock for status in self._store.status("item"))

    def _screened(self, batch: MicroBatch) -> Events:
        """The batch's events without those whose ids' keys are another's: those become dead letters."""
        refused = self._identities.refused(batch.events)
        if not len(refused):
            return batch.events
        self._metrics.refused.inc(len(refused))
        reason = "another id has the same 64-bit key; rename one of them"
        self._stream.dead_letter(batch, refused.tolist(), reason)
        return batch.events.take(np.delete(np.arange(len(batch.events)), refused))

    def _due(self, *, idle: bool) -> bool:
        pending = self._pending
        return pending.batches > 0 and (
            (idle and not self._settings.apply_every_ms)
            or pending.must_flush
            or pending.batches >= self._settings.apply_every
            or self._progress.at_barrier(pending.ranges)
            or self._overdue()
        )

    def _overdue(self) -> bool:
        """Whether what is pending has waited for long enough, or is half as stale as it may be."""
        settings, pending = self._settings, self._pending
        if settings.apply_every_ms and time.monotonic() - pending.begun_s >= settings.apply_every_ms / 1000:
            return True
        bound = settings.max_staleness_events
        return bound > 0 and bool(self._latest) and 2 * max(pending.staleness(self._latest), default=0) > bound

    def _flush(self, *, everything: bool) -> None:
        """Apply what is pending.

        1. What is too stale is learned anew. 2. Dead letters of the ranges are acknowledged. 3. All tables' shards are
        called at once, each atomic in itself; behind them the dense table, only every so often, or if `everything`.
        4. Any conflict: Moved, nothing local survives. 5. Positions are reported.
        """
        pending = self._pending
        scales = self._freshened()
        self._stream.flush_dead_letters()
        now_ms = time.time_ns() // 1_000_000
        stops = {p: stop for p, (_, stop) in pending.ranges.items()}
        self._apply(
            {
                table: pending.flush(table, self._generation, self._progress.start(table), now_ms, scales)
                for table in self._tables
                if table != "dense"
            },
            stops,
        )
        if "dense" in self._tables:
            self._dense_events += pending.events
            self._dense_batches += pending.batches
            self._dense_times = max(self._dense_times, (pending.event_time_ms, pending.produced_ms))
            if everything or self._dense_batches >= self._settings.dense_sync_every:
                self._flush_dense(now_ms)
        if "dense" not in self._tables or everything:
            self._progress.passed(stops)
        produced_ms = pending.produced_ms
        pending.clear()
        self._identities.clear()
        self._stream.commit(self._progress.start("item"))
        self._metrics.flushed(self._prequential, produced_ms)

    def _freshened(self) -> list[float] | None:
        """Keep the bound on staleness; what the gradients of each micro-batch are to be multiplied by, None: 1.

        A gradient past `max_staleness_events` is learned anew from rows read now: the event's count and place in the
        sequences are applied once as ever. If others apply more than that while we learn, time after time, the
        gradient is left out, and counted. What others apply while the flush itself is on its way comes on top.
        """
        settings, pending = self._settings, self._pending
        if not settings.max_staleness_events and not settings.staleness_correction:
            return None
        staleness = pending.staleness(self._clocks())
        for _ in range(_RELEARN_TRIES if settings.max_staleness_events else 0):
            stale = [i for i, events in enumerate(staleness) if events > settings.max_staleness_events]
            if not stale:
                break
            for i in stale:
                self._learn_anew(i)
            staleness = pending.staleness(self._clocks())
        for i, events in enumerate(staleness):
            if 0 < settings.max_staleness_events < events:
                pending.relearned(i, None, ())
                self._metrics.too_stale.inc()
        if not settings.staleness_correction:
            return None
        call = max(1, pending.events)  # what others applied, in calls of the size of ours
        return [1.0 / max(1.0, events / call) for events in staleness]

    def _learn_anew(self, i: int) -> None:
        learned, read_at = self._pending.learned[i], self._clocks()
        users, entries = self._pending.users[: learned.before], self._pending.entries[: learned.before]
        told = self._pending.recorded[: learned.recorded]
        examples, _ = self._reader.read(learned.events, users, entries, again=True, recorded=told)
        step = self._learner.learn(examples, max(read_at), again=True)
        self._pending.relearned(i, step, read_at)
        self._metrics.relearned.inc()

    def _flush_dense(self, now_ms: int) -> None:
        stops = dict(self._progress.start("item"))
        ranges = tuple(
            Range(Source(*p), start, stops[p])
            for p, start in sorted(self._progress.start("dense").items())
            if stops[p] > start
        )
        gradients, keys = self._dense.delta(self._dense_events, self._settings.dense_merge)
        flush = flush_without_events(
            self._generation, ranges, keys, now_ms,
            gradients=gradients, events=self._dense_events, times=self._dense_times,
        )  # fmt: skip
        self._apply({"dense": flush}, stops)
        self._dense_events = self._dense_batches = 0
        self._dense_times = (0, 0)
        self._dense.read()
        if self._settings.dense_version_every_s:
            self._dense.keep_version(self._generation, self._settings.dense_version_every_s)

    def _apply(self, flushes: dict[str, Flush], stops: dict[Partition, int]) -> None:
        """Shards that took their part have it, whatever others answer: whoever starts over finds it there."""
        started = time.perf_counter()
        answers = self._store.apply_all(flushes)
        self._metrics.apply_seconds.observe(time.perf_counter() - started)
        for table, replies in answers.items():
            for reply in replies:
                self._metrics.applies.labels(table, reply.outcome).inc()
        for table, replies in answers.items():
            for shard, reply in enumerate(replies):
                if reply.outcome == "conflict":
                    stands, ranges = dict(reply.offsets), flushes[table].ranges
                    raise Moved(f"table '{table}' shard {shard} stands at {stands}, not at {ranges}")
            self._progress.applied(table, stops)
        if "item" in answers:
            replies, events = answers["item"], flushes["item"].events
            self._clock = min(reply.clock for reply in replies)  # what other workers applied counts too
            before = tuple(r.clock - events if r.outcome == "applied" else 0 for r in replies)
            for learned, staleness in zip(self._pending.learned, self._pending.staleness(before), strict=True):
                if learned.read_at:
                    self._metrics.staleness.observe(max(0, staleness))

    def _check(self) -> None:
        self._checked_s = time.monotonic()
        if self._progress.moved():
            raise Moved("a shard's offsets are not where they were left")
