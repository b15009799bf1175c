"""What serving costs, in one run beside a FastAPI hello-world: `make bench-serving`.

A Redis with the module, filled by the store's own client, and the service as `towline up` starts it; rows of 64 floats.

1. lookups of single items and hello-world by turns, as fast as they are answered (wrk); raw batches of 256
2. recommend k = 10 of 100,000 items: as fast as answered; then at half of that, at times fixed beforehand, and the
   hello-world at the same times
3. 5,000 row updates a second: until recommend shows them
4. the store is killed and comes back
5. recommend of 1,000,000 items, 20 queries a second
6. SIGTERM under load

`per_core_s` is per second of the service's processor time. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from rich.console import Console

from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts
from benchmarks.serving import ends, paced, updates, wrk
from benchmarks.serving.deployed import START_S, Deployed, deployed
from benchmarks.serving.world import FIRST_ID, World
from embedding_store.open import open_store
from infra.local import process
from infra.local.deadline import Deadline
from infra.local.ports import accepts, ephemeral

CONNECTIONS = 16
LIMITS = {
    "lookup_over_hello": (">=", 0.8),
    "raw_batch_per_core_s": (">=", 4000),
    "recommend_100k_per_core_s": (">=", 800),
    "recommend_100k_p99_ms": ("<=", 10),
    "recommend_1m_exact_p99_ms": ("<=", 40),
    "update_visible_p99_ms": ("<=", 100),
    "stale_recovery_s": ("<=", 2),
    "failed_on_sigterm": ("<=", 0),
}


def parsed() -> argparse.Namespace:
    """The command line."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--many-items", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of lookup and hello-world by turns")
    return parser.parse_args()


def main() -> None:
    """Run once and print."""
    arguments = parsed()
    wrk.required()
    people = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as name:
        folder = Path(name)
        with deployed(folder / "stack") as service:
            figures = measured(service, folder, arguments, people)
            store = service.of("store").name
    for figure, (sign, limit) in LIMITS.items():
        kept = figures[figure] >= limit if sign == ">=" else figures[figure] <= limit
        people.print(f"{figure:28} {figures[figure]:>10}  {sign} {limit}{'' if kept else '  MISSED'}", highlight=False)
    settings = {"items": arguments.items, "many_items": arguments.many_items, "users": arguments.users, "dim": 64}
    print(json.dumps({**figures, **settings, "store": store, **facts()}))


def measured(service: Deployed, folder: Path, arguments: argparse.Namespace, people: Console) -> dict[str, Any]:
    """All figures, in the order of the docstring."""
    config = service.config()
    world = World(open_store(config.redis), config.model)
    world.declare()
    world.grow(arguments.items)
    world.meet(arguments.users)
    service.stack.start_services(0)
    service.await_items(arguments.items)
    bodies = recommends(arguments.users)
    figures: dict[str, Any] = {}

    def done(more: dict[str, Any]) -> None:
        people.print(more, highlight=False)
        figures.update(more)

    done(lookups(service, folder, arguments))
    done(batches(service, folder, arguments))
    done(recommendations(service, folder, bodies, arguments))
    seen = updates.measure(service, world, 5000, 2 * arguments.seconds)
    done(
        {
            "update_visible_p99_ms": seen.percentile_ms(99),
            "update_visible_p50_ms": seen.percentile_ms(50),
            "updates_per_s": round(seen.rows / seen.seconds),
            "update_samples": len(seen.waits_s),
        }
    )
    world.store.close()
    outage = ends.outage(service, bodies)
    done(
        {
            "stale_recovery_s": outage.recovery_s,
            "outage_answered": outage.answered,
            "outage_undefined": len(outage.undefined),
        }
    )
    world.store = open_store(config.redis)
    started = time.perf_counter()
    world.grow(arguments.many_items)
    service.await_items(arguments.many_items)
    done({"fill_s": round(time.perf_counter() - started, 1)})
    service.await_settled()
    many = paced.run(service.port, "/v1/recommend", bodies, 20, 3 * arguments.seconds)
    done(
        {
            "recommend_1m_exact_p99_ms": many.percentile_ms(99),
            "recommend_1m_exact_p50_ms": many.percentile_ms(50),
            "recommend_1m_failed": many.failed,
        }
    )
    ended = ends.sigterm(service, bodies, 100)
    done({"failed_on_sigterm": ended.failed, "answered_on_sigterm": ended.answered, "end_s": ended.seconds})
    world.store.close()
    return figures


def recommends(users: int) -> list[bytes]:
    """Bodies of k = 10 for known users in random order."""
    order = np.random.default_rng(3).permutation(users)[:5000]
    return [msgspec.json.encode({"user_id": int(FIRST_ID + user), "k": 10}) for user in order]


def lookups(service: Deployed, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of rounds."""
    rng = np.random.default_rng(2)
    paths = [f"/v1/embeddings/item/{FIRST_ID + row}" for row in rng.integers(0, arguments.items, 5000)]
    script = wrk.getting(folder, "lookup", paths)
    pid = service.of("serving").pid
    url = f"http://127.0.0.1:{service.port}"
    with hello(folder) as (hello_url, hello_pid):
        rounds = [
            (
                wrk.run(url, pid, arguments.seconds / 2, CONNECTIONS, script),
                wrk.run(hello_url, hello_pid, arguments.seconds / 2, CONNECTIONS),
            )
            for _ in range(arguments.rounds)
        ]
    return {
        "lookup_over_hello": round(statistics.median(own.per_s / other.per_s for own, other in rounds), 3),
        "lookup_over_hello_per_core": round(
            statistics.median(own.per_core_s / other.per_core_s for own, other in rounds), 3
        ),
        "lookup_per_s": round(statistics.median(own.per_s for own, _ in rounds)),
        "hello_per_s": round(statistics.median(other.per_s for _, other in rounds)),
        "lookup_failed": sum(own.failed for own, _ in rounds),
    }


def batches(service: Deployed, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """256 item ids, raw."""
    rng = np.random.default_rng(4)
    drawn = FIRST_ID + rng.integers(0, arguments.items, (200, 256))
    bodies = [msgspec.json.encode({"ids": [str(i) for i in ids.tolist()], "format": "raw"}) for ids in drawn]
    script = wrk.posting(folder, "batch", bodies)
    url = f"http://127.0.0.1:{service.port}/v1/embeddings/item:batch"
    rate = wrk.run(url, service.of("serving").pid, arguments.seconds, CONNECTIONS, script)
    return {
        "raw_batch_per_core_s": round(rate.per_core_s),
        "raw_batch_per_s": round(rate.per_s),
        "raw_batch_failed": rate.failed,
    }


def recommendations(
    service: Deployed, folder: Path, bodies: list[bytes], arguments: argparse.Namespace
) -> dict[str, Any]:
    """As fast as answered, then at half of that."""
    url = f"http://127.0.0.1:{service.port}/v1/recommend"
    script = wrk.posting(folder, "recommend", bodies)
    rate = wrk.run(url, service.of("serving").pid, arguments.seconds, CONNECTIONS, script)
    half = paced.run(service.port, "/v1/recommend", bodies, rate.per_s / 2, 2 * arguments.seconds)
    with hello(folder) as (hello_url, _):  # what machine and client make of any answer at that rate
        nothing = paced.run(
            urlsplit(hello_url).port or 0, "/", [b""], rate.per_s / 2, 2 * arguments.seconds, method="GET"
        )
    return {
        "recommend_100k_per_core_s": round(rate.per_core_s),
        "recommend_100k_per_s": round(rate.per_s),
        "recommend_100k_p99_ms": half.percentile_ms(99),
        "recommend_100k_p50_ms": half.percentile_ms(50),
        "recommend_100k_failed": rate.failed + half.failed,
        "hello_paced_p99_ms": nothing.percentile_ms(99),
        "hello_paced_p50_ms": nothing.percentile_ms(50),
    }


@contextlib.contextmanager
def hello(folder: Path) -> Iterator[tuple[str, int]]:
    """(URL, pid) of hello-world."""
    port = ephemeral()
    command = [sys.executable, "-m", "benchmarks.serving.hello", str(port)]
    record = process.start("hello-world", command, folder / "hello.log")
    try:
        if not Deadline(START_S).wait(lambda: accepts(port)):
            raise RuntimeError(f"hello-world does not listen:\n{process.last_lines(record.log)}")
        yield f"http://127.0.0.1:{port}/", record.pid
    finally:
        process.stop(record, 10)


if __name__ == "__main__":
    main()
