"""Training against TFRA on Redis, the same model, batch and ids: `make bench-trainer`.

Two towers 64 → 64 → 32, in-batch softmax, Adam. By turns, each on an empty server and in processes of its own: the peer
with the softmax over the whole batch, as it is used, and with the loss in groups written into its step by hand; ours
likewise. The peer's server keeps nothing on disk, ours its append-only file as the local stack sets it up. Figures are
medians over rounds of examples a second by the median step. Then HR@10 of ours, whole against grouped, tested before
learned, over the last half of the tests. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts
from benchmarks.store.servers import Served, store_server
from benchmarks.trainer.data import Ids
from benchmarks.trainer.environment import peer_python
from infra.local.store_server import find_store_program

BATCH = 4096
GROUP = 512
TIMEOUT_S = 900


def main() -> None:
    """Run once and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="timed in each")
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--evaluated-steps", type=int, default=200, help="micro-batches learned for HR@10")
    parser.add_argument("--evaluate-share", type=float, default=0.02)
    arguments = parser.parse_args()
    peer = peer_python()
    with tempfile.TemporaryDirectory(prefix="towline-trainer-") as name:
        bench = _Bench(Path(name), peer, arguments.steps, arguments.warm_up)
        # speed: as many ids as a large service has; quality: so few that each is met often enough to be learned
        Ids.drawn(BATCH * (arguments.steps + arguments.warm_up), arguments.users, arguments.items, 64).save(bench.ids)
        found: dict[str, list[float]] = {"peer": [], "full": [], "peer_grouped": [], "grouped": []}
        print("| round | peer | ours | peer, grouped | ours, grouped |\n|---|---|---|---|---|", file=sys.stderr)
        for number in range(arguments.rounds):
            found["peer"].append(bench.peer(BATCH))
            found["full"].append(bench.ours(BATCH))
            found["peer_grouped"].append(bench.peer(GROUP))
            found["grouped"].append(bench.ours(GROUP))
            row = " | ".join(f"{rates[-1]:,.0f}" for rates in found.values())
            print(f"| {number + 1} | {row} |", file=sys.stderr, flush=True)
        Ids.drawn(BATCH * arguments.evaluated_steps, 5_000, 1_000, 8).save(bench.ids)
        quality = {group: bench.hit_rate(group, arguments.evaluated_steps, arguments.evaluate_share)
                   for group in (BATCH, GROUP)}  # fmt: skip

    def over(ours: str, theirs: str) -> float:
        return round(statistics.median(a / b for a, b in zip(found[ours], found[theirs], strict=True)), 2)

    rates = {name: round(statistics.median(each)) for name, each in found.items()}
    print(
        json.dumps(
            {
                "full_over_peer": over("full", "peer"),
                "grouped_over_peer": over("grouped", "peer"),
                "grouped_over_peer_grouped": over("grouped", "peer_grouped"),
                "examples_per_s": rates["grouped"],
                "full_examples_per_s": rates["full"],
                "peer_examples_per_s": rates["peer"],
                "peer_grouped_examples_per_s": rates["peer_grouped"],
                "hr10_full": quality[BATCH],
                "hr10_grouped": quality[GROUP],
                "batch": BATCH,
                "group": GROUP,
                "rounds": found,
            }
            | facts()
        )
    )


class _Bench:
    def __init__(self, folder: Path, peer: Path, steps: int, warm_up: int) -> None:
        self._folder, self._peer = folder, peer
        self._timed = ["--steps", str(steps), "--warm-up", str(warm_up), "--batch", str(BATCH)]
        self._runs = 0
        self.ids = folder / "ids.npz"

    def peer(self, group: int) -> float:
        """Examples a second of TFRA."""
        program = Path(__file__).parent / "peer.py"
        with self._server(module=False) as served:
            port = served.info("server")["tcp_port"]
            told = _run([str(self._peer), str(program), str(self.ids), "--port", port, "--group", str(group),
                         *self._timed])  # fmt: skip
        return _rate(told)

    def ours(self, group: int) -> float:
        """Examples a second of a worker."""
        with self._server(module=True) as served:
            return _rate(self._ours(served, group, self._timed))

    def hit_rate(self, group: int, steps: int, share: float) -> float:
        """HR@10 of a worker."""
        few = ["--steps", str(steps), "--warm-up", "0", "--batch", str(BATCH), "--evaluate", str(share)]
        with self._server(module=True) as served:
            return round(float(self._ours(served, group, few)["hr10"]), 4)

    def _ours(self, served: Served, group: int, timed: list[str]) -> dict[str, Any]:
        program = [sys.executable, "-m", "benchmarks.trainer.ours"]
        return _run([*program, str(self.ids), "--store", served.url, "--group", str(group), *timed])

    def _server(self, *, module: bool) -> contextlib.AbstractContextManager[Served]:
        self._runs += 1
        return store_server(
            find_store_program("auto", os.environ), self._folder / str(self._runs), module=module, aof=module
        )


def _run(command: list[str]) -> dict[str, Any]:
    """What a program printed last. Raises RuntimeError with what it said if it failed."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _rate(told: dict[str, Any]) -> float:
    return round(BATCH / statistics.median(told["seconds_each"]), 1)


if __name__ == "__main__":
    main()
