"""What clients see while the store is killed and comes back, and while the service is told to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.serving import paced
from benchmarks.serving.deployed import Deployed, asked
from infra.local.deadline import Deadline


@dataclass
class Outage:
    """Answers during an outage."""

    recovery_s: float = 0.0  # from the store's first answer until the service is no longer stale
    answered: int = 0
    stale: int = 0
    undefined: list[int] = field(default_factory=list)  # statuses of 500 and more that HTTP.md doesn't define: not 503


def outage(service: Deployed, bodies: Sequence[bytes], down_s: float = 2.0) -> Outage:
    """Kill the store under load; start it again after `down_s`."""
    seen = Outage()
    over = threading.Event()
    load = _Load(service.port, bodies, over)
    load.start()
    service.kill_store()
    if not Deadline(10).wait(lambda: _stale(service.port)):
        raise RuntimeError("the store is gone, and the service does not say so")
    over.wait(down_s)
    service.start_store()
    back = time.perf_counter()
    if not Deadline(60).wait(lambda: not _stale(service.port)):
        raise RuntimeError("the store is back for a minute, and the service is still stale")
    seen.recovery_s = round(time.perf_counter() - back, 3)
    over.set()
    load.join()
    statuses = load.result.statuses
    seen.answered = statuses.get(200, 0)
    seen.undefined = [s for s, n in statuses.items() if s != 503 and not 200 <= s < 300 for _ in range(n)]
    return seen


class _Load(threading.Thread):
    """100 requests a second until `over`."""

    def __init__(self, port: int, bodies: Sequence[bytes], over: threading.Event) -> None:
        super().__init__(name="load", daemon=True)
        self._port, self._bodies, self._over = port, bodies, over
        self.result = paced.Paced()

    def run(self) -> None:
        while not self._over.is_set():
            part = paced.run(self._port, "/v1/recommend", self._bodies, 100, 0.5)
            for status, n in part.statuses.items():
                self.result.statuses[status] = self.result.statuses.get(status, 0) + n


def _stale(port: int) -> bool:
    status, answer = asked(port, "GET", "/readyz")
    return status != 200 or bool(answer["degraded"])


@dataclass
class Ended:
    """An end under load."""

    failed: int
    answered: int
    seconds: float  # from the signal to the end of the process


def sigterm(service: Deployed, bodies: Sequence[bytes], rate: float) -> Ended:
    """SIGTERM under load from clients behind a balancer, which asks for readiness ten times a second."""
    ready = threading.Event()
    over = threading.Event()
    ready.set()

    def balance() -> None:
        while not over.wait(0.1):
            try:
                if asked(service.port, "GET", "/readyz")[0] != 200:
                    ready.clear()
            except OSError:
                ready.clear()

    pid = service.of("serving").pid
    balancer = threading.Thread(target=balance, daemon=True)
    balancer.start()
    signalled: list[float] = []

    def end() -> None:
        signalled.append(time.perf_counter())
        os.kill(pid, signal.SIGTERM)

    timer = threading.Timer(2.0, end)
    timer.start()
    seen = paced.run(service.port, "/v1/recommend", bodies, rate, 4.0, go_on=ready.is_set)
    gone = Deadline(30).wait(lambda: all(s.health == "dead" for s in service.stack.status() if s.kind == "serving"))
    over.set()
    balancer.join()
    if not gone:
        raise RuntimeError("the service does not end after SIGTERM")
    return Ended(seen.failed, seen.statuses.get(200, 0), round(time.perf_counter() - signalled[0], 2))
