"""Replaying a topic from its beginning, as fast as it goes: events a second and processor time an event."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.e2e.plant import LOOK_EVERY_S, Plant, plant
from benchmarks.e2e.presets import Preset
from benchmarks.e2e.stream import Stream
from ingest.producer import EventProducer

_WARM_SHARE = 0.1
_APART_MS = 10
"""Between two events of the made-up past."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One preset."""

    trainers: int
    events: int  # learned in all
    measured: int  # of them, after the warm-up
    events_per_s: float
    cpu_us_per_event: float  # of all processes
    by_process: dict[str, float]  # likewise, each


def replay(
    preset: Preset, stream: Stream, partitions: int, trainers: int, seconds: float, batch_events: int | None
) -> Replayed:
    """Fill a topic, start the trainers, and measure from the first tenth on, for no longer than `seconds`."""
    with plant(preset.config(batch_events), partitions) as running:
        fill(running, stream, partitions, preset.per_record)
        for number in range(trainers):
            running.start_trainer(number)
        return _measured(running, trainers, len(stream), seconds)


def fill(running: Plant, stream: Stream, partitions: int, per_record: int) -> None:
    """Send it all; the newest event is of now."""
    time_ms = time.time_ns() // 1_000_000 - _APART_MS * np.arange(len(stream))[::-1]
    with EventProducer(running.config.kafka) as producer:
        for partition, value in stream.records(time_ms, partitions, per_record):
            producer.send_raw(value, partition=partition)
        producer.flush(timeout_s=600)


def _measured(running: Plant, trainers: int, events: int, seconds: float) -> Replayed:
    first = last = running.await_events(max(1, int(_WARM_SHARE * events)))
    pace = threading.Event()
    while last.events < events and last.at_s - first.at_s < seconds:
        pace.wait(LOOK_EVERY_S)
        last = running.look()
    if last.events == first.events:
        raise RuntimeError(f"all {events} events were learned before the first look: measure more, with --events")
    n = last.events - first.events
    used = {name: 1e6 * (last.cpu_s[name] - first.cpu_s[name]) / n for name in last.cpu_s}
    return Replayed(
        trainers=trainers,
        events=last.events,
        measured=n,
        events_per_s=round(n / (last.at_s - first.at_s), 1),
        cpu_us_per_event=round(sum(used.values()), 2),
        by_process={name: round(us, 2) for name, us in used.items()},
    )
