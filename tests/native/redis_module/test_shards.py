"""What no reference can tell: growth, memory, scans, the feed's reach, order among equals, crafted keys."""

import numpy as np
import pytest

from embedding_store.optimizers import Adagrad, Adam, Add, RowwiseAdagrad, Sgd
from embedding_store.spec import TableSpec
from tests.flushes import flush_of
from tests.native.redis_module.shards import Refused, Shards, blobs_of

OPTIMIZERS = [Add(), Sgd(), Adagrad(), RowwiseAdagrad(), Adam()]


@pytest.fixture
def opened(library):
    tables = []

    def of(salt=0x1234567, **spec):
        tables.append(Shards(library, TableSpec(name="t", shards=1, **spec), salt).begin())
        return tables[-1]

    yield of
    for table in tables:
        table.check()
        table.close()


def counted(table, keys, at, **columns):
    """One own event of each key, in the call that begins at `at`."""
    keys = [int(k) for k in keys]
    ids = columns.pop("ids", b"item-%07d")
    return table.apply(
        flush_of(keys, at, at + 1, events=len(keys) or 1, counts=[1] * len(keys), now_ms=at,
                 identities=[(1, ids % (k % 10**7)) for k in keys], **columns)
    )  # fmt: skip


def unmixed(z):
    """The key whose mix is z: splitmix64's finalizer, inverted."""
    word = 2**64 - 1
    z ^= (z >> 31) ^ (z >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 2**64) & word
    z ^= (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & word
    return z ^ (z >> 30) ^ (z >> 60)


def test_a_dict_of_counts_through_growth_and_back_to_nothing(opened):
    rng = np.random.default_rng(1)
    table, model, at = opened(dim=2, optimizer=Sgd(), remember_events=1), {}, 0
    known = rng.integers(0, 2**64, 30_000, np.uint64, endpoint=False)
    for step in range(150):
        keys = rng.choice(known, rng.integers(1, 1500), replace=False)
        if step % 3 == 2:
            table.apply(flush_of([], at, at + 1, forget=keys))
            for key in keys.tolist():
                model.pop(key, None)
        else:
            counted(table, keys, at)
            for key in keys.tolist():
                model[key] = model.get(key, 0) + 1
        at += 1
        block, _ = table.read(keys)
        assert block.found.tolist() == [key in model for key in keys.tolist()]
        assert block.headers["count"].tolist() == [model.get(key, 0) for key in keys.tolist()]
        if step % 50 == 0:
            table.check()
            assert table.keys(1000).tolist() == sorted(model)
    for keys in np.array_split(known, 30):
        table.apply(flush_of([], at, at + 1, forget=keys))
        at += 1
    assert table.meta(0)["rows"] == 0
    assert len(table.keys()) == 0


def test_lookups_take_no_memory_and_may_repeat_keys(opened):
    table = opened(dim=8, optimizer=Adagrad())
    held = table.meta(0)["memory"]
    block, _ = table.read(np.array([5, 5, 6], np.uint64))
    assert not block.found.any()
    assert (block.state == np.float32(0.1)).all()
    assert block.vectors[0].tobytes() == block.vectors[1].tobytes()
    assert table.meta(0)["memory"] == held
    assert len(table.read(np.zeros(0, np.uint64))[0].vectors) == 0


def test_a_key_that_comes_twice_is_refused_by_name(opened):
    table = opened(dim=1)
    blob = blobs_of(table.spec, flush_of([77, 78, 79], 0, 1, gradients=np.ones((3, 1))))[0]
    at = blob.tobytes().index(np.uint64(79).tobytes())
    blob[at : at + 8] = np.frombuffer(np.uint64(77).tobytes(), np.uint8)
    with pytest.raises(Refused, match="key 77 comes twice"):
        table.apply_blob(0, blob)
    assert table.meta(0)["rows"] == 0
    table.check()


@pytest.mark.parametrize(("optimizer", "most"), [(Sgd(), 1.45), (Adagrad(), 1.25), (Adam(), 1.25)])
def test_memory_of_a_row_stays_in_its_budget(opened, optimizer, most):
    """The budget of row.h, at every size on the way up past the index's worst load."""
    table = opened(dim=64, optimizer=optimizer)
    payload = 4 * (64 + table.spec.state_dim)
    over = {}
    for step in range(40):
        counted(table, np.arange(5000) + 5000 * step, step)
        numbers = table.meta(0)
        over[numbers["rows"]] = numbers["memory"] / (numbers["rows"] * payload)
    assert max(v for rows, v in over.items() if rows >= 60_000) <= most
    assert min(over.values()) >= 1 + (64 + 16) / payload


def test_memory_comes_back(opened):
    table = opened(dim=64, optimizer=Adagrad())
    keys = np.arange(30_000)
    sizes = []
    for turn in range(3):
        counted(table, keys, 2 * turn, ids=b"x" * 33 + b"%07d")
        sizes.append(table.meta(0)["memory"])
        table.apply(flush_of([], 2 * turn + 1, 2 * turn + 2, forget=keys))
        assert table.meta(0)["remembered"] == len(keys)
        assert table.meta(0)["memory"] < 0.35 * sizes[0]
    assert max(sizes) < 1.11 * sizes[0]  # a chunk that is kept has 128 KiB here


def test_growth_is_a_segment_at_a_time(opened, library):
    """No call for one key splits more than one segment of the index."""
    table = opened(dim=1)
    splits, worst = 0, 0
    for k in range(15_000):
        counted(table, [k], k)
        now = library.harness_numbers(table.handles[0], 4)
        worst, splits = max(worst, now - splits), now
    assert worst == 1
    assert splits > 10


def test_crafted_keys_that_agree_in_all_bits_of_the_index_are_refused_not_looped_over(opened):
    """Without knowing the salt nobody finds such keys; a collision of a few is nothing."""
    table = opened(salt=0, dim=1)
    counted(table, range(20_000), 0)
    crafted = [unmixed(high << 32 | 0xDEADBEEF) for high in range(832)]
    counted(table, crafted[:300], 1)
    assert table.read(np.array(crafted[:300], np.uint64))[0].found.all()
    table.check()
    with pytest.raises(Refused, match="memory"):
        counted(table, [*crafted, unmixed(900 << 32 | 0xDEADBEEF)], 2)
    assert table.meta(0)["rows"] == 20_300
    table.check()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_large_rows(opened, optimizer):
    """A chunk then holds sixteen; 4096 dimensions of Adam are 49 kB a row."""
    table = opened(dim=4096, optimizer=optimizer)
    keys = np.arange(40, dtype=np.uint64)
    before = table.read(keys)[0].vectors
    table.apply(flush_of(range(40), 0, 1, gradients=np.full((40, 4096), 0.5), counts=[1] * 40))
    assert (table.read(keys)[0].vectors != before).all()
    assert table.meta(0)["memory"] < 1.3 * 40 * 4 * (4096 + table.spec.state_dim) + 400_000


def test_a_scan_names_what_stays_once_and_the_feed_tells_the_rest(opened, library):
    """Rows come and go while a scan is under way: scan + feed = table."""
    rng = np.random.default_rng(5)
    table, at = opened(dim=1, optimizer=Sgd()), 0
    for keys in np.array_split(np.arange(3000), 3):
        counted(table, keys, at)
        at += 1
    since = table.meta(0)["feed"]
    stays = set(range(3000))
    seen, cursor = [], np.zeros(1, np.uint64)
    while True:
        out = np.empty(100, np.uint64)
        n = library.harness_scan(table.handles[0], cursor.ctypes.data, 100, out.ctypes.data)
        seen += out[:n].tolist()
        if not cursor[0]:
            break
        gone = rng.choice(3000, 20, replace=False)
        stays -= set(gone.tolist())
        table.apply(flush_of([], at, at + 1, forget=gone))
        counted(table, np.unique(rng.integers(3000, 6000, 20)), at + 1)
        at += 2
    assert len(set(seen) & stays) == len(stays)
    assert len(seen) == len(set(seen))
    mirror = set(seen)
    changed = table.changes(0, since)
    found = table.read(changed)[0].found
    mirror = (mirror - set(changed[~found].tolist())) | set(changed[found].tolist())
    assert mirror == set(table.keys(500).tolist())


def test_a_scan_names_every_row_though_rows_get_their_ids_meanwhile(opened, library):
    """A row that a gradient made moves when it gets an id: it is named, at most where it was and where it is."""
    table, keys = opened(dim=1, optimizer=Sgd()), np.arange(3000)
    counted(table, keys + 3000, 0)
    table.apply(flush_of(keys, 1, 2, gradients=np.ones((3000, 1)), forget=keys[1:] + 3000))  # room at the beginning
    seen, cursor, order = [], np.zeros(1, np.uint64), np.random.default_rng(6).permutation(keys)
    for at in range(2, 100):
        out = np.empty(100, np.uint64)
        n = library.harness_scan(table.handles[0], cursor.ctypes.data, 100, out.ctypes.data)
        seen += out[:n].tolist()
        if not cursor[0]:
            break
        counted(table, np.sort(order[100 * (at - 2) : 100 * (at - 1)]), at)
    assert not cursor[0]
    assert set(seen) == {*range(3000), 3000}


def test_the_feed_reaches_back_four_calls_at_least_and_says_when_it_does_not(opened):
    table = opened(dim=1)
    for at in range(30):
        counted(table, np.arange(10_000) + 10_000 * (at % 2), at)
    assert len(table.changes(0, 30)) == 0
    assert table.changes(0, 29).tolist() == list(range(10_000, 20_000))
    assert table.changes(0, 26).tolist() == list(range(20_000))
    assert table.changes(0, 2) is None
    assert table.changes(0, 31) is None


def test_rows_of_one_instant_go_by_the_bytes_of_their_keys(opened):
    table = opened(dim=1, max_rows=300)
    rng = np.random.default_rng(7)
    keys = np.unique(rng.integers(0, 2**64, 600, np.uint64, endpoint=False))
    rng.shuffle(keys)
    for at, part in enumerate(np.array_split(keys, 6)):
        table.apply(flush_of(part.tolist(), at, at + 1, events=100, counts=[1] * len(part), now_ms=5))
    by_bytes = sorted(keys.tolist(), key=lambda k: k.to_bytes(8, "little"))
    block, _ = table.read(np.array(by_bytes, np.uint64))
    # a call lets 64 rows and its own number go; what stays are the last of those that each time were there
    left = set()
    for part in np.array_split(keys, 6):
        left |= set(part.tolist())
        left = set(sorted(left, key=lambda k: k.to_bytes(8, "little"))[max(0, len(left) - 300) :])
    assert {k for k, f in zip(by_bytes, block.found.tolist(), strict=True) if f} == left


def test_a_forgotten_value_is_gone_though_the_key_has_events_without_value(opened):
    table = opened(kind="record", length=8)
    table.apply(flush_of([1], 0, 1, own=[(0, 5, 0, 0)], values=[(0, 5, 0, 0, b"old")]))
    table.apply(flush_of([1], 1, 2, own=[(0, 9, 1 << 16, 0)], forget=[1], forget_orders=[(6, 0, 0)]))
    block, _ = table.read(np.array([1], np.uint64))
    assert block.found.all()
    assert block.values.tolist() == [b""]
    table.apply(flush_of([1], 2, 3, own=[(0, 7, 2 << 16, 0)], values=[(0, 7, 2 << 16, 0, b"new")]))
    assert table.read(np.array([1], np.uint64))[0].values.tolist() == [b"new"]


def tried(table, flush):
    """Whether a call without places of own events is applied."""
    try:
        return table.apply(flush, own=False) == ["applied"]
    except Refused as refused:
        if not str(refused).startswith("TOWPLACES key "):
            raise
        return False


@pytest.mark.parametrize("kind", ["embedding", "sequence"])
def test_places_of_own_events_are_asked_for_where_a_key_was_forgotten_and_else_not_missed(opened, kind):
    shape = {"dim": 2, "optimizer": Sgd()} if kind == "embedding" else {"kind": kind, "length": 4}
    placed, bare = (opened(remember_events=40, **shape) for _ in range(2))
    rng, asked, at = np.random.default_rng(5), 0, 0

    def state(table):
        block, standings = table.read(np.arange(20, dtype=np.uint64))
        return (table.meta(0), standings.tolist(), block.headers.tobytes(), block.vectors.tobytes(),
                block.entries.tobytes(), block.ids().tolist())  # fmt: skip

    for step in range(300):
        keys = rng.choice(20, rng.integers(1, 4), replace=False).tolist()
        size = int(rng.integers(1, 5))
        own = [(int(rng.integers(len(keys))), int(rng.integers(step, step + 9)), at + i << 16, 0) for i in range(size)]
        columns = {"appends": [(r, t, p, 9, 0, 1.0) for r, t, p, _ in own]}
        if kind == "embedding":
            columns = {"gradients": rng.normal(size=(len(keys), 2))}
        if step % 40 == 20:
            columns |= {"forget": [keys[0]], "forget_orders": [(step + 5, at << 16, 0)]}
        flush = flush_of(keys, at, at + size, own=own, now_ms=step, **columns)
        before = state(bare)
        if not tried(bare, flush):
            assert state(bare) == before
            asked += 1
            assert bare.apply(flush) == ["applied"]
        assert placed.apply(flush) == ["applied"]
        assert state(bare) == state(placed)
        at += size
    assert 5 < asked < 150  # keys come back within remember_events


def test_a_call_without_memory_can_be_made_again(library):
    table = Shards(library, TableSpec(name="t", dim=4, shards=1)).begin()
    table.counting().left = 0
    with pytest.raises(Refused, match="memory"):
        counted(table, [1], 0)
    table.counting().left = -1
    assert counted(table, [1], 0) == ["applied"]
    assert table.apply(flush_of([1], 0, 1)) == ["duplicate"]
    assert table.apply(flush_of([1], 7, 8)) == ["conflict"]
    table.close()
