"""How long until an event is visible over HTTP, at a given rate: Kafka, trainer, Redis and serving on this machine.

A synthetic stream (Zipf-distributed items and users, seeded) is produced at --rate for --seconds. Meanwhile a client
takes the newest event, asks for its user's embedding until the answer counts it, and takes the next. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts
from embedding_store.open import open_store
from infra.config import TowlineConfig
from infra.demo.movielens import Ratings
from infra.demo.probe import FreshnessProbe
from infra.demo.replay import Replay
from infra.demo.standing import Observer
from infra.local.ports import ephemeral
from infra.local.stack import LocalStack
from ingest.kafka_topics import prepare_topics


def synthetic(events: int, users: int, items: int, seed: int) -> Ratings:
    """`events` ratings of 1 to 5 by Zipf-like users on Zipf-like items."""
    rng = np.random.default_rng(seed)

    def draw(n: int) -> np.ndarray:
        share = 1.0 / np.arange(1, n + 1) ** 0.8
        return rng.choice(n, size=events, p=share / share.sum())

    now_ms = time.time_ns() // 1_000_000
    times = now_ms - events + np.arange(events)
    return Ratings(draw(users), draw(items), rng.integers(1, 6, events).astype(float), times)


def main() -> None:
    """Run once and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=5_000)
    arguments = parser.parse_args()
    stream = synthetic(arguments.rate * arguments.seconds, arguments.users, arguments.items, seed=1)
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as folder:
        config = TowlineConfig.model_validate(
            {
                "learning": {"preset": "throughput"},
                "trainer": {"metrics_port": ephemeral()},
                "serving": {"port": ephemeral()},
                "local": {"state_dir": Path(folder), "broker": "kafka"},
            }
        )
        stack = LocalStack(config, ephemeral_ports=True)
        try:
            endpoints = stack.start_servers()
            config = stack.connected()
            prepare_topics(config.kafka)
            stack.start_services()
            figures = measure(config, Replay(config.kafka, stream, arguments.rate))
        finally:
            stack.stop()
    print(json.dumps({**figures, "broker": endpoints.broker_name, "store": endpoints.store_name, **facts()}))


def measure(config: TowlineConfig, replay: Replay) -> dict[str, object]:
    """Start the replay when the trainer answers; figures once everything is applied."""
    probe = FreshnessProbe("127.0.0.1", config.serving.port, replay)
    store = open_store(config.redis)
    metrics_url = f"http://{config.trainer.metrics_host}:{config.trainer.metrics_port}/metrics"
    observer = Observer(store, metrics_url, replay, probe)
    pace = threading.Event()
    while not observer.trainer_answers():
        pace.wait(0.2)
    replay.start()
    probe.start()
    while replay.is_alive() or observer.look().applied < replay.sent:
        observer.look()
        pace.wait(0.2)
        if replay.error is not None:
            raise replay.error
    probe.stop()
    store.close()
    return {
        "events_per_s": round(replay.total / seconds_of(observer), 1),
        "events": replay.sent,
        "probes": len(probe.waits_s),
        "freshness_p50_ms": probe.percentile_ms(50),
        "freshness_p90_ms": probe.percentile_ms(90),
        "freshness_p99_ms": probe.percentile_ms(99),
        "freshness_max_ms": probe.percentile_ms(100),
    }


def seconds_of(observer: Observer) -> float:
    """Seconds from the first event applied to the last."""
    if observer.first_s is None or observer.last_s is None:
        raise RuntimeError("nothing was applied")
    return max(1e-9, observer.last_s - observer.first_s)


if __name__ == "__main__":
    main()
