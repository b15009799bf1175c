"""Leaving out the records that the store says are to be left out. Pure.

As far as learning goes such a record holds nothing that can be used: no event of it counts, moves the clock or is
learned from, and no tombstone of it forgets. Offsets move over it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from embedding_store.contract import Range, Source
from ingest.columns import MAX_LINES, Events, MicroBatch, Profiles, Tombstones

Mask = npt.NDArray[np.bool_]


class Exclusion:
    """What `EmbeddingStore.excluded` says, against micro-batches."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges = tuple(ranges)

    def without(self, batch: MicroBatch) -> tuple[MicroBatch, int]:
        """The batch without the events and tombstones of excluded records, and how many those are."""
        meets = [
            one
            for one in self._ranges
            for partition, (start, stop) in batch.ranges.items()
            if Source(*partition) == one.source and one.start < stop and start < one.stop
        ]
        if not meets:
            return batch, 0
        parts: tuple[Events | Tombstones, ...] = (batch.events, batch.forget_users, batch.forget_items)
        kept = [_outside(part, meets) for part in parts]
        left = replace(
            batch,
            events=batch.events.take(np.flatnonzero(kept[0])),
            forget_users=batch.forget_users.take(kept[1]),
            forget_items=batch.forget_items.take(kept[2]),
        )
        if batch.profiles is not None:
            kept.append(_outside(batch.profiles, meets))
            left = replace(left, profiles=batch.profiles.take(np.flatnonzero(kept[-1])))
        return left, sum(int(np.count_nonzero(~mask)) for mask in kept)


def _outside(part: Events | Tombstones | Profiles, ranges: Iterable[Range]) -> Mask:
    mask = np.ones(len(part), bool)
    offset = part.place // MAX_LINES
    for source, start, stop in ranges:
        mask &= (part.partition != source.partition) | (offset < start) | (offset >= stop)
    return mask
