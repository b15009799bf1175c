"""Learning a file of past events before the live stream.

The file is a source with offsets of its own in every shard, under the same protocol as a partition: killed at any
moment it is taken up where it stands, and once it is learned it is never learned again. The live stream begins when the
last shard has all of it: at each partition's earliest record, or where the store stands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from embedding_store.contract import EmbeddingStore, Source
from embedding_store.errors import StoreUnavailable, UnknownTable
from embedding_store.model import ModelSettings
from ingest.history_file import TOPIC_PREFIX, HistoryFile
from ingest.settings import IngestSettings
from trainer.backoff import Backoff
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

log = logging.getLogger(__name__)


def learn_history(
    store: EmbeddingStore,
    path: Path,
    model: ModelSettings,
    trainer: TrainerSettings,
    ingest: IngestSettings,
    metrics: Metrics,
    stopping: Callable[[], bool],
) -> bool:
    """Learn the file; True once every shard has all of it, False if told to stop before.

    Several trainers may do so at once: one of them goes on at a time, and nothing counts twice. Raises
    StreamMisconfigured where the file can't be read.
    """
    source = HistoryFile(path, ingest)
    backoff = Backoff()
    while not stopping():
        try:
            if _is_complete(store, model, source):
                log.info("the history %s is learned: %d records; on to the live stream", path, source.length)
                source.tell_unusable()
                return True
        except StoreUnavailable as away:
            log.warning("%s; trying again in %.1f s", away, backoff.next_s)
            backoff.wait(stopping)
            continue
        log.info("learning the history %s, %d records", path, source.length)
        Worker(store, source, model, trainer, metrics).run(lambda: stopping() or source.exhausted)
    return False


def _is_complete(store: EmbeddingStore, model: ModelSettings, source: HistoryFile) -> bool:
    own = Source(*source.partition)
    complete, others = True, set()
    for table in model.tables():
        try:
            statuses = store.status(table)
        except UnknownTable:  # nobody has declared it yet
            return False
        complete &= all(status.offsets.get(own) == source.length for status in statuses)
        others |= {s for status in statuses for s in status.offsets if s.topic_id.startswith(TOPIC_PREFIX) and s != own}
    if others and not complete:
        log.warning(
            "the store has learned %d other history files: an event that is in two of them counts twice", len(others)
        )
    return complete
