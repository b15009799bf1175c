"""What a worker tells Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from ingest.columns import MicroBatch
from trainer.learner import Step
from trainer.offsets import Finding
from trainer.prequential import Prequential
from trainer.tensorboard import TensorBoard

_LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_EVENTS = (0, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6)


class Metrics:
    """Counters of one worker, in a registry of its own."""

    def __init__(self, board: TensorBoard | None = None) -> None:
        """board: is told the same at every flush."""
        self._board, self._learned, self._loss = board, 0, 0.0
        self._told = (0, 0)  # positives and labels tested, when the gauges were set
        self.registry = r = CollectorRegistry()
        self.events = Counter(
            "towline_trainer_events", "usable events learned, replays after a restart included", registry=r
        )
        self.dead_letters = Counter("towline_trainer_dead_letters", "events that could not be used", registry=r)
        self.excluded = Counter(
            "towline_trainer_excluded",
            "events and tombstones of records that the store says are to be left out",
            registry=r,
        )
        self.refused = Counter("towline_trainer_refused", "events of ids whose key is taken by another id", registry=r)
        self.batches = Counter("towline_trainer_batches", "micro-batches", registry=r)
        self.restarts = Counter("towline_trainer_restarts", "times the worker started over from the store", registry=r)
        self.quarantined = Counter(
            "towline_trainer_quarantined", "micro-batches that were counted and not learned from", registry=r
        )
        self.quarantined_by = Counter(
            "towline_trainer_quarantined_by",
            "the same by what gave them away: not_finite, loss, calibration, one_item, growth",
            ["kind"],
            registry=r,
        )
        self.last_quarantine = Gauge(
            "towline_trainer_last_quarantine_timestamp_seconds",
            "when something was quarantined last, Unix time",
            registry=r,
        )
        self.paused = Gauge(
            "towline_trainer_paused", "1 while nothing is read because something was quarantined", registry=r
        )
        self.loss = Gauge("towline_trainer_loss", "mean softmax loss of the last step", registry=r)
        self.lag = Gauge(
            "towline_trainer_lag_records", "records between position and end of the owned partitions", registry=r
        )
        self.partitions = Gauge("towline_trainer_partitions", "partitions that the worker owns", registry=r)
        self.applies = Counter("towline_trainer_applies", "shard calls by outcome", ["table", "outcome"], registry=r)
        self.apply_seconds = Histogram(
            "towline_trainer_apply_seconds",
            "one call of all tables' shards; the dense table's calls count alone",
            buckets=_LATENCIES_S,
            registry=r,
        )
        self.stage_seconds = Histogram(
            "towline_trainer_stage_seconds",
            "a micro-batch's time by stage: poll (waiting for it and decoding it included), read (clocks, histories, "
            "rows), learn (its tests included), flush",
            ["stage"],
            buckets=_LATENCIES_S,
            registry=r,
        )
        self.last_apply = Gauge(
            "towline_trainer_last_apply_timestamp_seconds", "when a flush was last applied, Unix time", registry=r
        )
        self.delay_seconds = Histogram(
            "towline_trainer_delay_seconds",
            "from a flush's newest record timestamp to its end",
            buckets=(*_LATENCIES_S, 5.0, 15.0, 60.0, 300.0),
            registry=r,
        )
        self.away = Counter("towline_trainer_away", "failed tries, by what was away", ["what"], registry=r)
        self.held = Gauge(
            "towline_trainer_held", "1 while all partitions are held because store or stream is away", registry=r
        )
        self.held_seconds = Counter(
            "towline_trainer_held_seconds", "how long partitions were held, by what was away", ["what"], registry=r
        )
        self.staleness = Histogram(
            "towline_trainer_staleness_events",
            "events that others applied between the read of a micro-batch's rows and its apply; of one micro-batch a "
            "second, unless a setting bounds or corrects it",
            buckets=_EVENTS,
            registry=r,
        )
        self.relearned = Counter(
            "towline_trainer_relearned", "micro-batches learned anew: past max_staleness_events", registry=r
        )
        self.too_stale = Counter(
            "towline_trainer_too_stale",
            "micro-batches applied without gradients: past max_staleness_events however often they were learned",
            registry=r,
        )
        self.stream_events = Counter(
            "towline_trainer_stream_events",
            "what befell the stream: rebalance, stalled_partition, recreated_topic, retention, truncated, lost_shard, "
            "new_table, new_partition, first_start",
            ["kind"],
            registry=r,
        )
        self.lost_records = Counter(
            "towline_trainer_lost_records", "records gone before they were learned everywhere", ["kind"], registry=r
        )
        self.progress_age = Gauge(
            "towline_trainer_progress_age_seconds",
            "since every owned partition delivered, or was seen to have nothing more",
            registry=r,
        )
        self.handed_over = Histogram(
            "towline_trainer_handover_seconds",
            "pause of the partitions that stay when others are given or taken",
            buckets=_LATENCIES_S,
            registry=r,
        )
        self.tests = Gauge("towline_prequential_tests", "positives measured before they were learned", registry=r)
        self.hits = Gauge("towline_prequential_hits", "tests with rank within k", ["ranking"], registry=r)
        self.ndcg = Gauge("towline_prequential_ndcg", "sum of NDCG@k over the tests", registry=r)
        self.reciprocal_rank = Gauge("towline_prequential_reciprocal_rank", "sum of 1/rank over the tests", registry=r)
        self.recent = Gauge("towline_prequential_recent", "HR@k of the last 2000 tests", ["ranking"], registry=r)
        self.faded = Gauge(
            "towline_prequential_faded", "HR@k, tests fade to 1/e over 2000 of them", ["ranking"], registry=r
        )
        self.log_loss = Gauge(
            "towline_prequential_log_loss",
            "mean log loss of label events before they were learned: recent, of the last 2000; faded",
            ["over"],
            registry=r,
        )
        self.auc = Gauge("towline_prequential_auc", "AUC of the last 2000 label events", registry=r)
        self.calibration = Gauge(
            "towline_prequential_calibration", "mean predicted over mean observed, last 2000 label events", registry=r
        )
        self.against = Gauge(
            "towline_prequential_z", "McNemar's z of the model against another ranking", ["ranking"], registry=r
        )

    def serve(self, host: str, port: int) -> int:
        """Answer Prometheus on host:port; returns the port. Raises OSError where the port is taken."""
        server, _ = start_http_server(port, host, registry=self.registry)
        return int(server.server_port)

    def befell(self, kind: str) -> None:
        """Something befell the stream."""
        self.stream_events.labels(kind).inc()

    def found(self, finding: Finding) -> None:
        """Something was found where a partition was taken."""
        self.befell(finding.kind)
        if finding.records:
            self.lost_records.labels(finding.kind).inc(finding.records)

    def stage(self, name: str, started_s: float) -> float:
        """A stage that began at `started_s` (time.perf_counter()) has ended; returns when."""
        now_s = time.perf_counter()
        self.stage_seconds.labels(name).observe(now_s - started_s)
        return now_s

    def took(self, batch: MicroBatch) -> None:
        self.batches.inc()
        self.events.inc(len(batch.events))
        self._learned += len(batch.events)
        self.dead_letters.inc(batch.dead_letters)

    def learned(self, step: Step) -> None:
        self.loss.set(step.loss)
        self._loss = step.loss

    def quarantines(self, kind: str) -> None:
        """A micro-batch was quarantined."""
        self.quarantined.inc()
        self.quarantined_by.labels(kind).inc()
        self.last_quarantine.set_to_current_time()

    def flushed(self, prequential: Prequential, produced_ms: int) -> None:
        now_s = time.time()
        self.last_apply.set(now_s)
        if produced_ms:
            self.delay_seconds.observe(max(0.0, now_s - produced_ms / 1e3))
        tests = prequential.tests, prequential.labels.tests
        if tests != self._told:  # most micro-batches hold none, and figures of thousands cost a tenth of a small one
            self._told = tests
            self._tell(prequential)
        if self._board is not None:
            self._board.write(prequential, self._loss, self._learned)

    def _tell(self, prequential: Prequential) -> None:
        self.tests.set(prequential.tests)
        self.hits.labels("model").set(prequential.hits)
        self.hits.labels("popularity").set(prequential.popular_hits)
        scores = {"model": prequential.model, "popularity": prequential.popularity, "warm": prequential.warm,
                  "cold": prequential.cold, "frozen": prequential.frozen}  # fmt: skip
        for name, score in scores.items():
            if score.tests:
                self.recent.labels(name).set(score.recent)
                self.faded.labels(name).set(score.faded)
        for name, paired in (("popularity", prequential.against_popularity), ("frozen", prequential.against_frozen)):
            self.against.labels(name).set(paired.z)
        labels = prequential.labels
        if labels.tests:
            self.log_loss.labels("recent").set(labels.recent)
            self.log_loss.labels("faded").set(labels.faded)
            self.auc.set(labels.auc)
            self.calibration.set(labels.calibration)
        self.ndcg.set(prequential.ndcg)
        self.reciprocal_rank.set(prequential.reciprocal_ranks)
