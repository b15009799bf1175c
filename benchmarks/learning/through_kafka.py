"""The same stream through the whole product: Apache Kafka, Redis with the module, trainer processes.

Events come in the protocol's order, one partition a trainer, a user's all in one of them. The producer is at most
`AHEAD` events ahead of what every shard has: trainers find full micro-batches, and none is further than that ahead of
the others in the stream's time. Between the warm-up and the rest all is applied and the trainers' counters are read.
HR@10 is hits over tests from there on, summed over the trainers: every event of the rest is one test of one of them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks import watched
from benchmarks.local import Servers, servers
from benchmarks.machine import cpu_s
from infra.config import TowlineConfig
from infra.local import services
from ingest.producer import Event, EventProducer
from trainer.backtest.stream import Stream

AHEAD = 1024
START_TIMEOUT_S = 300.0
REPLAY_TIMEOUT_S = 1800.0
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class ThroughKafka:
    """What the tests after the warm-up gave."""

    hr10: float
    hr10_popularity: float
    tests: int
    events_per_s: float
    cpu_us_per_event: float  # of the trainers


class _Counted(NamedTuple):
    tests: int
    hits: int
    popular: int


def through_kafka(stream: Stream, preset: str, trainers: int, warmup: float) -> ThroughKafka:
    """Replay positives that occur once per user and item, on servers and with processes of its own. Raises RuntimeError
    if a trainer ends, or if not every event was one test."""
    with tempfile.TemporaryDirectory(prefix="towline-learning-") as folder:
        config = TowlineConfig.model_validate(
            {
                "kafka": {"partitions": trainers},
                "learning": {"preset": preset},
                "trainer": {"evaluate_share": 1.0, "metrics_port": watched.ports(trainers)},
                "redis": {"backend": "module"},
                "local": {"state_dir": Path(folder), "broker": "kafka"},
            }
        )
        with servers(config) as own:
            own.started.extend(services.trainer(own.config, number).start() for number in range(trainers))
            return _measured(own, stream, trainers, int(warmup * len(stream)))


def _measured(own: Servers, stream: Stream, trainers: int, warmup: int) -> ThroughKafka:
    ports = [own.config.trainer.metrics_port + number for number in range(trainers)]
    pace, deadline_s = threading.Event(), time.monotonic() + START_TIMEOUT_S
    # each has its partition: a trainer that joins in the middle would cost a rebalance
    while any(watched.metrics(p).get("towline_trainer_partitions") != 1 for p in ports) or watched.clock(own.store) < 0:
        watched.check(own.started, deadline_s)
        pace.wait(_LOOK_EVERY_S)
    deadline_s = time.monotonic() + REPLAY_TIMEOUT_S

    def counted(sent: int) -> _Counted:
        """Once every event sent is a test that was told."""
        while True:
            seen = list(map(watched.metrics, ports))
            names = ("tests", "hits{model}", "hits{popularity}")
            totals = [int(sum(values.get(f"towline_prequential_{name}", 0) for values in seen)) for name in names]
            if totals[0] == sent:
                return _Counted(*totals)
            if totals[0] > sent:
                raise RuntimeError(f"{totals[0]} tests of {sent} events: some were read twice")
            watched.check(own.started, deadline_s)
            pace.wait(_LOOK_EVERY_S)

    rows = zip(stream.users, stream.items, stream.time_ms.tolist(), strict=True)
    before, applied, started_s, used_s = _Counted(0, 0, 0), 0, 0.0, 0.0
    with EventProducer(own.config.kafka) as producer:
        for sent, (user, item, time_ms) in enumerate(rows):
            if sent == warmup:
                producer.flush()
                before = counted(sent)
                started_s, used_s = time.monotonic(), sum(cpu_s(record.pid) for record in own.started)
            while sent - applied >= AHEAD:
                watched.check(own.started, deadline_s)
                applied = watched.clock(own.store)
                if sent - applied >= AHEAD:
                    pace.wait(_LOOK_EVERY_S)
            producer.send(Event(user, item, timestamp=time_ms))
        producer.flush()
    after = counted(len(stream))
    wall_s, used_s = time.monotonic() - started_s, sum(cpu_s(record.pid) for record in own.started) - used_s
    tests = after.tests - before.tests
    return ThroughKafka(
        hr10=round((after.hits - before.hits) / tests, 5),
        hr10_popularity=round((after.popular - before.popular) / tests, 5),
        tests=tests,
        events_per_s=round(tests / wall_s, 1),
        cpu_us_per_event=round(1e6 * used_s / tests, 1),
    )
