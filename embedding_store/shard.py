"""What a shard knows besides its rows, and the protocol's decisions over it. Pure.

`embedding_store.contract.EmbeddingStore.apply` states the rules; both backends decide by these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from embedding_store.contract import Flush, Outcome, ShardReply, ShardStatus, Source
from embedding_store.errors import BadRequest, GenerationError, SeekConflict
from embedding_store.eviction import Settled
from embedding_store.spec import TableSpec

MAX_CLOCK = 2**53
"""Clocks and times are scores of sorted sets, which Redis keeps as float64: exact below."""


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """Moves in the same atomic unit as the shard's rows."""

    generation: int = 0
    clock: int = 0  # usable events applied
    event_time_ms: int = 0
    produced_ms: int = 0
    skipped: int = 0  # records jumped over by seeks
    seeks: int = 0
    last_seek: str = ""  # source, from, to and reason of the newest seek
    now_ms: int = 0  # the largest wall clock that a call brought
    evicted: int = 0  # rows; likewise expired, forgotten
    expired: int = 0
    forgotten: int = 0
    late: int = 0  # own events and gradients that a forget or an eviction came after
    refused: int = 0  # own events and forgets of ids whose key is taken
    feed: int = 0  # number of the newest entry of the change feed: entries are numbered 1, 2, 3, …
    offsets: Mapping[Source, int] = field(default_factory=dict)

    def status(self, records: int, stubs: int, remembered: int) -> ShardStatus:
        """As `EmbeddingStore.status` answers it. records: rows, stubs and marks together."""
        return ShardStatus(
            clock=self.clock,
            generation=self.generation,
            rows=records - stubs - remembered,
            event_time_ms=self.event_time_ms,
            produced_ms=self.produced_ms,
            skipped=self.skipped,
            offsets=dict(self.offsets),
            stubs=stubs,
            remembered=remembered,
            evicted=self.evicted,
            expired=self.expired,
            forgotten=self.forgotten,
            late=self.late,
            refused=self.refused,
        )

    def reply(self, outcome: Outcome, flush: Flush) -> ShardReply:
        """As `EmbeddingStore.apply` answers it, with the offsets of the flush's sources."""
        sources = (r.source for r in flush.ranges)
        return ShardReply(outcome, self.clock, {s: self.offsets[s] for s in sources if s in self.offsets})


def judge(meta: ShardMeta, flush: Flush, place: str) -> Outcome:
    """Whether the flush is to be applied; `place` names the shard in messages. Raises GenerationError, BadRequest."""
    if flush.generation != meta.generation:
        raise other_generation(place, meta.generation, flush.generation)
    offsets = meta.offsets
    if all(r.source in offsets and offsets[r.source] >= r.stop for r in flush.ranges):
        return "duplicate"
    if all(offsets.get(r.source) == r.start for r in flush.ranges):
        if meta.clock + flush.events >= MAX_CLOCK:
            raise clock_full(place, meta.clock, flush.events)
        return "applied"
    return "conflict"


def other_generation(place: str, stored: int, given: int) -> GenerationError:
    """A call of generation `given` came to a shard of another."""
    if given < stored:
        return GenerationError(
            f"{place} is at store generation {stored}, the call at {given}: the store was restored or rewound; drop "
            "local state, read generation() and the offsets again"
        )
    return GenerationError(
        f"{place} is at store generation {stored}, below the call's {given}: it was rewound alone; raise_generation() "
        "and read the offsets again"
    )


def clock_full(place: str, clock: int, events: int) -> BadRequest:
    """A call would bring a clock to MAX_CLOCK."""
    return BadRequest(
        f"the clock of {place} is {clock}: {events} events more don't fit 53 bits; "
        "send the number of usable events in the ranges"
    )


def other_offset(place: str, source: Source, stored: int | None, expected: int | None) -> SeekConflict:
    """A compare-and-set of an offset found another value than expected; None: unset."""
    return SeekConflict(f"offset of source {source} in {place} is {stored}, expected {expected}")


FEED_STRIDE_BITS = 40
"""The feed of a shard at store generation g is at number g · 2^40 at least. A generation's entries are far fewer."""

LAST_STRIDE = 1 << 22
"""Generations above it, four million restores on, move the feed by what two entries would, so that it fits 63 bits."""


def raised(meta: ShardMeta, generation: int) -> ShardMeta:
    """The shard at `generation` at least. If that is news its feed is to be emptied: what came before is another life.

    The feed's number jumps past all that the shard ever had, in lives that a restore undid, too: a reader's older
    cursor is refused by `reaches_back`, and the reader scans.
    """
    if generation <= meta.generation:
        return meta
    feed = max(meta.feed + 2, min(generation, LAST_STRIDE) << FEED_STRIDE_BITS)
    return replace(meta, generation=generation, feed=feed)


def stamp(spec: TableSpec, meta: ShardMeta, flush: Flush) -> int:
    """The wall clock of an update: the caller's; where rows go by age, the shard's, which never goes back."""
    ages = spec.ttl_s or spec.max_rows or spec.admit_after
    return max(meta.now_ms, flush.now_ms) if ages else flush.now_ms


def advance(meta: ShardMeta, flush: Flush, settled: Settled) -> ShardMeta:
    """The shard after the flush."""
    merged = settled.merged
    return replace(
        meta,
        clock=meta.clock + flush.events,
        event_time_ms=max(meta.event_time_ms, flush.event_time_ms),
        produced_ms=max(meta.produced_ms, flush.produced_ms),
        now_ms=max(meta.now_ms, flush.now_ms),
        evicted=meta.evicted + settled.evicted,
        expired=meta.expired + settled.expired,
        forgotten=meta.forgotten + merged.forgotten,
        late=meta.late + merged.late,
        refused=meta.refused + merged.refused,
        feed=meta.feed + (len(settled.changed) > 0),
        offsets={**meta.offsets, **{r.source: r.stop for r in flush.ranges}},
    )


def jump(meta: ShardMeta, source: Source, expected: int | None, new: int, reason: str, place: str) -> ShardMeta:
    """The shard after a seek. Raises SeekConflict. A first offset skips nothing that was ever owed."""
    stored = meta.offsets.get(source)
    if stored != expected:
        raise other_offset(place, source, stored, expected)
    return replace(
        meta,
        skipped=meta.skipped + (max(0, new - stored) if stored is not None else 0),
        seeks=meta.seeks + 1,
        last_seek=f"{source} {stored} -> {new}: {reason}",
        offsets={**meta.offsets, source: new},
    )


FEED_KEYS = 1 << 20
"""Keys that a shard's feed holds at most, about: 8 MB. A mirror further behind than that scans the table."""


def feed_length(changed: int) -> int:
    """Entries to keep when one of `changed` keys is added.

    At least 4, so that a mirror that keeps up never scans: with the largest flushes, a million keys, that is 32 MB.
    """
    return max(4, min(4096, FEED_KEYS // max(1, changed)))
