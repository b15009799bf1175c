"""No request pays for compiling: what a service calls for somebody with a history is ready when it begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib, pkgutil
import native
import numpy as np
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from serving.service import Live
from tests.flushes import begin, flush_of

MODEL = ModelSettings(dim=8, history_length=4, successors={successors}, user_id_vector={user_vector})
store = MemoryStore()
for spec in MODEL.tables().values():
    begin(store, spec)
store.publish_model(MODEL.document())

def compiled():
    found = set()
    for info in pkgutil.iter_modules(native.__path__):
        module = importlib.import_module("native." + info.name)
        for name, value in vars(module).items():
            found |= {{(value.__module__, name, str(s)) for s in getattr(value, "signatures", ())}}
    return found

mirror = ItemMirror(store, MODEL)
mirror.refresh()
live = Live.of(store, MODEL.document(), MODEL, mirror)
live.warm_up()
before = compiled()
assert before
keys = list(range(1, 9))
store.apply("item", flush_of(keys, 0, 8, gradients=np.ones((8, 8)), counts=np.ones(8)))
appends = [(0, 1000 + i, i, key, 0, 1.0) for i, key in enumerate((1, 2, 3))]
store.apply("history", flush_of([7], 0, 8, counts=[8], appends=appends))
if "next" in MODEL.tables():
    store.apply("next", flush_of([3], 0, 8, counts=[1], appends=[(0, 1000, 5, 4, 0, 1.0)]))
mirror.refresh()
own = compiled()  # a mirror's kernels for rows that come are the refreshing thread's
users = live.ranker.users(np.array([7], np.uint64))
assert users.warm.all()
ranked = live.ranker.recommend_many(
    users.vectors, users.prior.astype(np.float32), [users.seen_keys], [3], [users.boost(0)]
)
assert len(ranked[0].keys) == 3
late = compiled() - own
assert not late, late
"""


@pytest.mark.parametrize(("successors", "user_vector"), [(0, False), (4, False), (4, True)])
def test_what_a_request_calls_is_compiled_before(successors: int, user_vector: bool) -> None:
    program = PROGRAM.format(successors=successors, user_vector=user_vector)
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
