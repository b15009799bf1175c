"""Sends a made-up stream at a rate, in a process of its own: `python -m benchmarks.e2e.feeder`, for `live`."""

from __future__ import annotations

import argparse
import json
import threading
import time

import numpy as np

from benchmarks.e2e.stream import Stream
from ingest.producer import EventProducer
from ingest.settings import KafkaSettings

TICK_S = 0.005


def feed(kafka: KafkaSettings, stream: Stream, rate: int, per_record: int) -> dict[str, float]:
    """Send each event no earlier than its time; when it began and ended, and the most events it was late with."""
    late, sent, pace = 0, 0, threading.Event()
    with EventProducer(kafka) as producer:
        began_s = time.monotonic()
        while sent < len(stream):
            due = min(len(stream), int((time.monotonic() - began_s) * rate))
            late = max(late, due - sent - int(2 * TICK_S * rate))
            if due > sent:
                now_ms = np.full(due - sent, time.time_ns() // 1_000_000)
                for partition, value in stream.part(sent, due).records(now_ms, kafka.partitions, per_record):
                    producer.send_raw(value, partition=partition)
                sent = due
            pace.wait(TICK_S)
        producer.flush()
        return {"began_s": began_s, "ended_s": time.monotonic(), "late_events": late}


def main() -> None:
    """Send once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    for name in ("rate", "events", "users", "items", "partitions", "per-record"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    kafka = KafkaSettings(bootstrap_servers=arguments.bootstrap_servers, partitions=arguments.partitions)
    stream = Stream.drawn(arguments.events, arguments.users, arguments.items, seed=2)
    print(json.dumps(feed(kafka, stream, arguments.rate, arguments.per_record)))


if __name__ == "__main__":
    main()
