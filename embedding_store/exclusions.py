"""Ranges of records that are left out of what is learned: poisoned ones, named when the store was restored. Pure.

They belong to the stream as this store knows it. Every trainer leaves out the same, from where the store was restored
to on, so the clock stays a function of the stream. `EmbeddingStore.exclude` stores them, `excluded` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from embedding_store.contract import Range, Source
from embedding_store.errors import BadRequest, SpecError

MOST = 1000
"""Ranges a store holds at most: every trainer reads all of them each time it starts over."""


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same records in the fewest ranges, sorted. Raises BadRequest: an empty range, more than MOST."""
    result: list[Range] = []
    for one in sorted(ranges):
        source, start, stop = one
        if not 0 <= start < stop < 2**63:
            raise BadRequest(f"records {start} to {stop - 1} of source {source} are none: give the first and the last")
        last = result[-1] if result else None
        if last is not None and last.source == source and start <= last.stop:
            result[-1] = Range(source, last.start, max(last.stop, stop))
        else:
            result.append(Range(Source(*source), start, stop))
    if len(result) > MOST:
        raise BadRequest(f"{len(result)} ranges of records to be left out; at most {MOST}: join neighbours")
    return tuple(result)


def behind(ranges: Iterable[Range], offsets: Mapping[Source, int]) -> tuple[Range, ...]:
    """The parts of the ranges at or behind each source's offset; of sources without one, all."""
    cut = (one._replace(start=max(one.start, offsets.get(one.source, 0))) for one in ranges)
    return tuple(one for one in cut if one.start < one.stop)


def to_json(ranges: Sequence[Range]) -> bytes:
    """The document that the store keeps."""
    return msgspec.json.encode([[s.topic_id, s.partition, start, stop] for s, start, stop in ranges])


def from_json(document: bytes | None) -> tuple[Range, ...]:
    """Inverse of `to_json`; None is no ranges. Raises SpecError on what another release wrote."""
    if document is None:
        return ()
    try:
        rows: Any = msgspec.json.decode(document, type=list[tuple[str, int, int, int]])
    except msgspec.DecodeError as e:
        raise SpecError(f"the stored ranges of excluded records can't be read by this release: {e}") from e
    return tuple(Range(Source(topic_id, partition), start, stop) for topic_id, partition, start, stop in rows)
