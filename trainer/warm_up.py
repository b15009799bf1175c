"""Everything a worker compiles, compiled before it takes partitions.

An event must not wait half a minute for a kernel.
"""

from __future__ import annotations

import logging
import time

import msgspec

from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

log = logging.getLogger(__name__)

_EVENTS = 64


def warm_up(model: ModelSettings, settings: TrainerSettings, ingest: IngestSettings) -> float:
    """Learn a few made-up events in a store in memory, with the very model and settings; returns seconds it took.

    Kernels are compiled into numba's cache on disk the first time, about half a minute, and loaded from it afterwards.
    """
    started = time.perf_counter()
    told = b',"features":' + msgspec.json.encode({one.name: 1 for one in model.features}) if model.features else b""
    event = b'{"user_id":"u%d","item_id":%d,"label":%d%s}'
    lines = [event % (i % 5, i % 7, i % 3 > 0, told) for i in range(_EVENTS)]
    few = ingest.model_copy(update={"codec": "json", "batch_events": 16})
    stream = ListedSource({Partition("warm-up", 0): lines}, few, features=model.feature_schema)
    every = settings.model_copy(update={"evaluate_share": 1.0, "dense_sync_every": 1, "alarm_file": ""})
    Worker(MemoryStore(), stream, model, every, Metrics()).run(lambda: stream.exhausted)
    seconds = time.perf_counter() - started
    log.info("kernels are ready after %.1f s", seconds)
    return seconds


if __name__ == "__main__":
    warm_up(ModelSettings(), TrainerSettings(), IngestSettings())
