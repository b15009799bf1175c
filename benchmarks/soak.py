"""Memory of every process while the product runs for a while: `make soak`.

A stream over a fixed number of users and items is learned at a steady rate, and recommendations are asked for all the
time. Once every row is there, nothing should grow: `mib_per_hour` is the slope of a process's resident memory over the
last two thirds of the run. The broker's includes its heap, which it fills before it collects; the store's its copy of
the index while it rewrites its append-only file. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.e2e.plant import Plant, plant
from benchmarks.e2e.presets import PRESETS
from benchmarks.e2e.replayed import fill
from benchmarks.e2e.stream import FIRST_ID, Stream
from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts

_EVERY_S = 1.0
_ASKS_PER_S = 10
_MIB = 2**20


@dataclass(slots=True)
class Seen:
    """Resident memory by process, in MiB, each second."""

    at_s: list[float] = field(default_factory=list)
    mib: dict[str, list[float]] = field(default_factory=dict)

    def look(self, running: Plant, at_s: float) -> None:
        """Once more."""
        self.at_s.append(at_s)
        for name, pid in running.pids.items():
            self.mib.setdefault(name, []).append(resident_mib(pid))


def resident_mib(pid: int) -> float:
    """Resident set of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / _MIB


def main() -> None:
    """Run and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--preset", choices=list(PRESETS), default="history")
    parser.add_argument("--plot", type=Path, help="PNG of memory over time")
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes
    preset = PRESETS[arguments.preset]
    everyone = Stream(
        FIRST_ID + np.repeat(np.arange(arguments.users), 2),
        FIRST_ID + np.arange(2 * arguments.users) % arguments.items,
    )
    seen, stop = Seen(), threading.Event()
    with plant(preset.config(), 2) as running:
        fill(running, everyone, 2, preset.per_record)
        running.start_trainer()
        running.start_serving()
        running.await_events(len(everyone))
        asking = _Asking(running.config.serving.port, arguments.users, stop)
        command = [sys.executable, "-m", "benchmarks.e2e.feeder",
                   "--bootstrap-servers", running.config.kafka.bootstrap_servers]  # fmt: skip
        sizes = {"rate": arguments.rate, "events": int(arguments.rate * seconds), "users": arguments.users,
                 "items": arguments.items, "partitions": 2, "per-record": preset.per_record}  # fmt: skip
        command += [f"--{name}={value}" for name, value in sizes.items()]
        with (
            subprocess.Popen(command, stdout=subprocess.DEVNULL) as feeder,
            Progress(console=Console(stderr=True), transient=True) as progress,
        ):
            asking.start()
            task, began_s = progress.add_task("running", total=seconds), time.monotonic()
            while feeder.poll() is None:
                running.look()  # raises if a process ended
                seen.look(running, time.monotonic() - began_s)
                progress.update(task, completed=seen.at_s[-1])
                stop.wait(_EVERY_S)
        if feeder.returncode:
            raise RuntimeError(f"the feeder ended with {feeder.returncode}")
        learned = running.await_events(len(everyone) + sizes["events"], timeout_s=120).events
        stop.set()
        asking.join()
    if arguments.plot is not None:
        _draw(seen, arguments.plot)
    print(json.dumps({"minutes": arguments.minutes, "rate": arguments.rate, "learned": learned,
                      "answered": asking.answered, "failed": asking.failed,
                      "processes": {name: _told(seen, name) for name in seen.mib}} | facts()))  # fmt: skip


def _told(seen: Seen, name: str) -> dict[str, float]:
    at_s, mib = np.array(seen.at_s), np.array(seen.mib[name])
    settled = at_s >= at_s[-1] / 3
    slope = float(np.polyfit(at_s[settled] / 3600, mib[settled], 1)[0])
    return {
        "first_mib": round(float(mib[0]), 1),
        "last_mib": round(float(np.median(mib[-30:])), 1),
        "most_mib": round(float(mib.max()), 1),
        "mib_per_hour": round(slope, 1),
    }


def _draw(seen: Seen, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  only where a picture is asked for

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for name, mib in seen.mib.items():
        axes.plot(np.array(seen.at_s) / 60, mib, label=name)
    axes.set(xlabel="minutes", ylabel="resident memory, MiB", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


class _Asking(threading.Thread):
    """Asks for recommendations of one user after the other; what fails before the first answer is not counted."""

    def __init__(self, port: int, users: int, stop: threading.Event) -> None:
        super().__init__(name="asking", daemon=True)
        self._port, self._users, self._stop_asking = port, users, stop
        self.answered = self.failed = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        user = 0
        while not self._stop_asking.wait(1 / _ASKS_PER_S):
            body = json.dumps({"user_id": FIRST_ID + user, "k": 10})
            try:
                connection.request("POST", "/v1/recommend", body, {"content-type": "application/json"})
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.failed += self.answered > 0
                continue
            if response.status == http.HTTPStatus.OK:
                self.answered += 1
            else:
                self.failed += self.answered > 0
            user = (user + 1) % self._users
        connection.close()


if __name__ == "__main__":
    main()
