"""What goes wrong, in which order: a function of the seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = {
    "kill_trainer": 5,
    "pause_trainer": 3,
    "kill_store": 5,
    "promote_stale_replica": 5,
    "promote_with_old_master_alive": 3,
    "cut_store": 5,
    "freeze_store": 4,
    "kill_broker": 2,
    "cut_broker": 4,
    "freeze_broker": 3,
}
"""Kind of fault → how often, relative to the others."""

_HOLDS_S = {
    "pause_trainer": (1.0, 3.0),  # beyond the session time-out
    "promote_stale_replica": (0.5, 2.5),  # how long the replica has heard nothing when it is promoted
    "promote_with_old_master_alive": (0.5, 2.0),
    "cut_store": (0.2, 2.0),
    "freeze_store": (0.5, 4.0),
    "cut_broker": (0.2, 2.0),
    "freeze_broker": (0.5, 4.0),
}
_OVERLAPPING = 0.35
_WHOLE = 0.3


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `trainer`: whose, or -1 for all of them; faults of a server ignore it."""

    number: int
    kind: str
    trainer: int
    hold_s: float
    gap_s: float  # after the fault before it
    overlaps: bool  # begins though the one before may not be over


def faults(seed: int, trainers: int) -> Iterator[Fault]:
    """Endless. Every kind occurs among the first ones, then they come by their weights."""
    draw = random.Random(seed)
    first = list(KINDS)
    draw.shuffle(first)
    number = 0
    while True:
        kind = first[number] if number < len(first) else draw.choices(list(KINDS), list(KINDS.values()))[0]
        trainer = draw.randrange(trainers)
        if kind.startswith(("cut", "freeze")) and draw.random() < _WHOLE:
            trainer = -1
        hold_s = draw.uniform(*_HOLDS_S.get(kind, (0.0, 0.0)))
        gap_s = draw.uniform(0.1, 0.8)
        yield Fault(number, kind, trainer, round(hold_s, 2), round(gap_s, 2), draw.random() < _OVERLAPPING)
        number += 1
