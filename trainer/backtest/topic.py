"""A range of a topic as a stream to be replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.columns import Events, MicroBatch, Partition, Profiles, Tombstones
from ingest.contract import IngestError
from ingest.history_topic import PREFIX, TopicRange
from ingest.listed import ListedSource
from ingest.listed_events import ListedEvents
from ingest.settings import IngestSettings, KafkaSettings
from ingest.topic_range import read_range
from native.features import FeatureSchema
from trainer.backtest.errors import DataUnusable

I64 = npt.NDArray[np.int64]

__all__ = ["PREFIX", "TopicStream", "read_topic"]


@dataclass(frozen=True, slots=True)
class TopicStream:
    """n decoded events, and what was told of ids beside them."""

    events: Events
    profiles: Profiles | None
    dead_letters: int  # in the range: left out
    forgotten: int  # events of ids that a later tombstone of the range forgets: left out

    def __len__(self) -> int:
        return len(self.events)

    def ordered(self, *, first_only: bool, negatives: bool) -> TopicStream:
        """By (time, partition, place), as `trainer.backtest.stream.Stream.ordered`."""
        events = self.events
        order = np.lexsort((events.place, events.partition, events.time_ms))
        positive = events.label[order] > 0
        keep = np.ones(len(order), np.bool_) if negatives else positive.copy()
        if first_only:
            rows = np.flatnonzero(positive)
            pairs = np.stack([events.user_key[order][rows], events.item_key[order][rows]], axis=1)
            first = np.unique(pairs, axis=0, return_index=True)[1] if len(rows) else rows
            repeat = np.ones(len(rows), np.bool_)
            repeat[first] = False
            keep[rows[repeat]] = False
        return TopicStream(events.take(order[keep]), self.profiles, self.dead_letters, self.forgotten)

    def source(self, partition: Partition, ingest: IngestSettings, features: FeatureSchema) -> ListedSource:  # noqa: ARG002 - decoded with them
        """A source of the events in their order; profiles come before the first event that is not older."""
        before = None if self.profiles is None else np.searchsorted(self.events.time_ms, self.profiles.time_ms)
        return ListedEvents(partition, self.events, ingest, self.profiles, before)


def read_topic(
    text: str,
    kafka: KafkaSettings,
    ingest: IngestSettings,
    features: FeatureSchema,
    progress: Callable[[int, int], None],
) -> TopicStream:
    """The range `topic:NAME[@FROM][..TO]`. progress: is told of records read and to be read. Raises DataUnusable.

    What a tombstone of the range forgets is left out: events of that id that are not newer.
    """
    try:
        batch, letters = read_range(TopicRange.parse(text), kafka, ingest, features, progress)
    except IngestError as error:
        raise DataUnusable(str(error)) from error
    kept = _remembered(batch)
    events = batch.events.take(np.flatnonzero(kept))
    return TopicStream(events, batch.profiles, len(letters), int(np.count_nonzero(~kept)))


def _remembered(batch: MicroBatch) -> npt.NDArray[np.bool_]:
    events = batch.events
    kept = np.ones(len(events), np.bool_)
    for keys, forget in ((events.user_key, batch.forget_users), (events.item_key, batch.forget_items)):
        latest = _latest(forget)
        if len(latest):
            named = np.array(sorted(latest), np.uint64)
            at = np.minimum(np.searchsorted(named, keys), len(named) - 1)
            times = np.array([latest[key] for key in named.tolist()], np.int64)
            kept &= (named[at] != keys) | (events.time_ms > times[at])
    return kept


def _latest(forget: Tombstones) -> dict[int, int]:
    latest: dict[int, int] = {}
    for key, time_ms in zip(forget.keys.tolist(), forget.time_ms.tolist(), strict=True):
        latest[key] = max(time_ms, latest.get(key, 0))
    return latest
