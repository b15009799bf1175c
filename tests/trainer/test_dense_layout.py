"""A store's dense parameters are never taken for those of another layout."""

import numpy as np
import pytest

from embedding_store.errors import SpecConflict, UnknownTable
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from ingest.columns import Partition
from ingest.listed import ListedSource
from tests.flushes import flush_of
from tests.trainer.small import SOURCE, declare
from trainer.dense import DenseWorker
from trainer.dense_layout import check_dense_layout
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

MODEL = ModelSettings(dim=4, history_length=5, seen_length=8)
OTHERS = {
    "history_length": MODEL.model_copy(update={"history_length": 6}),
    "successors": MODEL.model_copy(update={"successors": 8}),
    "clocks": MODEL.model_copy(update={"clocks": (0.5,)}),
    "dense_layers": MODEL.model_copy(update={"dense_layers": (3,)}),
    "learned_gates": MODEL.model_copy(update={"learned_gates": False, "dense_layers": (3,)}),
}


def learned() -> MemoryStore:
    """A store whose dense parameters have moved."""
    store = MemoryStore()
    declare(store, MODEL)
    store.publish_model(MODEL.document())
    worker = DenseWorker(store, MODEL, 0.05)
    worker.read()
    worker.step(np.ones(worker.size, np.float32), 1)
    rows, keys = worker.delta(10, "sum")
    store.apply("dense", flush_of(keys.tolist(), 0, 10, gradients=rows, events=10, source=SOURCE))
    return store


@pytest.mark.parametrize("name", OTHERS)
def test_another_layout_is_refused_with_both_values(name):
    with pytest.raises(SpecConflict, match=rf"{name} was .* and is .*set them in \[model\] as they were"):
        check_dense_layout(learned(), OTHERS[name])


def test_a_worker_refuses_it_before_it_publishes_its_model():
    store = learned()
    source = ListedSource({Partition("clicks", 0): [b'{"user_id":1,"item_id":2}']})
    with pytest.raises(SpecConflict):
        Worker(store, source, OTHERS["history_length"], TrainerSettings(replay=0), Metrics()).step()
    with pytest.raises(SpecConflict):
        Worker(store, source, OTHERS["successors"], TrainerSettings(replay=0), Metrics()).step()
    assert store.published_model() == MODEL.document()
    with pytest.raises(UnknownTable):
        store.spec("next")


def test_what_leaves_the_layout_alone_may_change_and_so_may_all_of_an_empty_store():
    check_dense_layout(learned(), MODEL)
    check_dense_layout(learned(), MODEL.model_copy(update={"clocks": (0.8, 0.4), "popularity_weight": 0.1}))
    empty = MemoryStore()
    declare(empty, MODEL)
    empty.publish_model(MODEL.document())
    for other in OTHERS.values():
        check_dense_layout(empty, other)
    check_dense_layout(MemoryStore(), MODEL)
