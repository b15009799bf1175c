"""Learning past events before the live stream.

They are sources with offsets of their own in every shard, under the same protocol as a partition of the live topic (or
they are partitions of it): killed at any moment they are taken up where they stand, and once learned they are never
learned again. The live stream begins when the last shard has all of them: at each partition's earliest record, or where
the store stands.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from embedding_store.contract import EmbeddingStore, Source
from embedding_store.errors import StoreUnavailable, UnknownTable
from embedding_store.model import ModelSettings
from ingest.columns import Partition
from ingest.contract import EventSource, StreamMisconfigured, StreamUnavailable
from ingest.history_file import TOPIC_PREFIX, HistoryFile
from ingest.history_topic import PREFIX, HistoryTopic, TopicRange
from ingest.settings import IngestSettings, KafkaSettings
from native.features import NO_FEATURES, FeatureSchema
from trainer.backoff import Backoff
from trainer.guarded import Rewind
from trainer.metrics import Metrics
from trainer.offsets import OffsetPolicy
from trainer.settings import TrainerSettings
from trainer.worker import Worker

log = logging.getLogger(__name__)

_CHECK_S = 1.0


class History(EventSource, Protocol):
    """A stream with an end."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def required(self) -> Mapping[Partition, int]:
        """Sources that begin behind records that are kept, and where: below that the store must not stand."""

    @property
    def ends(self) -> Mapping[Partition, int]:
        """Where each of its sources ends."""

    @property
    def exhausted(self) -> bool:
        """Whether all that this member owns of it was delivered."""

    def rest(self, timeout_s: float) -> None:
        """Let the time pass while others learn the rest; what they leave is ours then."""

    def tell_unusable(self) -> None:
        """Tell of what could not be used; once, at the end."""


def open_history(
    text: str,
    kafka: KafkaSettings,
    ingest: IngestSettings,
    stopping: Callable[[], bool],
    features: FeatureSchema = NO_FEATURES,
) -> History | None:
    """The file of that name, or the range of a topic (`topic:…`). None if told to stop while the broker is away.

    Raises StreamMisconfigured where it can't be read.
    """
    if not text.startswith(PREFIX):
        return HistoryFile(Path(text), ingest, features)
    which, backoff = TopicRange.parse(text), Backoff()
    while not stopping():
        try:
            return HistoryTopic(which, kafka, ingest, features)
        except StreamUnavailable as away:
            log.warning("%s; trying again in %.1f s", away, backoff.next_s)
            backoff.wait(stopping)
    return None


def learn_history(
    store: EmbeddingStore,
    source: History,
    model: ModelSettings,
    trainer: TrainerSettings,
    metrics: Metrics,
    stopping: Callable[[], bool],
    policy: OffsetPolicy = OffsetPolicy(),  # noqa: B008  frozen
    confirm_truncation_s: float = 0.0,
    rewind: Rewind | None = None,
) -> bool:
    """Learn it; True once every shard has all of it, False if told to stop before. Closes the source.

    Several trainers may do so at once: of a file one of them goes on at a time, partitions of a topic are shared; and
    nothing counts twice. Raises StreamMisconfigured where the store stands before the range.
    """
    backoff, ran = Backoff(), False
    worker = Worker(store, source, model, trainer, metrics, policy, confirm_truncation_s, rewind=rewind)
    try:
        while not stopping():
            try:
                if _is_complete(store, model, source):
                    log.info("the history %s is learned; on to the live stream", source.name)
                    source.tell_unusable()
                    return True
            except StoreUnavailable as away:
                log.warning("%s; trying again in %.1f s", away, backoff.next_s)
                backoff.wait(stopping)
                continue
            if ran:  # others have the rest, or what was pending at the end was not applied
                source.rest(_CHECK_S)
            else:
                log.info("learning the history %s", source.name)
            worker.run(_Ended(store, model, source, stopping))
            ran = True
    finally:
        source.close()
    return False


class _Ended:
    """Whether a worker is to leave: told to, nothing of its own left, or all is learned (asked every second)."""

    def __init__(
        self, store: EmbeddingStore, model: ModelSettings, source: History, stopping: Callable[[], bool]
    ) -> None:
        self._store, self._model, self._source, self._stopping = store, model, source, stopping
        self._asked_s = time.monotonic()

    def __call__(self) -> bool:
        if self._stopping() or self._source.exhausted:
            return True
        if time.monotonic() - self._asked_s < _CHECK_S:
            return False
        self._asked_s = time.monotonic()
        try:
            return _is_complete(self._store, self._model, self._source)
        except StoreUnavailable:  # the worker finds out, and waits for it
            return False


def _is_complete(store: EmbeddingStore, model: ModelSettings, source: History) -> bool:
    complete, others = True, set()
    for table in model.tables():
        try:
            statuses = store.status(table)
        except UnknownTable:  # nobody has declared it yet
            return False
        for status in statuses:
            for partition, end in source.ends.items():
                stands, required = status.offsets.get(Source(*partition)), source.required.get(partition, 0)
                if stands is not None and stands < required:
                    raise StreamMisconfigured(
                        f"the store has learned partition {partition.number} of {source.name} up to offset {stands}, "
                        f"and the range begins at {required}: what lies between would never be learned; leave the "
                        "start of the range out, or start without --bootstrap to go on from there"
                    )
                complete &= stands is not None and stands >= end
            others |= {s for s in status.offsets if s.topic_id.startswith(TOPIC_PREFIX)}
    others -= {Source(*partition) for partition in source.ends}
    if others and not complete:
        log.warning(
            "the store has learned %d other history files: an event that is in two of them counts twice", len(others)
        )
    return complete
