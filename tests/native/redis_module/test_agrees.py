"""The table structure and the in-process store hold the same bits after the same calls."""

import numpy as np
import pytest

from embedding_store.contract import Flush, Range, Source
from embedding_store.memory import MemoryStore
from embedding_store.spec import Adagrad, Adam, Add, RowwiseAdagrad, Sgd, TableSpec
from native.ragged import Ragged
from tests.native.redis_module.loaded import KINDS, Table

OPTIMIZERS = {
    "add": Add(),
    "sgd": Sgd(),
    "adagrad": Adagrad(),
    "rowwise_adagrad": RowwiseAdagrad(),
    "adam": Adam(learning_rate=0.05),
}
SOURCE = Source("topic", 0)


@pytest.mark.parametrize(
    ("kind", "clip_norm"),
    [(kind, clip_norm) for kind in KINDS for clip_norm in (0.0, 1.5) if kind != "add" or not clip_norm],
)
def test_same_bits(library, kind, clip_norm):
    dim = 6
    spec = TableSpec(
        name="t", dim=dim, shards=1, seed=7, initial_std=0.1, optimizer=OPTIMIZERS[kind], clip_norm=clip_norm
    )
    store = MemoryStore()
    store.create(spec)
    store.seek("t", 0, SOURCE, None, 0, "new")
    table = Table(library, dim, kind, clip_norm=clip_norm)
    rng = np.random.default_rng(5)
    names = [b"%d" % k if k % 3 else b"name of %d" % k for k in range(300)]
    clock = 0
    for step in range(60):
        rows = rng.choice(300, rng.integers(0, 120), replace=False)
        n = len(rows)
        keys = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        counts = np.where(rng.random(n) < 0.4, rng.integers(1, 5, n), 0)
        positives = np.where(counts > 0, rng.random(n) * counts, 0).astype(np.float32)
        gradients = rng.normal(size=(n, dim)).astype(np.float32)
        gradients[rng.random(n) < 0.4] = 0
        # at times another id of the same key
        ids = [b"" if not c else names[r] + b"'" * int(rng.random() < 0.1) for r, c in zip(rows, counts, strict=True)]
        checks = np.array([sum(i) * 2654435761 % 2**32 for i in ids], np.uint32)
        events = int(counts.sum()) + int(rng.integers(0, 2000))
        clock += events
        data = np.frombuffer(b"".join(ids), np.uint8)
        flush = Flush(
            generation=store.generation(), ranges=(Range(SOURCE, step, step + 1),), events=events, event_time_ms=step,
            produced_ms=step, now_ms=1000 + step, keys=keys, counts=counts, positives=positives, checks=checks,
            ids=Ragged(np.concatenate([[0], np.cumsum(list(map(len, ids)))]).astype(np.int64), data),
            gradients=gradients,
        )  # fmt: skip
        assert store.apply("t", flush)[0].outcome == "applied"
        table.apply(
            keys, gradients, counts=counts, positives=positives, checks=checks, ids=ids, clock=clock,
            now_ms=1000 + step,
        )  # fmt: skip
    keys = np.arange(310, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    want, got = store.lookup("t", keys, with_state=True), table.lookup(keys)
    assert got.found.tolist() == want.found.tolist()
    assert 200 < got.found.sum() < 310
    assert got.vectors.tobytes() == want.vectors.tobytes()
    assert got.state.tobytes() == want.state.tobytes()
    for name in ("clock", "count", "updated_ms", "last_seen", "gap", "popularity", "check"):
        assert got.records[name].tobytes() == getattr(want, name).tobytes(), name
    ids = [want.ids.data[a:b].tobytes() for a, b in zip(want.ids.offsets, want.ids.offsets[1:], strict=False)]
    assert [table.id_of(key) or b"" for key in keys.tolist()] == ids
    assert got.records["id_len"].tolist() == list(map(len, ids))
    table.check()
    table.close()
