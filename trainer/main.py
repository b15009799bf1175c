"""The composition root of a trainer process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Protocol

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreUnavailable
from embedding_store.model import ModelSettings
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from ingest.contract import StreamUnavailable
from ingest.kafka_source import KafkaSource
from ingest.settings import IngestSettings, KafkaSettings
from trainer.backoff import Backoff
from trainer.bootstrap import learn_history, open_history
from trainer.metrics import Metrics
from trainer.offsets import OffsetPolicy
from trainer.rewind import SnapshotRewind
from trainer.settings import TrainerSettings
from trainer.tensorboard import TensorBoard
from trainer.warm_up import warm_up
from trainer.worker import Worker

log = logging.getLogger(__name__)


class Sections(Protocol):
    """The parts of the configuration that a trainer reads."""

    @property
    def kafka(self) -> KafkaSettings: ...
    @property
    def ingest(self) -> IngestSettings: ...
    @property
    def redis(self) -> RedisSettings: ...
    @property
    def model(self) -> ModelSettings: ...
    @property
    def trainer(self) -> TrainerSettings: ...


def run(config: Sections, bootstrap: str = "") -> None:
    """Learn until SIGTERM or SIGINT, then apply what is pending and leave.

    bootstrap: past events to learn first, a file or a range of a topic; see `open_history`.

    Waits with back-off for a store or broker that is away. Raises SpecConflict, StoreMisconfigured,
    StreamMisconfigured, OffsetsRefused: those need a person.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # our own back-off says what is away, once
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    warm_up(config.model, config.trainer, config.ingest)
    metrics = Metrics(_board(config.trainer))
    if config.trainer.metrics_port:
        metrics.serve(config.trainer.metrics_host, config.trainer.metrics_port)
    store = _await_store(config.redis, stop)
    ingest, snapshots = config.ingest, config.trainer.guard_snapshots
    policy = OffsetPolicy(ingest.on_lost_offsets, ingest.on_lost_shard)
    rewind = SnapshotRewind(config.redis, Path(snapshots)) if snapshots else None
    if bootstrap and store is not None:
        history = open_history(bootstrap, config.kafka, config.ingest, stop.is_set, config.model.feature_schema)
        if history is not None:
            learn_history(
                store, history, config.model, config.trainer, metrics, stop.is_set,
                policy, ingest.confirm_truncation_s, rewind,
            )  # fmt: skip
    stream = _await_stream(config, metrics, stop)
    if store is not None and stream is not None:
        metrics.progress_age.set_function(lambda: stream.progress_age_s)
        worker = Worker(
            store, stream, config.model, config.trainer, metrics, policy, ingest.confirm_truncation_s, rewind=rewind
        )
        gc.collect()
        gc.freeze()  # looking through all that TensorFlow made would hold events up for a quarter of a second
        try:
            worker.run(stop.is_set)
        finally:
            stream.close()
            store.close()


def _board(settings: TrainerSettings) -> TensorBoard | None:
    worker = settings.instance or f"{socket.gethostname()}-{os.getpid()}"
    return TensorBoard(settings.tensorboard_dir, worker) if settings.tensorboard_dir else None


def _await_store(settings: RedisSettings, stop: threading.Event) -> EmbeddingStore | None:
    backoff = Backoff()
    while not stop.is_set():
        try:
            return open_store(settings)
        except StoreUnavailable as away:
            log.warning("%s; trying again in %.1f s", away, backoff.next_s)
            backoff.wait(stop.is_set)
    return None


def _await_stream(config: Sections, metrics: Metrics, stop: threading.Event) -> KafkaSource | None:
    backoff = Backoff()
    while not stop.is_set():
        try:
            instance, features = config.trainer.instance, config.model.feature_schema
            return KafkaSource(config.kafka, config.ingest, instance, metrics.befell, features)
        except StreamUnavailable as away:
            log.warning("%s; trying again in %.1f s", away, backoff.next_s)
            backoff.wait(stop.is_set)
    return None
