"""`make chaos`: a cluster of real processes to which everything happens, and a check that nothing was lost or doubled.

The last line is one JSON object. Exit code 1: something was; then the folder with logs, faults and findings is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ingest.settings import CLIENTS
from tests.chaos.plan import Plan
from tests.chaos.run import run


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=420.0, help="how long faults go on")
    parser.add_argument("--faults", type=int, default=1_000_000, help="at most so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eviction", choices=("on", "off"), default="off")
    parser.add_argument("--backend", choices=("stock", "module"), default="module")
    parser.add_argument("--model", choices=("linear", "towers"), default="linear")
    parser.add_argument("--client", choices=CLIENTS, default="kafka-python", help="what trainers read Kafka with")
    parser.add_argument("--features", choices=("on", "off"), default="on", help="of items, users and requests")
    parser.add_argument("--rate", type=float, default=250.0, help="events per second")
    parser.add_argument("--folder", type=Path, help="kept in any case; default: a temporary one")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # all that runs is stopped on the way out
    folder = given.folder or Path(tempfile.mkdtemp(prefix="towline-chaos-"))
    plan = Plan(
        folder=folder.resolve(),
        seed=given.seed,
        seconds=given.seconds,
        most_faults=given.faults,
        eviction=given.eviction == "on",
        backend=given.backend,
        model=given.model,
        client=given.client,
        features=given.features == "on",
        events_per_s=given.rate,
    )
    verdict, last_line = run(plan)
    if verdict.clean:
        if given.folder is None:
            shutil.rmtree(folder)
    else:
        for subject, found in verdict.violations.items():
            print(f"{subject}: {verdict.numbers[subject]}, the first ones:", *found[:5], sep="\n  ", file=sys.stderr)
        print(f"seed {plan.seed}; faults, logs and findings are in {folder}", file=sys.stderr)
    print(json.dumps(last_line))
    return 0 if verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
