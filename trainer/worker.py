"""The worker's loop: poll, read, measure, learn, apply."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from embedding_store.contract import EmbeddingStore, Flush, Range, Source
from embedding_store.errors import GenerationError, SeekConflict, StoreUnavailable
from embedding_store.model import ModelSettings
from ingest.columns import Events, MicroBatch, Partition
from ingest.contract import AssignmentLost, EventSource, StreamUnavailable
from native.ragged import Ragged
from trainer.backoff import Backoff
from trainer.copies import check_deltas
from trainer.dense import DenseWorker
from trainer.examples import ExampleReader
from trainer.identities import Identities
from trainer.learner import Learner
from trainer.metrics import Metrics
from trainer.pending import Pending
from trainer.prequential import Prequential, Tests
from trainer.progress import Progress
from trainer.replay import ReplayBuffer
from trainer.settings import TrainerSettings

log = logging.getLogger(__name__)


class Moved(Exception):
    """The store does not stand where this worker left it."""


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
        observe: Callable[[Tests], None] | None = None,
    ) -> None:
        """observe: is told of all tests before their events are learned."""
        self._store, self._stream, self._settings, self._metrics = store, stream, settings, metrics
        rng = np.random.default_rng(settings.seed)
        self._tables = tuple(model.tables())
        self._model, self._published = model, False
        check_deltas(model, settings)
        self._dense = DenseWorker(store, model, settings.dense_learning_rate, settings.gate_learning_rate)
        replay = ReplayBuffer(settings.replay_capacity, model.history_length, rng)
        replays = settings.replay * settings.passes
        self._reader = ExampleReader(store, model, replay, replays, with_state=settings.deltas)
        self._learner = Learner(model, settings, self._dense, rng)
        self._prequential = Prequential(
            store,
            model,
            settings.evaluate_k,
            settings.evaluate_share,
            freeze_after=settings.evaluate_freeze_after,
            observe=observe,
        )
        self._progress = Progress(store, stream, self._tables)
        self._pending = Pending(model.dim, model.tables()["item"].state_dim if settings.deltas else None)
        self._identities = Identities(store)
        self._generation = 0
        self._clock = 0
        self._dense_events = self._dense_batches = 0
        self._dense_times = (0, 0)
        self._checked_s = 0.0

    def run(self, stopping: Callable[[], bool]) -> None:
        """Learn until told to stop; what is pending then is applied first. Store and broker may come and go."""
        backoff = Backoff()
        ready = False
        in_a_row = 0  # of starts over without a step between them
        while not stopping():
            try:
                if not ready:
                    ready = self._start_over()
                self._once()
                backoff.reset()
                in_a_row = 0
            except (Moved, AssignmentLost, SeekConflict, GenerationError) as moved:
                log.info("starting over from the store's offsets: %s", moved)
                self._metrics.restarts.inc()
                ready = False
                in_a_row += 1
                if in_a_row > 1:
                    backoff.wait(stopping)
            except (StoreUnavailable, StreamUnavailable) as away:
                log.warning("%s; trying again in %.1f s", away, backoff.next_s)
                self._metrics.away.labels("store" if isinstance(away, StoreUnavailable) else "stream").inc()
                ready = False
                backoff.wait(stopping)
        if ready:
            self._leave()

    def _leave(self) -> None:
        """Apply what is left. If that fails it is learned again: by the next owner, from the store's offsets."""
        try:
            if self._pending.batches:
                self._flush(everything=True)
            elif self._dense_batches:
                self._flush_dense(time.time_ns() // 1_000_000)
        except (Moved, AssignmentLost, GenerationError, StoreUnavailable, StreamUnavailable) as fault:
            log.warning("what was pending is left to the next owner of the partitions: %s", fault)

    def _declare(self) -> None:
        """Tables and model are in the store, also after it was emptied. The newest process decides on the model."""
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
        self._generation = self._store.generation()
        self._progress.take(owned)
        self._dense.read()
        self._clock = min(s.clock for s in self._store.status("item"))
        self._checked_s = time.monotonic()
        return bool(owned)

    def _once(self) -> None:
        batch = self._stream.poll(self._progress.stop_at())
        self._metrics.lag.set(self._stream.lag())
        if batch is not None:
            self._learn(batch)
        if self._due(idle=batch is None):
            self._flush(everything=self._progress.at_barrier(self._pending.ranges))
        if time.monotonic() - self._checked_s > self._settings.reconcile_every_s:
            self._check()

    def _learn(self, batch: MicroBatch) -> None:
        step = None
        events = self._screened(batch)
        if len(events):
            examples, past = self._reader.read(events, self._pending.users, self._pending.entries)
            if not self._progress.replaying:
                self._prequential.measure(events, past, examples)
            step = self._learner.learn(examples, self._clock + self._pending.events)
            self._metrics.learned(step)
        self._pending.add(batch, step, events)
        self._metrics.took(batch)

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
            idle
            or pending.must_flush
            or pending.batches >= self._settings.apply_every
            or self._progress.at_barrier(pending.ranges)
        )

    def _flush(self, *, everything: bool) -> None:
        """Apply what is pending.

        1. Dead letters of the ranges are acknowledged. 2. One call per table, atomic over each of its shards; the
        dense table only every so often, or if `everything`. 3. Any conflict: Moved, nothing local survives. 4.
        Positions are reported.
        """
        pending = self._pending
        self._stream.flush_dead_letters()
        now_ms = time.time_ns() // 1_000_000
        stops = {p: stop for p, (_, stop) in pending.ranges.items()}
        for table in self._tables:
            if table != "dense":
                self._apply(table, pending.flush(table, self._generation, self._progress.start(table), now_ms), stops)
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

    def _flush_dense(self, now_ms: int) -> None:
        stops = dict(self._progress.start("item"))
        ranges = tuple(
            Range(Source(*p), start, stops[p])
            for p, start in sorted(self._progress.start("dense").items())
            if stops[p] > start
        )
        gradients, keys = self._dense.delta(self._dense_events, self._settings.dense_merge)
        n = len(keys)
        flush = Flush(
            generation=self._generation,
            ranges=ranges,
            events=self._dense_events,
            event_time_ms=self._dense_times[0],
            produced_ms=self._dense_times[1],
            now_ms=now_ms,
            keys=keys,
            counts=np.zeros(n, np.int64),
            positives=np.zeros(n, np.float32),
            checks=np.zeros(n, np.uint32),
            ids=Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8)),
            gradients=gradients,
        )
        self._apply("dense", flush, stops)
        self._dense_events = self._dense_batches = 0
        self._dense_times = (0, 0)
        self._dense.read()

    def _apply(self, table: str, flush: Flush, stops: dict[Partition, int]) -> None:
        started = time.perf_counter()
        replies = self._store.apply(table, flush)
        self._metrics.apply_seconds.labels(table).observe(time.perf_counter() - started)
        for shard, reply in enumerate(replies):
            self._metrics.applies.labels(table, reply.outcome).inc()
            if reply.outcome == "conflict":
                raise Moved(f"table '{table}' shard {shard} stands at {dict(reply.offsets)}, not at {flush.ranges}")
        if table == "item":
            self._clock = min(reply.clock for reply in replies)  # what other workers applied counts too
        self._progress.applied(table, stops)

    def _check(self) -> None:
        self._checked_s = time.monotonic()
        if self._progress.moved():
            raise Moved("a shard's offsets are not where they were left")
