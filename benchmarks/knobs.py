"""What the two knobs cost and give: apply_every × dense_sync_every against events/s, CPU and HR@10, with two trainers.

Each cell replays MovieLens 100K, or its first --events, through Kafka, Redis and --trainers trainer processes of its
own, as fast as it goes, with dense layers and every positive measured before it is learned. Before them, two cells
without dense layers, of one trainer and of --trainers: what sharing the stream costs. Rows of a table go to standard
error as they come; the last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import watched
from benchmarks.local import end_on_sigterm, servers
from benchmarks.machine import cpu_s, facts
from embedding_store.contract import EmbeddingStore
from infra.config import TowlineConfig
from infra.demo import movielens
from infra.demo.movielens import Ratings
from infra.demo.replay import Replay
from infra.local import process, services

START_TIMEOUT_S = 180.0
REPLAY_TIMEOUT_S = 1800.0
LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay under one setting of the knobs."""

    trainers: int
    dense_layers: list[int]
    apply_every: int
    dense_sync_every: int
    events_per_s: float  # from the first event applied to the last
    cpu_us_per_event: float  # of all trainers together
    hr10: float
    tests: int
    staleness_mean_events: float


def main() -> None:
    """Replay every cell and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apply-every", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--dense-sync-every", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--batch-events", type=int, default=256)
    parser.add_argument("--dense-layers", type=int, nargs="*", default=[64])
    arguments = parser.parse_args()
    ratings = movielens.load()
    stream = Ratings(*(getattr(ratings, name)[: arguments.events] for name in ("user", "item", "rating", "time_ms")))
    columns = ("trainers", "dense layers", "apply_every", "dense_sync_every", "events/s", "CPU µs/event", "HR@10")
    _tell("| " + " | ".join((*columns, "staleness")) + " |")
    _tell("|---" * 8 + "|")

    def cell(trainers: int, dense_layers: list[int], apply_every: int, dense_sync_every: int) -> Cell:
        knobs = {"apply_every": apply_every, "dense_sync_every": dense_sync_every}
        found = replayed(stream, arguments.preset, trainers, arguments.batch_events, dense_layers, knobs)
        _tell(
            f"| {trainers} | {dense_layers or 'none'} | {apply_every} | {dense_sync_every} | {found.events_per_s:,.0f} "
            f"| {found.cpu_us_per_event:.0f} | {found.hr10:.4f} | {found.staleness_mean_events:.0f} |"
        )
        return found

    one, several = (cell(trainers, [], 1, 1) for trainers in (1, arguments.trainers))
    knobs = itertools.product(arguments.apply_every, arguments.dense_sync_every)
    cells = [cell(arguments.trainers, arguments.dense_layers, *values) for values in knobs]
    answer = {
        "preset": arguments.preset,
        "events": arguments.events,
        "hr10_of_several_minus_one": round(several.hr10 - one.hr10, 4),
        "cpu_of_several_over_one": round(several.cpu_us_per_event / one.cpu_us_per_event, 3),
        "cells": list(map(asdict, (one, several, *cells))),
    }
    print(json.dumps(answer | facts()))


def _tell(row: str) -> None:
    print(row, file=sys.stderr, flush=True)


def replayed(
    stream: Ratings, preset: str, trainers: int, batch_events: int, dense_layers: list[int], knobs: dict[str, int]
) -> Cell:
    """One cell on servers and with processes of its own, all of which are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="towline-knobs-") as folder:
        config = TowlineConfig.model_validate(
            {
                "kafka": {"partitions": 2 * trainers},
                "learning": {"preset": preset},
                "ingest": {"batch_events": batch_events},
                "model": {"dense_layers": dense_layers},
                "trainer": {"evaluate_share": 1.0, "metrics_port": watched.ports(trainers), **knobs},
                "local": {"state_dir": Path(folder), "broker": "kafka"},
            }
        )
        with servers(config) as own:
            own.started.extend(services.trainer(own.config, number).start() for number in range(trainers))
            return _measured(own.config, own.store, Replay(own.config.kafka, stream, 0), own.started)


def _measured(
    config: TowlineConfig, store: EmbeddingStore, replay: Replay, started: list[process.ProcessRecord]
) -> Cell:
    ports = [config.trainer.metrics_port + number for number in range(len(started))]
    pace = threading.Event()
    deadline = time.monotonic() + START_TIMEOUT_S
    # each has its share: a trainer that joins in the middle would cost a rebalance
    while any(watched.metrics(p).get("towline_trainer_partitions", 0) != 2 for p in ports) or watched.clock(store) < 0:
        watched.check(started, deadline)
        pace.wait(LOOK_EVERY_S)
    used_s = sum(cpu_s(record.pid) for record in started)
    replay.start()
    first_s = last_s = 0.0
    applied = 0
    deadline = time.monotonic() + REPLAY_TIMEOUT_S
    while replay.is_alive() or applied < replay.sent:
        watched.check(started, deadline)
        if replay.error is not None:
            raise replay.error
        clock = watched.clock(store)
        if clock > applied:
            applied, last_s = clock, time.monotonic()
            first_s = first_s or last_s
        pace.wait(LOOK_EVERY_S)
    used_s = sum(cpu_s(record.pid) for record in started) - used_s
    seen = list(map(watched.metrics, ports))

    def total(name: str) -> float:
        return sum(values.get(name, 0.0) for values in seen)

    tests = total("towline_prequential_tests")
    read = total("towline_trainer_staleness_events_count")
    return Cell(
        trainers=len(started),
        dense_layers=list(config.model.dense_layers),
        apply_every=config.trainer.apply_every,
        dense_sync_every=config.trainer.dense_sync_every,
        events_per_s=round(applied / max(LOOK_EVERY_S, last_s - first_s), 1),
        cpu_us_per_event=round(1e6 * used_s / max(1, applied), 1),
        hr10=round(total("towline_prequential_hits{model}") / max(1.0, tests), 4),
        tests=int(tests),
        staleness_mean_events=round(total("towline_trainer_staleness_events_sum") / max(1.0, read), 1),
    )


if __name__ == "__main__":
    main()
