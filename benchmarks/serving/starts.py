"""How a service starts, and what its processes cost: `make bench-starts`.

A store with 1,000,000 items of 64 floats; the service as `towline serve` starts it.

1. one worker: started cold, saved, started warm; from the program's start to the first answer of recommend, and until
   it is ready, which is when it has caught up
2. the same with two
3. memory of each process, what they share, recommend and lookups as fast as answered, and how late event loops were

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts
from benchmarks.serving import wrk
from benchmarks.serving.__main__ import CONNECTIONS, recommends
from benchmarks.serving.deployed import START_S, asked, deployed
from benchmarks.serving.world import FIRST_ID, World
from embedding_store.open import open_store
from infra.config import HANDED, TowlineConfig, hand_over
from infra.local import process
from infra.local.deadline import Deadline
from infra.local.ports import ephemeral

_MB = 1e6


def main() -> None:
    """Run once and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement")
    arguments = parser.parse_args()
    wrk.required()
    people = Console(stderr=True)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as name:
        folder = Path(name)
        with deployed(folder / "stack") as plant:
            config = plant.config()
            world = World(open_store(config.redis), config.model)
            world.declare()
            world.grow(arguments.items)
            world.meet(arguments.users)
            plant.await_settled()
            for workers in (1, 2):
                found = measured(config, world, folder, workers, arguments)
                people.print(found, highlight=False)
                figures.update({f"{name}_{workers}w": value for name, value in found.items()})
            world.store.close()
    print(json.dumps({**figures, "items": arguments.items, "users": arguments.users, "dim": 64, **facts()}))


def measured(
    config: TowlineConfig, world: World, folder: Path, workers: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Of a service with so many workers."""
    kept = folder / f"kept-{workers}"
    figures: dict[str, Any] = {}
    with started(config, folder, workers, kept) as cold:
        figures |= {"cold_answer_s": cold.answer_s, "cold_ready_s": cold.ready_s}
    figures["file_mb"] = round((kept / "mirror.bin").stat().st_size / _MB, 1)  # saved at its end
    with started(config, folder, workers, kept) as warm:
        log = (folder / "serving.log").read_text()
        loaded = re.search(r"items from .* in ([\d.]+) s", log)
        figures |= {"warm_answer_s": warm.answer_s, "warm_ready_s": warm.ready_s}
        figures["warm_load_s"] = float(loaded[1]) if loaded else None
        update(warm, world)
        figures |= throughput(warm, folder, arguments)
        figures |= memory(warm.pid)
        figures["loop_lag_p99_ms"] = loop_lag_ms(warm.port, 0.99)
    return figures


@dataclass
class Started:
    """A running service; times are from the program's start."""

    pid: int
    port: int
    answer_s: float  # until recommend answers
    ready_s: float


@contextlib.contextmanager
def started(config: TowlineConfig, folder: Path, workers: int, kept: Path) -> Iterator[Started]:
    """Until both are known; stopped by SIGTERM."""
    port = ephemeral()
    own = {"port": port, "workers": workers, "mirror_folder": str(kept), "drain_s": 0.2}
    config = config.model_copy(update={"serving": config.serving.model_copy(update=own)})
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOWLINE_")} | {HANDED: hand_over(config)}
    began = time.perf_counter()
    record = process.start("serving", [sys.executable, "-m", "infra", "serve"], folder / "serving.log", environment)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return asked(port, "POST", "/v1/recommend", {"user_id": int(FIRST_ID), "k": 10})[0] == 200
        return False

    def ready() -> bool:
        return all(asked(port, "GET", "/readyz")[0] == 200 for _ in range(4 * workers))

    try:
        if not Deadline(START_S).wait(answers):
            raise RuntimeError(f"the service does not answer:\n{process.last_lines(record.log)}")
        answer_s = time.perf_counter() - began
        if not Deadline(START_S).wait(ready):
            raise RuntimeError(f"the service does not become ready:\n{process.last_lines(record.log)}")
        yield Started(record.pid, port, round(answer_s, 2), round(time.perf_counter() - began, 2))
    finally:
        process.stop(record, 60)


def update(service: Started, world: World) -> None:
    """Some rows, several times, each seen: both sides of what workers share are written then."""
    rows = np.arange(1000)
    for _ in range(4):
        gradients = np.full((len(rows), world.model.dim), 0.01, np.float32)
        step = min(reply.clock for reply in world.update(rows, gradients))
        if not Deadline(START_S).wait(lambda step=step: asked(service.port, "GET", "/v1/model")[1]["step"] >= step):
            raise RuntimeError(f"the mirror does not reach step {step}")


def throughput(service: Started, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Requests a second, all processes together; wrk has the machine with them."""
    url = f"http://127.0.0.1:{service.port}"
    rng = np.random.default_rng(2)
    paths = [f"/v1/embeddings/item/{FIRST_ID + row}" for row in rng.integers(0, arguments.items, 5000)]
    bodies = recommends(arguments.users)
    lookups = wrk.run(url, service.pid, arguments.seconds, CONNECTIONS, wrk.getting(folder, "lookup", paths))
    best = wrk.run(
        f"{url}/v1/recommend", service.pid, arguments.seconds, CONNECTIONS, wrk.posting(folder, "recommend", bodies)
    )
    return {
        "lookup_per_s": round(lookups.per_s),
        "recommend_per_s": round(best.per_s, 1),
        "failed": lookups.failed + best.failed,
    }


def memory(parent: int) -> dict[str, Any]:
    """MB of the processes: what each has alone, and what is shared between them."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    alone = {pid: _rollup(int(pid)) for pid in (str(parent), *children)}
    if not children:
        return {"memory_mb": round(alone[str(parent)]["Rss"], 1)}
    total = sum(process["Pss"] for process in alone.values())
    private = [process["Private_Clean"] + process["Private_Dirty"] for process in alone.values()]
    writer, *workers = private[1:]
    shared = max(process["Pss_Shmem"] for process in alone.values()) if total else 0.0
    return {
        "memory_mb": round(total, 1),
        "writer_alone_mb": round(writer, 1),
        "worker_alone_mb": round(max(workers), 1),
        "worker_shared_pss_mb": round(shared, 1),
    }


def _rollup(pid: int) -> dict[str, float]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(kb) * 1024 / _MB for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


def loop_lag_ms(port: int, quantile: float) -> float | None:
    """An upper bound: of a histogram's bucket, of all workers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    buckets = re.findall(r'loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)', text)
    total = float(buckets[-1][1])
    return next((1000 * float(le) for le, count in buckets if float(count) >= quantile * total), None)


if __name__ == "__main__":
    main()
