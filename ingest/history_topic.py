"""A range of a topic as past events, which trainers learn together before the live stream.

Its partitions are sources like those of the live topic, under their own topic id. Of the live topic itself only the
start of the range counts: it is where the live stream begins, instead of at the earliest record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kafka import KafkaConsumer, TopicPartition

from ingest.columns import MicroBatch, Partition
from ingest.contract import StreamMisconfigured
from ingest.kafka_client import client_options, connect, translated
from ingest.kafka_source import KafkaSource
from ingest.settings import IngestSettings, KafkaSettings
from ingest.topic_bounds import topic_bounds
from native.features import NO_FEATURES, FeatureSchema

PREFIX = "topic:"
_FORM = re.compile(r"topic:(?P<topic>[A-Za-z0-9._-]+)(?:@(?P<start>.*?)(?:\.\.(?P<stop>.+))?)?")
_EXAMPLE = "topic:NAME, topic:NAME@2026-01-01 or topic:NAME@2026-01-01..2026-02-01T12:00:00Z"


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Records of a topic with start_ms ≤ timestamp of the record < stop_ms (unix ms); None: from the first, to the end.

    Precisely, of each partition the records from the first at or after start_ms up to the first at or after stop_ms.
    """

    topic: str
    start_ms: int | None = None
    stop_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> TopicRange:
        """From `topic:NAME[@FROM][..TO]`, times in ISO 8601, UTC if they name no zone. Raises StreamMisconfigured."""
        form = _FORM.fullmatch(text)
        if form is None:
            raise StreamMisconfigured(f"{text!r} names no range of a topic; write {_EXAMPLE}")
        start, stop = _unix_ms(form["start"]), _unix_ms(form["stop"])
        if start is not None and stop is not None and start >= stop:
            raise StreamMisconfigured(f"the range {text!r} ends before it begins; write the earlier time first")
        return cls(form["topic"], start, stop)


class HistoryTopic:
    """`EventSource` over a range of a topic, as a member of the group `<kafka.group>-history`.

    starts, ends: of the range in each of the topic's partitions, whoever owns it. A range without an end goes to the
    end that the topic has when this is made; one of the live topic is over where it starts: there that stream goes on.
    Of a partition that keeps nothing of the range the end is 0. required: starts that were asked for, where records lie
    before them.
    """

    def __init__(
        self,
        which: TopicRange,
        kafka: KafkaSettings,
        ingest: IngestSettings,
        features: FeatureSchema = NO_FEATURES,
    ) -> None:
        """Raises StreamMisconfigured (no such topic; an end of the live topic), StreamUnavailable."""
        is_live = which.topic == kafka.topic
        if is_live and which.stop_ms is not None:
            raise StreamMisconfigured(
                f"{which.topic!r} is the live topic, which is learned on from any end: leave the time after '..' out"
            )
        own = kafka.model_copy(update={"topic": which.topic, "group": f"{kafka.group}-history"})
        self.starts, self.ends, self.required = offsets_of(which, own)
        if is_live:
            self.ends = self.starts
        self.name = f"{which.topic} from {', '.join(f'{p.number}:{start}' for p, start in self.starts.items())}"
        self._source = KafkaSource(own, ingest, features=features)
        self._owned: frozenset[Partition] = frozenset()
        self._position: dict[Partition, int] = {}
        self._paused: frozenset[Partition] = frozenset()

    @property
    def exhausted(self) -> bool:
        """Whether all of the range that this member owns was delivered, and something was owned."""
        return bool(self._owned) and all(self._position.get(p, -1) >= self.ends.get(p, 0) for p in self._owned)

    def assignment(self, timeout_s: float) -> frozenset[Partition]:
        """See `EventSource`. Raises StreamMisconfigured when the topic is no longer the one that was looked up."""
        owned = self._source.assignment(timeout_s)
        if {p.topic_id for p in owned} - {p.topic_id for p in self.ends}:
            raise StreamMisconfigured(f"the topic of the history {self.name} was made anew meanwhile: start again")
        self._owned = owned
        return owned

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `EventSource`; the range's start is the earliest."""
        earliest, end = self._source.bounds(partition)
        return max(earliest, self.starts.get(partition, earliest)), end

    def seek(self, partition: Partition, offset: int) -> None:
        """See `EventSource`."""
        self._source.seek(partition, offset)
        self._position[partition] = offset

    def pause(self, partitions: frozenset[Partition]) -> None:
        """See `EventSource`."""
        self._paused = partitions

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        """See `EventSource`. Nothing behind the range's end, except up to a stop: there a shard is to be caught up."""
        ended = {p for p in self._owned if self._position.get(p, -1) >= self.ends.get(p, 0)} - stop_at.keys()
        self._source.pause(self._paused | ended)
        batch = self._source.poll({**self.ends, **stop_at})
        if batch is not None:
            self._position |= {p: stop for p, (_, stop) in batch.ranges.items()}
        return batch

    def stay(self, timeout_s: float) -> None:
        """See `EventSource`."""
        self._source.stay(timeout_s)

    def rest(self, timeout_s: float) -> None:
        """Stay in the group with nothing to do; afterwards everything is asked again: others may have left theirs."""
        self._source.stay(timeout_s)
        self._owned, self._position = frozenset(), {}

    def dead_letter(self, batch: MicroBatch, rows: list[int], reason: str) -> None:
        """See `EventSource`."""
        self._source.dead_letter(batch, rows, reason)

    def quarantine(self, batch: MicroBatch, reason: str) -> None:
        """See `EventSource`."""
        self._source.quarantine(batch, reason)

    def flush_dead_letters(self) -> None:
        """See `EventSource`."""
        self._source.flush_dead_letters()

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """See `EventSource`."""
        self._source.commit(positions)

    def lag(self) -> int:
        """Records between the positions and the ends of the range, of the owned partitions."""
        return sum(max(0, self.ends.get(p, 0) - self._position.get(p, 0)) for p in self._owned)

    def tell_unusable(self) -> None:
        """They are in the dead-letter topic."""

    def close(self) -> None:
        """See `EventSource`."""
        self._source.close()


def offsets_of(
    which: TopicRange, settings: KafkaSettings
) -> tuple[dict[Partition, int], dict[Partition, int], dict[Partition, int]]:
    """Where the range starts and ends in each partition, and the starts that leave records out."""
    doing = f"looking up a range of {which.topic}"
    options = client_options(settings) | {"isolation_level": "read_committed", "allow_auto_create_topics": False}
    consumer = connect(KafkaConsumer, options, doing, settings)
    try:
        with translated(doing, settings):
            found = topic_bounds(consumer, settings)
            first, last = found.first, found.last
            starts = first if which.start_ms is None else _since(consumer, which.start_ms, last)
            stops = last if which.stop_ms is None else _since(consumer, which.stop_ms, last)
    finally:
        consumer.close()
    return (
        {name: max(starts[tp], first[tp]) for tp, name in found.names.items()},
        {name: stops[tp] if stops[tp] > first[tp] else 0 for tp, name in found.names.items()},
        {name: starts[tp] for tp, name in found.names.items() if starts[tp] > first[tp]},
    )


def _since(consumer: KafkaConsumer, ms: int, last: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The first offset at or after a time, of each partition; its end if there is none."""
    found = consumer.offsets_for_times(dict.fromkeys(last, ms))
    return {tp: end if found.get(tp) is None else min(found[tp].offset, end) for tp, end in last.items()}


def _unix_ms(text: str | None) -> int | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise StreamMisconfigured(f"{text!r} is no time in ISO 8601; write {_EXAMPLE}") from error
    ms = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    if ms < 0:
        raise StreamMisconfigured(f"{text!r} lies before 1970; leave the time out to begin at the first record")
    return int(ms)
