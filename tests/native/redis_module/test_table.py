"""The table structure against a dict: growth, order, memory, failures."""

import numpy as np
import pytest

from tests.native.redis_module.loaded import KINDS, NoMemory, Refused, Table


@pytest.fixture
def opened(library):
    tables = []

    def of(dim, kind="sgd", **options):
        tables.append(Table(library, dim, kind, **options))
        return tables[-1]

    yield of
    for table in tables:
        table.check()
        table.close()


def unmixed(z):
    """The key whose mix is z: splitmix64's finalizer, inverted."""
    word = 2**64 - 1
    z ^= (z >> 31) ^ (z >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 2**64) & word
    z ^= (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & word
    return z ^ (z >> 30) ^ (z >> 60)


def test_a_dict_of_counts(opened):
    """Random inserts, finds and erases, through many splits and back to nothing."""
    rng = np.random.default_rng(1)
    table, model = opened(2), {}
    known = rng.integers(0, 2**64, 60_000, np.uint64, endpoint=False)
    for step in range(300):
        keys = rng.choice(known, rng.integers(0, 2000), replace=False)
        if step % 3 == 2:
            assert table.forget(keys) == sum(model.pop(key, None) is not None for key in keys.tolist())
        else:
            counts = rng.integers(1, 9, len(keys))
            reply = table.apply(keys, counts=counts, clock=step)
            assert reply.created == sum(key not in model for key in keys.tolist())
            for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
                model[key] = model.get(key, 0) + count
        read = table.lookup(keys)
        assert read.found.tolist() == [key in model for key in keys.tolist()]
        assert read.records["count"].tolist() == [model.get(key, 0) for key in keys.tolist()]
        if step % 50 == 0:
            table.check()
    assert table.splits > 20
    assert sorted(table.oldest().tolist()) == sorted(model)
    assert table.forget(known) == len(model)
    assert table.rows == 0


def test_the_order_is_that_of_updates(opened):
    rng = np.random.default_rng(2)
    table, model = opened(1), {}
    for step in range(200):
        keys = rng.choice(500, rng.integers(0, 40), replace=False).astype(np.uint64)
        if step % 4 == 3:
            table.forget(keys)
        else:
            table.apply(keys, np.ones((len(keys), 1), np.float32))
        for key in keys.tolist():
            model.pop(key, None)
            if step % 4 != 3:
                model[key] = None
        assert table.oldest().tolist() == list(model)
    assert table.oldest(3).tolist() == list(model)[:3]


def test_only_own_events_and_gradients_make_rows(opened):
    table = opened(3)
    keys = np.arange(4, dtype=np.uint64)
    gradients = np.zeros((4, 3), np.float32)
    gradients[1, 2], gradients[2, 0] = 1.0, np.nan
    reply = table.apply(keys, gradients, counts=np.array([0, 0, 0, 2]), clock=9, now_ms=5)
    assert (reply.created, reply.touched) == (3, 3)
    read = table.lookup(keys)
    assert read.found.tolist() == [False, True, True, True]
    assert read.records["clock"].tolist() == [0, 9, 9, 9]
    assert read.records["count"].tolist() == [0, 0, 0, 2]
    assert table.oldest().tolist() == [1, 2, 3]


def test_lookup_writes_nothing(opened):
    table = opened(8, "adagrad")
    held = table.held
    read = table.lookup(np.arange(100, dtype=np.uint64))
    assert not read.found.any()
    assert (read.state == np.float32(0.1)).all()
    assert (table.rows, table.held) == (0, held)
    assert len(table.lookup(np.zeros(0, np.uint64)).vectors) == 0


def test_a_row_gets_its_id_later_and_keeps_it(opened):
    table = opened(2)
    key = np.array([5], np.uint64)
    table.apply(key, np.ones((1, 2), np.float32), checks=np.array([1], np.uint32), ids=[b"early"])
    assert table.id_of(5) is None
    named = {"counts": np.array([1]), "checks": np.array([77], np.uint32)}
    table.apply(key, ids=[b"a" * 512], **named)
    assert table.id_of(5) == b"a" * 512
    before = table.lookup(key)
    assert table.apply(key, np.ones((1, 2), np.float32), ids=[b"a" * 511 + b"b"], **named).refused == 1
    assert table.apply(key, counts=np.array([4]), checks=np.array([78], np.uint32), ids=[b"a" * 512]).refused == 4
    assert table.lookup(key).records.tobytes() == before.records.tobytes()
    assert table.lookup(key).vectors.tobytes() == before.vectors.tobytes()
    assert table.forget(key) == 1
    table.apply(key, ids=[b"other"], **named)
    assert table.id_of(5) == b"other"


def test_a_key_that_comes_twice_is_applied_twice(opened):
    twice, once = opened(2), opened(2)
    keys = np.array([5, 6, 5], np.uint64)
    g = np.ones((3, 2), np.float32)
    counts, ids = np.array([1, 1, 1]), [b"five", b"six", b"five"]
    twice.apply(keys, g, counts=counts, ids=ids)
    once.apply(keys[:2], g[:2], counts=counts[:2], ids=ids[:2])
    once.apply(keys[2:], g[2:], counts=counts[2:], ids=ids[2:])
    assert twice.lookup(keys).vectors.tobytes() == once.lookup(keys).vectors.tobytes()
    assert twice.lookup(keys).records.tobytes() == once.lookup(keys).records.tobytes()
    assert twice.oldest().tolist() == [6, 5]


def test_every_failing_allocation_leaves_the_table_unchanged(opened, library):
    rng = np.random.default_rng(3)
    table = opened(64, "adagrad")
    old = rng.integers(0, 2**64, 800, np.uint64, endpoint=False)
    new = rng.integers(0, 2**64, 3000, np.uint64, endpoint=False)

    def apply(keys, clock):
        table.apply(
            keys, np.ones((len(keys), 64), np.float32), counts=np.ones(len(keys), np.int64), clock=clock,
            ids=[b"%d" % key for key in keys.tolist()],
        )  # fmt: skip

    apply(old, 1)
    keys = np.concatenate([old[::7], new])

    def everything():
        read = table.lookup(np.concatenate([old, new]))
        ids = [table.id_of(key) for key in old.tolist()]
        return [a.tobytes() for a in (read.vectors, read.state, read.found, read.records, table.oldest())], ids

    before = everything()
    failures = 0
    while True:
        table.counting.left = failures
        try:
            apply(keys, 2)
        except NoMemory:
            failures += 1
        else:
            break
        assert everything() == before
        table.check()
        # chunks and splits that are done stay: so that each try goes further, start over from a table without them
        table.close()
        table.__post_init__()
        apply(old, 1)
        before = everything()
    assert failures > 30  # chunks of rows, their numbers, ids, segments, directories, the plan
    assert table.rows == len(old) + len(new)


def test_opening_without_memory(library):
    for left in range(2):
        with pytest.raises(NoMemory):
            Table(library, 4, left=left)


@pytest.mark.parametrize(("kind", "most"), [("sgd", 1.45), ("adagrad", 1.25), ("adam", 1.25)])
def test_bytes_over_payload_at_the_indexs_worst_load(opened, kind, most):
    """The budget of row.h, at every size on the way up past the worst: the index has just been split through."""
    table = opened(64, kind)
    payload = 4 * (64 + table.state_dim)
    over = {}
    for step in range(30):
        keys = np.arange(2000, dtype=np.uint64) + np.uint64(2000 * step)
        ids = [b"item-%07d" % key for key in keys.tolist()]
        table.apply(keys, counts=np.ones(2000, np.int64), ids=ids)
        over[table.rows] = table.held / (table.rows * payload)
    assert max(v for rows, v in over.items() if rows >= 10_000) <= most
    assert min(over.values()) >= 1 + (64 + 16) / payload


def test_memory_comes_back(opened):
    table = opened(16)
    keys = np.arange(100_000, dtype=np.uint64)
    for _ in range(3):
        table.apply(keys, counts=np.ones(len(keys), np.int64), ids=[b"x" * 40] * len(keys))
        full = table.held
        table.forget(keys)
        assert table.held < 0.15 * full  # segments of the index, one chunk a size
    table.apply(keys, counts=np.ones(len(keys), np.int64), ids=[b"x" * 40] * len(keys))
    assert table.held == full


def test_an_insert_moves_one_segment_at_most(opened):
    """Memory is a witness of growth: no call takes more than its rows, a segment a split and a directory."""
    table = opened(1)
    worst = 0
    for k in range(40_000):
        splits = table.splits
        table.apply(np.array([k], np.uint64), counts=np.ones(1, np.int64))
        worst = max(worst, table.splits - splits)
    assert worst == 1
    assert table.splits > 30


def test_keys_that_agree_in_all_bits_of_the_index_are_refused_not_looped_over(opened):
    """Without knowing the salt nobody finds such keys; a collision of a few is nothing."""
    table = opened(1, salt=0)
    table.apply(np.arange(50_000, dtype=np.uint64), counts=np.ones(50_000, np.int64))
    rows = table.rows
    crafted = np.array([unmixed(high << 32 | 0xDEADBEEF) for high in range(832)], np.uint64)
    few, many = crafted[:300], np.append(crafted, np.uint64(unmixed(900 << 32 | 0xDEADBEEF)))
    table.apply(few, counts=np.ones(len(few), np.int64))
    assert table.lookup(few).found.all()
    table.check()
    assert table.forget(few) == len(few)
    with pytest.raises(NoMemory):
        table.apply(many, counts=np.ones(len(many), np.int64))
    assert table.rows == rows


N = 4
BAD = {
    "too few keys": {"n": -1},
    "too many keys": {"n": (1 << 20) + 1},
    "no keys": {"keys": None},
    "no counts": {"counts": None},
    "no positives": {"positives": None},
    "no checks": {"checks": None},
    "no bounds": {"id_bounds": None},
    "no ids": {"ids": None},
    "a negative size": {"ids_size": -1},
    "a size beyond the bounds": {"ids_size": 13},
    "bounds that don't begin at 0": {"id_bounds": np.array([1, 3, 6, 9, 12])},
    "bounds that fall": {"id_bounds": np.array([0, 6, 3, 9, 12])},
    "bounds beyond the end": {"id_bounds": np.array([0, 3, 2**62, 9, 12])},
    "negative bounds": {"id_bounds": np.array([0, -(2**63), 6, 9, 12])},
    "a negative count": {"counts": np.array([1, 1, -1, 1])},
    "a clock that goes back": {"clock": 9},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_changes_nothing(opened, name):
    table = opened(2)
    keys = np.arange(N, dtype=np.uint64)
    good = {"counts": np.ones(N, np.int64), "ids": [b"abc"] * N, "clock": 10}
    table.apply(keys[:2], counts=np.ones(2, np.int64), clock=10)
    before = table.lookup(keys).records.tobytes()
    changed = dict(BAD[name])
    clock = changed.pop("clock", 10)
    with pytest.raises(Refused):
        table.apply(keys, **{**good, "clock": clock}, **{f"raw_{field}": value for field, value in changed.items()})
    assert table.lookup(keys).records.tobytes() == before


def test_an_id_that_is_too_long(opened):
    table = opened(2)
    with pytest.raises(Refused, match="batch: 1"):
        table.apply(np.arange(2, dtype=np.uint64), counts=np.ones(2, np.int64), ids=[b"a" * 512, b"a" * 513])


@pytest.mark.parametrize(
    "options",
    [
        {"dim": 0}, {"dim": 4097}, {"dim": 2, "initial_std": -1.0}, {"dim": 2, "initial_std": float("nan")},
        {"dim": 2, "gap_rate": 0.0}, {"dim": 2, "gap_rate": 1.5}, {"dim": 2, "half_life": 0.0},
        {"dim": 2, "half_life": float("inf")}, {"dim": 2, "clip_norm": -1.0},
    ],
)  # fmt: skip
def test_a_bad_spec(library, options):
    with pytest.raises(Refused, match="spec"):
        Table(library, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_large_rows(opened, kind):
    """A chunk then holds sixteen; 4096 dimensions of Adam are 49 kB a row."""
    table = opened(4096, kind)
    keys = np.arange(40, dtype=np.uint64)
    table.apply(keys, np.full((40, 4096), 0.5, np.float32), counts=np.ones(40, np.int64))
    assert (table.lookup(keys).vectors != opened(4096, kind).lookup(keys).vectors).all()
    assert table.held < 1.3 * 40 * 4 * (4096 + table.state_dim) + 64_000
