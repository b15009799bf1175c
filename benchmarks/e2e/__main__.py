"""The whole product on this machine: Apache Kafka, Redis with the module, trainers, serving.

Replays a made-up topic by preset (`presets.py`), as fast as it goes, and then learns at a steady rate while probes
measure how long an event takes into an answer over HTTP. Processor time is that of all processes, broker and store
included. Rows of a table go to standard error as they come; the last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from benchmarks.e2e.live import live
from benchmarks.e2e.presets import LIVE, PRESETS
from benchmarks.e2e.replayed import Replayed, replay
from benchmarks.e2e.stream import WIDTH, Stream
from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts

MOST_LIVE = 100_000
"""Events a second that are aimed at."""


def main() -> None:
    """Run once and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="*", choices=list(PRESETS), default=list(PRESETS))
    parser.add_argument("--events", type=int, default=2_000_000, help="of a topic with 100 events a record")
    parser.add_argument("--single-events", type=int, default=400_000, help="of a topic with one")
    parser.add_argument("--seconds", type=float, default=20.0, help="a replay is measured for no longer")
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--trainers", type=int, help="of a replay, if not as the preset says")
    parser.add_argument("--live-trainers", type=int, default=1)
    parser.add_argument("--batch-events", type=int, help="of a micro-batch, if not as configured")
    parser.add_argument("--rate", type=int, help=f"live; default: half of what {LIVE} replays, at most {MOST_LIVE}")
    parser.add_argument("--live-seconds", type=int, default=60, help="0: no live part")
    parser.add_argument("--freshness-target-ms", type=int, help="live, if not as configured")
    arguments = parser.parse_args()
    stream = Stream.drawn(arguments.events, arguments.users, arguments.items)
    replays: dict[str, Replayed] = {}
    print("| preset | events/s | CPU µs/event | by process |", file=sys.stderr)
    print("|---|---|---|---|", file=sys.stderr)
    for name in arguments.presets:
        preset = PRESETS[name]
        shown = stream if preset.per_record > 1 else stream.part(0, arguments.single_events)
        trainers = arguments.trainers or preset.trainers
        replays[name] = found = replay(
            preset, shown, arguments.partitions, trainers, arguments.seconds, arguments.batch_events
        )
        shares = ", ".join(f"{who} {us:.2f}" for who, us in found.by_process.items())
        print(f"| {name} | {found.events_per_s:,.0f} | {found.cpu_us_per_event:.2f} | {shares} |", file=sys.stderr)
    figures: dict[str, object] = {
        "cpu_us_per_event": {name: found.cpu_us_per_event for name, found in replays.items()},
        "events_per_s": {name: found.events_per_s for name, found in replays.items()},
        "by_process": {name: found.by_process for name, found in replays.items()},
        "learned": {name: found.events for name, found in replays.items()},
        "trainers": {name: found.trainers for name, found in replays.items()},
        "event_bytes": WIDTH,
    }
    if arguments.live_seconds:
        rate = arguments.rate
        if rate is None:
            if LIVE not in replays:
                parser.error(f"name a --rate, or replay {LIVE} too: its half is the default")
            rate = int(min(MOST_LIVE, replays[LIVE].events_per_s / 2))
        sent = Stream.drawn(rate * arguments.live_seconds, arguments.users, arguments.items, seed=2)
        found = live(PRESETS[LIVE], sent, arguments.users, arguments.items, rate, arguments.partitions,
                     arguments.live_trainers, arguments.batch_events, arguments.freshness_target_ms)  # fmt: skip
        figures |= {"live_events_per_s": found.events_per_s, "freshness_p50_ms": found.freshness_p50_ms,
                    "freshness_p99_ms": found.freshness_p99_ms, "live": asdict(found)}  # fmt: skip
    print(json.dumps({**figures, **facts()}))


if __name__ == "__main__":
    main()
