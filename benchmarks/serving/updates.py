"""Rows change at a steady rate; how long until recommend answers with one of them as it became."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.serving.deployed import Deployed
from benchmarks.serving.world import FIRST_ID, World

_EVERY_S = 0.01
_BETWEEN_ASKS_S = 0.001


@dataclass(frozen=True, slots=True)
class Sent:
    """A row of the newest call: recommend must tell at least `step` for it."""

    row: int
    step: int
    at_s: float


@dataclass
class Updates:
    """What was seen."""

    rows: int = 0
    seconds: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    def percentile_ms(self, q: float) -> float:
        """From before the call to the store until after the answer."""
        return round(float(np.percentile(self.waits_s, q)) * 1e3, 2)


class _Writer(threading.Thread):
    """Calls of rate·_EVERY_S rows every _EVERY_S; behind time it goes on at once."""

    def __init__(self, world: World, rate: float, seconds: float) -> None:
        super().__init__(name="writer", daemon=True)
        self._world, self._rows, self._seconds = world, round(rate * _EVERY_S), seconds
        self.newest: Sent | None = None
        self.rows = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        rng = np.random.default_rng(5)
        begun = time.perf_counter()
        due = begun
        try:
            while due - begun < self._seconds:
                time.sleep(max(0.0, due - time.perf_counter()))
                rows = rng.choice(self._world.items, self._rows, replace=False)
                gradients = rng.normal(0, 0.1, (len(rows), self._world.model.dim)).astype(np.float32)
                at = time.perf_counter()
                replies = self._world.update(rows, gradients)
                # a row's step is its shard's clock, and all shards have the same events
                self.newest = Sent(int(rows[0]), min(reply.clock for reply in replies), at)
                self.rows += len(rows)
                due += _EVERY_S
        except BaseException as error:  # noqa: BLE001 - raised again by `measure`
            self.error = error


def measure(service: Deployed, world: World, rate: float, seconds: float) -> Updates:
    """Take the newest call, ask recommend for one of its rows until it is the new one, take the next."""
    writer = _Writer(world, rate, seconds)
    updates = Updates()
    last: Sent | None = None
    started = time.perf_counter()
    writer.start()
    while writer.is_alive():
        sent = writer.newest
        if sent is None or sent is last:
            time.sleep(_BETWEEN_ASKS_S)
            continue
        last = sent
        body = {"user_id": 0, "k": 1, "candidates": [FIRST_ID + sent.row], "exclude_seen": False}
        while True:
            status, answer = service.post("/v1/recommend", body)
            if status != 200:
                raise RuntimeError(f"recommend answered {status}: {answer}")
            if answer["items"] and answer["items"][0]["step"] >= sent.step:
                break
            time.sleep(_BETWEEN_ASKS_S)
        updates.waits_s.append(time.perf_counter() - sent.at_s)
    updates.rows, updates.seconds = writer.rows, time.perf_counter() - started
    if writer.error is not None:
        raise writer.error
    return updates
