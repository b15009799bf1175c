"""All benchmarks one after the other, and the page of their figures: `make bench`.

Each is run as its own make target would; the figures of its last line are kept in docs/benchmarks.json, with the day,
the commit and the machine, and docs/BENCHMARKS.md is written from that file. With names only those are run, and the
others' figures stay as they were: each row says of which run it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "benchmarks.json"
PAGE = ROOT / "docs" / "BENCHMARKS.md"
_MACHINE = ("cpu", "cores", "memory_gib", "load_1min", "python")

Goal = tuple[str, float]
"""(">=" or "<=", value)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the page: where it is in a benchmark's JSON object, what it means, what it should be."""

    path: str  # keys, separated by dots
    meaning: str
    goal: Goal | None = None

    def of(self, found: Mapping[str, Any]) -> float | None:
        """Its value; None where that run had none."""
        value: Any = found
        for key in self.path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A program and what is shown of it."""

    arguments: tuple[str, ...]  # python -m …
    about: str
    figures: tuple[Figure, ...]


BENCHMARKS: dict[str, Benchmark] = {
    "store": Benchmark(
        ("benchmarks.store",),
        "lookup and apply of 4,096 of a million rows of 64 dimensions",
        (
            Figure("lookup_apply_over_floor", "time over that of memory and socket alone, SGD", ("<=", 2)),
            Figure("stock_over_module_server_cpu", "server's processor time, MGET + MSET over the module", (">=", 12)),
            Figure("bytes_over_payload", "bytes of a row over vector and state, SGD", ("<=", 1.45)),
            Figure("adagrad_bytes_over_payload", "the same, Adagrad", ("<=", 1.25)),
            Figure("growth_worst_call_ms", "longest call while growing to ten million rows, ms", ("<=", 5)),
            Figure("wire_bytes_over_tfra", "bytes on the wire over TFRA's", ("<=", 0.4)),
            Figure("of_shards.client_us_of_a_shard", "client's processor time for one more shard of a table, µs"),
            Figure("lost", "updates lost", ("<=", 0)),
        ),
    ),
    "learning": Benchmark(
        ("benchmarks.learning",),
        "MovieLens 100K, tested, then learned",
        (
            Figure("hr10", "HR@10 of the default", (">=", 0.205)),
            Figure("hr10_late", "the same over the last half", (">=", 0.21)),
            Figure("hr10_late_frozen", "last half, a copy that stopped learning after the warm-up"),
            Figure("kafka_hr10", "through Kafka, Redis and one trainer", (">=", 0.203)),
            Figure("two_trainers_hr10", "the same with two trainers"),
            Figure("peers.item_knn", "HR@10 of itemKNN"),
            Figure("peers.popularity", "HR@10 of decayed popularity"),
            Figure("peers.isgd", "HR@10 of ISGD"),
            Figure("events_per_s", "quality, events a second of processor time", (">=", 2000)),
            Figure("presets.throughput.events_per_cpu_s", "throughput, likewise", (">=", 20000)),
        ),
    ),
    "trainer": Benchmark(
        ("benchmarks.trainer",),
        "two towers 64 → 64 → 32 beside TFRA on Redis, examples a second",
        (
            Figure("full_over_peer", "softmax over the whole batch, both sides", (">=", 1.2)),
            Figure("grouped_over_peer", "ours in groups of 512 over the peer as used", (">=", 6)),
            Figure("grouped_over_peer_grouped", "both in groups of 512", (">=", 2)),
            Figure("examples_per_s", "ours in groups"),
            Figure("peer_examples_per_s", "the peer as used"),
            Figure("hr10_grouped", "HR@10 in groups"),
            Figure("hr10_full", "HR@10 over the whole batch"),
        ),
    ),
    "e2e": Benchmark(
        ("benchmarks.e2e",),
        "Kafka, Redis, trainer and serving on one machine",
        (
            Figure("cpu_us_per_event.no_dense", "processor time an event, no layers, µs", ("<=", 2.5)),
            Figure("cpu_us_per_event.dense", "with towers 64 → 64 → 32", ("<=", 5)),
            Figure("cpu_us_per_event.history", "with histories of 20 items", ("<=", 6)),
            Figure("cpu_us_per_event.dense_kafka_python", "with layers, by the default client"),
            Figure("cpu_us_per_event.single_kafka_python", "the same, one event a record", ("<=", 14)),
            Figure("cpu_us_per_event.single_librdkafka", "the same, by librdkafka"),
            Figure("events_per_s.no_dense", "events a second, no layers", (">=", 500_000)),
            Figure("events_per_s.dense", "with layers", (">=", 200_000)),
            Figure("events_per_s.history", "with histories", (">=", 200_000)),
            Figure("events_per_s.dense_kafka_python", "with layers, by the default client"),
            Figure("events_per_s.single_kafka_python", "the same, one event a record", (">=", 80_000)),
            Figure("live_events_per_s", "rate of the live part", (">=", 100_000)),
            Figure("freshness_p50_ms", "event sent to answer over HTTP, median, ms", ("<=", 20)),
            Figure("freshness_p99_ms", "the same, 99th percentile", ("<=", 75)),
        ),
    ),
    "freshness": Benchmark(
        ("benchmarks.freshness",),
        "freshness at a moderate rate, as the demo is set up",
        (
            Figure("events_per_s", "events a second"),
            Figure("freshness_p50_ms", "event sent to answer over HTTP, median, ms"),
            Figure("freshness_p99_ms", "the same, 99th percentile"),
        ),
    ),
    "scale": Benchmark(
        ("benchmarks.scale", "--plots", str(ROOT / "docs")),
        "processor time of an event as tables grow",
        (
            Figure("most_over_least_by_rows", "dearest over cheapest, 100,000 to 10,000,000 rows", ("<=", 1.3)),
            Figure("largest_over_smallest_table", "at the most over at the least rows", ("<=", 1.15)),
        ),
    ),
    "serving": Benchmark(
        ("benchmarks.serving",),
        "the HTTP service",
        (
            Figure("lookup_over_hello", "rate of embedding look-ups over FastAPI's hello-world", (">=", 0.8)),
            Figure("raw_batch_per_core_s", "raw batches of 256 a second of processor time", (">=", 4000)),
            Figure("recommend_100k_per_core_s", "recommendations of 100,000 items, likewise", (">=", 800)),
            Figure("recommend_100k_p99_ms", "their 99th percentile at half load, ms", ("<=", 10)),
            Figure("recommend_1m_exact_p99_ms", "of 1,000,000 items at 20 a second", ("<=", 40)),
            Figure("update_visible_p99_ms", "an item's update in recommendations, 99th percentile, ms", ("<=", 100)),
            Figure("stale_recovery_s", "fresh again after the store is back, s", ("<=", 2)),
            Figure("failed_on_sigterm", "requests that failed on SIGTERM", ("<=", 0)),
        ),
    ),
    "knobs": Benchmark(
        ("benchmarks.knobs",),
        "two trainers beside one",
        (
            Figure("cpu_of_several_over_one", "trainers' processor time an event, two over one", ("<=", 1.15)),
            Figure("hr10_of_several_minus_one", "HR@10 of two less that of one", (">=", -0.005)),
        ),
    ),
}


def main() -> None:
    """Run, keep and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; none: all")
    parser.add_argument("--page-only", action="store_true", help="write the page from the figures that are there")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    failed = []
    for name in [] if arguments.page_only else arguments.names or list(BENCHMARKS):
        print(f"== {name}: {BENCHMARKS[name].about}", file=sys.stderr, flush=True)
        found = _run(BENCHMARKS[name].arguments)
        if found is None:
            failed.append(name)
            continue
        kept[name] = {"day": _today(), "commit": _commit(), **found}
        FIGURES.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(kept))
    print(json.dumps({"run": _today(), "failed": failed, "page": str(PAGE.relative_to(ROOT))}))
    if failed:
        raise SystemExit(f"{', '.join(failed)} failed; what they said is above, and their figures are older ones")


def _run(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The figures; None if it failed, as one that does must not keep the others from running."""
    done = subprocess.run([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode:
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _commit() -> str:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return told.stdout.strip()


def page(kept: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/BENCHMARKS.md. Pure."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench` from docs/benchmarks.json, which has every figure of every run. Absolute times are of",
        "one machine on one day; ratios are taken side by side in one run. A goal that is missed stands as it is.",
    ]
    for name, benchmark in BENCHMARKS.items():
        if (found := kept.get(name)) is None:
            continue
        machine = found.get("machine", found)
        facts = ", ".join(f"{key} {machine[key]}" for key in _MACHINE if key in machine)
        lines += ["", f"## {name}: {benchmark.about}", "", f"{found['day']}, commit {found['commit']}; {facts}", ""]
        lines += ["| | measured | goal | |", "|---|---|---|---|"]
        for figure in benchmark.figures:
            if (value := figure.of(found)) is None:
                continue
            goal = "" if figure.goal is None else f"{_SIGNS[figure.goal[0]]} {figure.goal[1]:,}"
            kept_to = "" if figure.goal is None or _met(value, figure.goal) else "missed"
            lines.append(f"| {figure.meaning} | {_shown(value)} | {goal} | {kept_to} |")
        if name == "scale":
            lines += ["", "![processor time of an event](scale.png)"]
    return "\n".join(lines) + "\n"


_SIGNS = {">=": "≥", "<=": "≤"}


def _met(value: float, goal: Goal) -> bool:
    return value >= goal[1] if goal[0] == ">=" else value <= goal[1]


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()
