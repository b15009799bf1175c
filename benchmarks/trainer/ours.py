"""The same on Towline: a worker on the store's module, records from memory. Prints one JSON object.

It does more than the peer: decodes JSON, checks ids, keeps histories and statistics, masks a user's own items, corrects
by −log q, is guarded, and applies exactly once.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.trainer.data import Ids
from embedding_store.model import ModelSettings
from embedding_store.open import open_store
from embedding_store.regularization import NoRegularization
from embedding_store.settings import RedisSettings
from embedding_store.spec import Adam
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from trainer.metrics import Metrics
from trainer.prequential import Tests
from trainer.settings import TrainerSettings
from trainer.warm_up import warm_up
from trainer.worker import Worker

MODEL = ModelSettings(
    dim=64,
    clocks=(0.9,),
    history_length=1,
    seen_length=20,
    learned_gates=False,
    user_id_vector=True,
    dense_layers=(64, 32),
    optimizer=Adam(learning_rate=0.01),
    regularization=NoRegularization(),
    shards=1,
)
_K = 10
PER_RECORD = 64
"""Events."""


def main() -> None:
    """Learn for some micro-batches and print how long they took, or how well they were foretold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", type=Path)
    parser.add_argument("--store", required=True, help="URL of a server with the module that is empty")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--group", type=int, default=4096)
    parser.add_argument("--warm-up", type=int, default=20, help="micro-batches that are not timed")
    parser.add_argument("--steps", type=int, default=100, help="micro-batches that are timed")
    parser.add_argument("--evaluate", type=float, default=0.0, help="share of events tested before they are learned")
    arguments = parser.parse_args()
    batch, number = arguments.batch, arguments.warm_up + arguments.steps
    ids = Ids.load(arguments.ids)
    if len(ids.user) < number * batch:
        parser.error(f"{len(ids.user)} ids are not enough for {number} micro-batches of {batch}")
    partition = Partition("trainer", 0)
    starts = range(0, number * batch, PER_RECORD)
    records = [ids.record(start, start + PER_RECORD) for start in starts]
    ingest = IngestSettings(batch_events=batch // PER_RECORD)  # this source counts records
    settings = TrainerSettings(
        passes=1, update_events=0, replay=0, replay_drop=0.0, group=arguments.group, label_smoothing=0.0,
        evaluate_share=arguments.evaluate, evaluate_k=_K, dense_version_every_s=0.0,
    )  # fmt: skip
    warm_up(MODEL, settings, ingest)
    store = open_store(RedisSettings(url=arguments.store, backend="module"))
    source, tests = ListedSource({partition: records}, ingest), list[Tests]()
    worker = Worker(store, source, MODEL, settings, Metrics(), observe=tests.append)
    took = []
    while not source.exhausted:
        started = time.perf_counter()
        worker.step()
        took.append(time.perf_counter() - started)
    worker.leave()
    learned = min(status.clock for status in store.status("item"))
    if learned != number * batch:
        raise RuntimeError(f"{learned} events are in the store, {number * batch} were to be learned")
    ranks = np.concatenate([np.zeros(0), *(test.ranks for test in tests)])
    late = ranks[len(ranks) // 2 :]
    hit = None if not len(late) else float((late <= _K).mean())
    print(json.dumps({"seconds_each": took[arguments.warm_up :], "hr10": hit, "tests": len(late)}))


if __name__ == "__main__":
    main()
