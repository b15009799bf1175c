"""Processor time of an event, all processes together, against partitions and trainers: through broker and store."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from benchmarks.e2e.plant import LOOK_EVERY_S, Look, plant
from benchmarks.e2e.presets import PRESETS
from benchmarks.e2e.replayed import fill
from benchmarks.e2e.stream import Stream
from benchmarks.scale.rows import PRESET

_WARM_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay of a topic."""

    partitions: int
    trainers: int
    events: int
    events_per_s: float
    cpu_us: float
    by_process: dict[str, float]


def replay(stream: Stream, partitions: int, trainers: int, seconds: float) -> Cell:
    """Fill a topic, start the trainers, and measure after the first fifth, for no longer than `seconds`."""
    preset = PRESETS[PRESET]
    with plant(preset.config(), partitions) as running:
        fill(running, stream, partitions, preset.per_record)
        for number in range(trainers):
            running.start_trainer(number)
        first = last = running.await_events(int(_WARM_SHARE * len(stream)))
        pace = threading.Event()
        while last.events < len(stream) and last.at_s - first.at_s < seconds:
            pace.wait(LOOK_EVERY_S)
            last = running.look()
    return _cell(partitions, trainers, first, last)


def _cell(partitions: int, trainers: int, first: Look, last: Look) -> Cell:
    n = last.events - first.events
    if n <= 0:
        raise RuntimeError(f"all {last.events} events were learned before the first look: measure more, with --events")
    used = {name: round(1e6 * (last.cpu_s[name] - first.cpu_s[name]) / n, 3) for name in last.cpu_s}
    return Cell(partitions, trainers, n, round(n / (last.at_s - first.at_s), 1), round(sum(used.values()), 2), used)
