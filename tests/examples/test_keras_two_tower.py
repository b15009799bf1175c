"""The documented example is short, and it learns."""

from pathlib import Path

import keras
import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from examples import keras_two_tower
from tests.servers import server_names


@pytest.fixture(params=["memory", pytest.param(server_names()[0], marks=pytest.mark.servers)])
def store(request, server_of):
    if request.param == "memory":
        yield MemoryStore()
        return
    server = server_of(request.param)
    server.command("FLUSHALL")
    opened = open_store(RedisSettings(url=server.url))
    yield opened
    opened.close()


def test_under_forty_lines_of_code():
    text = Path(keras_two_tower.__file__).read_text(encoding="utf-8")
    body = text.split('"""', 2)[2]  # without the module's docstring
    lines = [line.strip() for line in body.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    assert len(code) < 40


def test_the_loss_falls(store):
    """Users like one of eight groups of items: chance is ln(128), knowing the group is far below."""
    keras.utils.set_random_seed(0)  # Keras draws its weights from the process otherwise
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(80):
        users = rng.integers(0, 200, 128)
        batches.append((users, 10 * (users % 8) + rng.integers(0, 10, 128)))
    losses = keras_two_tower.train(store, batches)
    first, last = np.mean(losses[:5]), np.mean(losses[-10:])
    assert first > 4.5
    assert last < first - 1.0
    assert {tuple(s.offsets.values()) for s in store.status("item")} == {(80,)}
    assert sum(s.rows for s in store.status("item")) == 80
    rows = store.lookup("user", np.arange(200, dtype=np.uint64))
    assert rows.found.all()
    assert rows.count.sum() == 80 * 128
