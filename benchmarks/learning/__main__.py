"""How well the shipped model recommends, beside what else is run on streams, in one run: `make bench-learning`.

1. MovieLens 100K, ratings of 4 and more, by the prequential protocol (`trainer.backtest`), with every preset
2. the peers, over the same events, candidates and tests
3. made-up streams (`tests.streams`), default and simple peers
4. the default through Kafka, Redis with the module and trainer processes, one and two (`through_kafka`)
5. a check that the stream is in order: the RMSE of biased matrix factorization over all ratings

One core, but for 4: events/s are per second of processor time of a process that has one thread. The last line is one
JSON object.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # before NumPy is imported
    os.environ[_name] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import importlib.util
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.learning.peers import PEERS, biased_mf
from benchmarks.learning.through_kafka import through_kafka
from benchmarks.local import end_on_sigterm
from benchmarks.machine import facts
from infra.config import TowlineConfig
from infra.demo import movielens
from infra.presets import PRESETS
from tests.streams import HARD, LAWS, Made, make
from trainer.backtest.plot import plot
from trainer.backtest.replayed import replay
from trainer.backtest.report import figures, report
from trainer.backtest.stream import Stream
from trainer.warm_up import warm_up

WARMUP = 0.2
SEEDS = (1, 2)
"""Of the default's further runs: of rows, draws and drops alike. The first is as shipped."""
SIMPLE = ("popularity", "markov", "item_knn")
START_MS = 1_600_000_000_000


def configured(preset: str) -> TowlineConfig:
    """The shipped settings of a preset."""
    return TowlineConfig.model_validate({"learning": {"preset": preset}})


def backtest(stream: Stream, config: TowlineConfig, *, frozen: bool) -> dict[str, Any]:
    """The report of one run, kernels compiled before."""
    warm_up(config.model, config.trainer, config.ingest)
    return report(replay(stream, config.model, config.trainer, config.ingest, warmup=WARMUP, frozen=frozen))


def seeded(config: TowlineConfig, seed: int) -> TowlineConfig:
    """The same settings with other random numbers."""
    model = config.model.model_copy(update={"seed": config.model.seed + seed})
    return config.model_copy(update={"model": model, "trainer": config.trainer.model_copy(update={"seed": seed})})


def spread(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and each of the runs' HR@10, in all and late."""
    found: dict[str, Any] = {}
    for key in ("hr10", "hr10_late"):
        each = [run[key] for run in runs]
        found[key] = {"mean": round(float(np.mean(each)), 5), "each": each}
    return found


def peers(stream: Stream, names: tuple[str, ...]) -> dict[str, dict[str, float | None]]:
    """Figures of each peer over the same tests."""
    users = np.unique(np.array(stream.users), return_inverse=True)[1].astype(np.int64)
    items = np.unique(np.array(stream.items), return_inverse=True)[1].astype(np.int64)
    pairs: set[tuple[int, int]] = set()
    tested = np.zeros(len(users), np.bool_)
    for n, pair in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
        tested[n] = pair not in pairs  # what a user has is not recommended again
        pairs.add(pair)
    tested[: int(WARMUP * len(users))] = False
    late = np.arange(len(users)) >= len(users) // 2
    found = {}
    for name in names:
        started = time.process_time()
        ranks = PEERS[name](users, items, int(users.max()) + 1, int(items.max()) + 1)
        found[name] = {**figures(ranks[tested], late[tested]), "cpu_s": round(time.process_time() - started, 1)}
    return found


def synthetic(events: int, config: TowlineConfig, people: Console) -> dict[str, dict[str, float | None]]:
    """HR@10 of default and simple peers on each made-up stream."""
    found = {}
    for name, law in (LAWS | HARD).items():
        made = make(replace(law, events=events))
        stream = as_stream(made)
        row = {peer: values["hr10"] for peer, values in peers(stream, SIMPLE).items()}
        row["default"] = backtest(stream, config, frozen=False)["hr10"]
        found[name] = row
        people.print(f"{name}: {row}", highlight=False)
    return found


def product(stream: Stream, people: Console) -> dict[str, Any]:
    """The default through the whole product, by one trainer and by two."""
    found = {}
    for name, trainers in (("one_trainer", 1), ("two_trainers", 2)):
        found[name] = asdict(through_kafka(stream, "quality", trainers, WARMUP))
        people.print(f"Kafka, Redis with the module, {name}: {found[name]}", highlight=False)
    return {
        "kafka_hr10": found["one_trainer"]["hr10"],
        "two_trainers_hr10": found["two_trainers"]["hr10"],
        "through_kafka": found,
    }


def as_stream(made: Made) -> Stream:
    """A made-up stream, an event a second."""
    n = len(made.users)
    times = START_MS + 1000 * np.arange(n, dtype=np.int64)
    return Stream(made.users.tolist(), made.items.tolist(), times, np.ones(n, np.bool_))


def in_order(ratings: movielens.Ratings) -> dict[str, float]:
    """RMSE in stream order; river's own where it is installed."""
    users = np.unique(ratings.user, return_inverse=True)[1].astype(np.int64)
    items = np.unique(ratings.item, return_inverse=True)[1].astype(np.int64)
    found = {"biased_mf": round(float(biased_mf(users, items, ratings.rating, users.max() + 1, items.max() + 1)), 4)}
    if importlib.util.find_spec("river"):
        from river import metrics, reco  # type: ignore[import-not-found]  # noqa: PLC0415

        model, rmse = reco.BiasedMF(n_factors=10, latent_optimizer=None, seed=0), metrics.RMSE()
        for user, item, rating in zip(users.tolist(), items.tolist(), ratings.rating.tolist(), strict=True):
            rmse.update(rating, model.predict_one(user, item))
            model.learn_one(user, item, y=rating)
        found["river_biased_mf"] = round(rmse.get(), 4)
    return found


def main() -> None:
    """Run once and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic-events", type=int, default=10_000, help="of each made-up stream; 0: none")
    parser.add_argument("--plot", type=Path, help="PNG of HR@10 over time")
    parser.add_argument("--only-synthetic", action="store_true", help="the made-up streams alone")
    parser.add_argument("--only-kafka", action="store_true", help="the whole product alone")
    parser.add_argument("--no-kafka", action="store_true", help="all but the whole product")
    arguments = parser.parse_args()
    end_on_sigterm()
    people = Console(stderr=True)
    if arguments.only_synthetic:
        made = synthetic(arguments.synthetic_events, configured("quality"), people)
        print(json.dumps({"synthetic": made, "machine": facts()}))
        return
    ratings = movielens.load()
    liked = ratings.rating >= movielens.POSITIVE
    stream = Stream(ratings.user.tolist(), ratings.item.tolist(), ratings.time_ms, liked)
    stream = stream.ordered(first_only=True, negatives=False)
    if arguments.only_kafka:
        print(json.dumps({**product(stream, people), "machine": facts()}))
        return

    quality = backtest(stream, configured("quality"), frozen=True)
    people.print(
        f"quality: {quality['hr10']}, late {quality['hr10_late']}, frozen {quality['frozen']}", highlight=False
    )
    presets = {}
    for name in PRESETS:
        done = backtest(stream, configured(name), frozen=False)
        presets[name] = {key: done[key] for key in ("hr10", "hr10_late", "ndcg10", "events_per_cpu_s", "events_per_s")}
        people.print(f"{name}: {presets[name]}", highlight=False)
    seeds = spread([quality] + [backtest(stream, seeded(configured("quality"), seed), frozen=False) for seed in SEEDS])
    people.print(f"seeds: {seeds}", highlight=False)
    others = peers(stream, tuple(PEERS))
    people.print(f"peers: {others}", highlight=False)
    made = synthetic(arguments.synthetic_events, configured("quality"), people) if arguments.synthetic_events else {}
    whole = {} if arguments.no_kafka else product(stream, people)
    document = {
        "tests": quality["tests"],
        "hr10": quality["hr10"],
        "hr10_late": quality["hr10_late"],
        "hr10_frozen": quality["frozen"]["hr10"],
        "hr10_late_frozen": quality["frozen"]["hr10_late"],
        "late_z_against_frozen": quality["frozen"]["late_z"],
        "ndcg10": quality["ndcg10"],
        "mrr": quality["mrr"],
        "events_per_s": presets["quality"]["events_per_cpu_s"],
        "seeds": seeds,
        "presets": presets,
        "peers": {name: values["hr10"] for name, values in others.items()},
        "peers_late": {name: values["hr10_late"] for name, values in others.items()},
        "synthetic": made,
        **whole,
        "order_check_rmse": in_order(ratings),
        "machine": facts(),
    }
    if arguments.plot:
        plot(quality["over_time"], arguments.plot)
    show(people, presets, others, quality)
    print(json.dumps(document))


def show(people: Console, presets: dict[str, Any], others: dict[str, Any], quality: dict[str, Any]) -> None:
    """A table for people."""
    table = Table("", "HR@10", "late", "events/s, one core")
    for name, row in presets.items():
        table.add_row(name, f"{row['hr10']:.4f}", f"{row['hr10_late']:.4f}", f"{row['events_per_cpu_s']:,.0f}")
    table.add_row(
        "quality, frozen copy", f"{quality['frozen']['hr10']:.4f}", f"{quality['frozen']['hr10_late']:.4f}", ""
    )
    for name, row in others.items():
        table.add_row(name, f"{row['hr10']:.4f}", f"{row['hr10_late']:.4f}", "")
    people.print(table)


if __name__ == "__main__":
    main()
