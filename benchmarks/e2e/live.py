"""Learning at a steady rate: how far behind the stream, and how long until an event is in an answer over HTTP."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.e2e.plant import LOOK_EVERY_S, Look, Plant, plant
from benchmarks.e2e.presets import Preset
from benchmarks.e2e.replayed import fill
from benchmarks.e2e.stages import stages, told
from benchmarks.e2e.stream import FIRST_ID, Stream
from ingest.producer import Event, EventProducer

_BETWEEN_ASKS_S = 0.002
_BETWEEN_PROBES_S = 0.05
_FIRST_PROBE = 5 * FIRST_ID  # a user that no other event has
_WARM_EVENTS = 20_000


@dataclass(frozen=True, slots=True)
class Live:
    """One run."""

    rate: int
    events_per_s: float  # learned, from the first second to the last event sent
    lag_flat: bool  # in its last third no more behind than a tenth of a second more than in its second
    lag_p50_events: int
    lag_max_events: int  # after the first third
    freshness_p50_ms: float
    freshness_p99_ms: float
    probes: int
    cpu_us_per_event: float  # of all processes but the one that sends and the one that probes
    by_process: dict[str, float]
    stages: dict[str, float]  # see `stages`; of the time that it sent, the first trainer


def live(preset: Preset, stream: Stream, users: int, items: int, rate: int, partitions: int, trainers: int,
         batch_events: int | None, target_ms: int | None) -> Live:  # fmt: skip
    """Send `stream` at `rate`, ask for users of single events meanwhile. target_ms: of freshness, None: the default."""
    with plant(preset.config(batch_events, target_ms), partitions) as running:
        warm = stream.part(0, min(len(stream), _WARM_EVENTS))
        fill(running, warm, partitions, preset.per_record)
        for number in range(trainers):
            running.start_trainer(number)
        running.start_serving()
        running.await_events(len(warm))
        probe = _Probe(running)
        probe.asked(_FIRST_PROBE - 1)  # serving answers, and all is compiled
        command = [sys.executable, "-m", "benchmarks.e2e.feeder", "--bootstrap-servers",
                   running.config.kafka.bootstrap_servers]  # fmt: skip
        for name, value in {"rate": rate, "events": len(stream), "users": users, "items": items,
                            "partitions": partitions, "per-record": preset.per_record}.items():  # fmt: skip
            command += [f"--{name}", str(value)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as feeder:
            before = told(running.config.trainer.metrics_port)
            looks = _watched(running, probe, feeder)
            after = told(running.config.trainer.metrics_port)
            fed = json.loads(feeder.communicate()[0])
        running.await_events(len(warm) + len(stream), timeout_s=60)
        probe.close()
    return _figures(rate, looks[0].events, looks, fed, np.array(probe.waits_s), stages(before, after))


def _watched(running: Plant, probe: _Probe, feeder: subprocess.Popen[str]) -> list[Look]:
    """Looks while it sends. Probes begin with the first event."""
    looks = [running.look()]
    pace = threading.Event()
    begun = looks[0].events
    while feeder.poll() is None:
        looks.append(running.look())
        if looks[-1].events > begun and not probe.is_alive() and not probe.stopped:
            probe.start()
        pace.wait(LOOK_EVERY_S)
    probe.stop()
    if feeder.returncode:
        raise RuntimeError(f"the feeder ended with {feeder.returncode}")
    return looks


def _figures(
    rate: int, base: int, looks: list[Look], fed: dict[str, float], waits_s: np.ndarray, where: dict[str, float]
) -> Live:
    during = [look for look in looks if fed["began_s"] + 1 <= look.at_s <= fed["ended_s"]]
    if len(during) < 3 or not len(waits_s):
        raise RuntimeError("too short to be measured: raise --seconds")
    times = np.array([look.at_s - fed["began_s"] for look in during])
    behind = np.minimum(times * rate, rate * (fed["ended_s"] - fed["began_s"])) - [
        look.events - base for look in during
    ]
    third = len(during) // 3
    n = during[-1].events - during[0].events
    used = {name: during[-1].cpu_s[name] - cpu_s for name, cpu_s in during[0].cpu_s.items()}
    return Live(
        rate=rate,
        events_per_s=round(n / (times[-1] - times[0]), 1),
        lag_flat=bool(np.median(behind[2 * third :]) <= np.median(behind[third : 2 * third]) + 0.1 * rate),
        lag_p50_events=int(np.median(behind)),
        lag_max_events=int(behind[third:].max()),
        freshness_p50_ms=round(float(np.percentile(waits_s, 50)) * 1e3, 2),
        freshness_p99_ms=round(float(np.percentile(waits_s, 99)) * 1e3, 2),
        probes=len(waits_s),
        cpu_us_per_event=round(1e6 * sum(used.values()) / max(1, n), 2),
        by_process={name: round(1e6 * cpu_s / max(1, n), 2) for name, cpu_s in used.items()},
        stages=where,
    )


class _Probe(threading.Thread):
    """Sends an event of a user of its own, asks until the answer has it, and takes the next user."""

    def __init__(self, running: Plant) -> None:
        super().__init__(name="probe", daemon=True)
        self._serving = running.config.serving
        self._producer = EventProducer(running.config.kafka)
        self._ended = threading.Event()
        self.stopped = False
        self.waits_s: list[float] = []

    def run(self) -> None:
        user = _FIRST_PROBE
        while not self._ended.wait(_BETWEEN_PROBES_S):
            wait_s = self.asked(user)
            if not self._ended.is_set():
                self.waits_s.append(wait_s)
            user += 1

    def asked(self, user: int) -> float:
        """Seconds from handing the event to the producer until an answer has it."""
        connection = http.client.HTTPConnection("127.0.0.1", self._serving.port, timeout=10)
        began_s = time.monotonic()
        self._producer.send(Event(user, FIRST_ID))
        while not self._ended.is_set():
            try:
                connection.request("GET", f"/v1/embeddings/user/{user}")
                response = connection.getresponse()
                response.read()
                if response.status == http.HTTPStatus.OK:
                    break
            except (OSError, http.client.HTTPException):
                connection.close()  # not there yet
            self._ended.wait(_BETWEEN_ASKS_S)
        connection.close()
        return time.monotonic() - began_s

    def stop(self) -> None:
        """Probe no more; returns when the last one is done."""
        self.stopped = True
        self._ended.set()
        if self.is_alive():
            self.join()

    def close(self) -> None:
        self._producer.close()
