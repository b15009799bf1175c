"""Events as typed columns: what a micro-batch is made of once the bytes are decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from native.features import ITEM, USER, FeatureValues
from native.ragged import Ragged

MAX_LINES = 1 << 16
"""Events one record may hold; place = record offset · MAX_LINES + line."""


class Partition(NamedTuple):
    """A partition of one incarnation of a topic: (topic id, partition number)."""

    topic_id: str
    number: int


@dataclass(frozen=True, slots=True)
class Events:
    """n usable events in arrival order: by partition within a poll, by (offset, line) within a partition."""

    partition: npt.NDArray[np.uint32]  # (n,) partition number
    place: npt.NDArray[np.int64]  # (n,) record offset · MAX_LINES + line
    time_ms: npt.NDArray[np.int64]  # (n,) event time, ms since the epoch
    produced_ms: npt.NDArray[np.int64]  # (n,) record timestamp
    user_key: npt.NDArray[np.uint64]  # (n,)
    user_check: npt.NDArray[np.uint32]
    user_id: Ragged  # n ids in canonical bytes
    item_key: npt.NDArray[np.uint64]
    item_check: npt.NDArray[np.uint32]
    item_id: Ragged
    label: npt.NDArray[np.float32]  # (n,) > 0 positive, 0 explicit negative
    weight: npt.NDArray[np.float32]  # (n,) > 0
    features: FeatureValues | None = None  # n rows; None where no features are declared

    def __len__(self) -> int:
        return len(self.place)

    def take(self, rows: npt.NDArray[np.int64]) -> Events:
        """Some of the events, copied."""
        return Events(**{f.name: _taken(getattr(self, f.name), rows) for f in fields(self)})


def _taken(column: npt.NDArray[Any] | Ragged | FeatureValues | None, rows: npt.NDArray[np.int64]) -> Any:
    if column is None:
        return None
    return column[rows] if isinstance(column, np.ndarray) else column.take(rows)


@dataclass(frozen=True, slots=True)
class Profiles:
    """p catalogue events and events about a user alone: what they say an id's features are, all of them, from then on.

    They move no clock and teach nothing.
    """

    side: npt.NDArray[np.uint8]  # (p,) ITEM or USER, of `native.features`
    partition: npt.NDArray[np.uint32]
    place: npt.NDArray[np.int64]
    time_ms: npt.NDArray[np.int64]
    key: npt.NDArray[np.uint64]
    check: npt.NDArray[np.uint32]
    id: Ragged
    features: FeatureValues  # p rows, of their side's features

    def __len__(self) -> int:
        return len(self.place)

    def take(self, rows: npt.NDArray[np.int64]) -> Profiles:
        """Some of them, copied."""
        return Profiles(**{f.name: _taken(getattr(self, f.name), rows) for f in fields(self)})


SIDES = {"item": ITEM, "user": USER}
"""Sides whose features are kept, by the word in the names of their tables."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """f ids to be forgotten, each where its tombstone is in the stream."""

    keys: npt.NDArray[np.uint64]  # (f,)
    checks: npt.NDArray[np.uint32]  # (f,)
    time_ms: npt.NDArray[np.int64]  # (f,) record timestamp: what an event without a time of its own has
    place: npt.NDArray[np.int64]  # (f,) record offset · MAX_LINES
    partition: npt.NDArray[np.uint32]  # (f,) partition number

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int, int]] = ()) -> Tombstones:
        """From (key, check, time_ms, place, partition) each."""
        kinds = (np.uint64, np.uint32, np.int64, np.int64, np.uint32)
        return cls(*(np.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)))

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: npt.NDArray[np.bool_]) -> Tombstones:
        """Some of them, copied; rows (f,)."""
        return Tombstones(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Everything in the record ranges it names; a batch ends right after a tombstone, so forgetting keeps its order."""

    events: Events
    ranges: Mapping[Partition, tuple[int, int]]  # record offsets [start, stop); stop is the consumer's position
    forget_users: Tombstones  # behind the events of their partitions
    forget_items: Tombstones
    dead_letters: int  # events in the ranges that could not be used
    profiles: Profiles | None = None  # None: the ranges hold none
