"""What callers get wrong, over every backend: the error names value and remedy, and nothing is half-applied."""

from dataclasses import replace

import numpy as np
import pytest

from embedding_store.contract import Range, Source
from embedding_store.errors import BadRequest, SpecConflict, UnknownTable
from embedding_store.spec import Adagrad, Add, Sgd, TableSpec
from embedding_store.validation import MAX_KEYS
from native.ragged import Ragged
from tests.flushes import SOURCE, begin, flush_of, outcomes, whole_state
from tests.servers import server_names

SPEC = TableSpec(name="item", dim=3, shards=2, optimizer=Adagrad(), initial_std=0.1)
GOOD = flush_of([1, 2], 1, 2, gradients=np.ones((2, 3)), counts=[1, 1])
KEYS = np.array([1, 2], np.uint64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # a wrong dimension
        ({"gradients": np.ones((2, 4), np.float32)}, r"holds 3-d float32 rows.*\(2, 3\), got float32 \(2, 4\)"),
        ({"gradients": np.ones((3, 3), np.float32)}, r"gradients of 2 keys.*got float32 \(3, 3\)"),
        ({"gradients": np.ones(6, np.float32)}, r"got float32 \(6,\)"),
        ({"gradients": np.ones((2, 3))}, "must be float32"),
        # values that are not finite, or too large to square
        ({"gradients": np.array([[1, np.nan, 1], [1, 1, 1]], np.float32)}, "finite.*got nan; clip them, or quarantine"),
        ({"gradients": np.array([[1, np.inf, 1], [1, 1, 1]], np.float32)}, "finite.*got inf"),
        ({"gradients": np.array([[1, -np.inf, 1], [1, 1, 1]], np.float32)}, "finite.*got inf"),
        ({"gradients": np.full((2, 3), -1e20, np.float32)}, r"at most 1e\+15.*got 1.*e\+20"),
        ({"positives": np.array([np.nan, 1], np.float32)}, "positives must be finite"),
        ({"positives": np.array([-1, 1], np.float32)}, "not negative"),
        # negative steps, clocks and times
        ({"events": -1}, r"events must be in \[0, 2\^63\), got -1"),
        ({"events": 2**63}, r"got 9223372036854775808"),
        ({"generation": -1}, "generation must be in.*got -1"),
        ({"now_ms": -5}, "now_ms must be in.*got -5"),
        ({"event_time_ms": -5}, "event_time_ms must be in.*got -5"),
        ({"produced_ms": -5}, "produced_ms must be in.*got -5"),
        ({"counts": np.array([-1, 0])}, "counts must lie in"),
        ({"ranges": (Range(SOURCE, -1, 2),)}, r"\[-1, 2\).*negative"),
        ({"ranges": (Range(SOURCE, 2, 1),)}, r"\[2, 1\).*empty"),
        ({"ranges": ()}, "carry its sources"),
        # numbers that are not whole: a store that kept them could not be read again
        ({"events": 1.5}, r"events must be a whole number, got 1\.5 of type float"),
        ({"events": np.float32(2)}, "events must be a whole number, got .*2.0.* of type float32"),
        ({"events": "3"}, "events must be a whole number, got '3' of type str"),
        ({"events": True}, "events must be a whole number, got True of type bool"),
        ({"now_ms": 1.7e12}, r"now_ms must be a whole number, got 1700000000000\.0 of type float"),
        ({"now_ms": 1_700_000_000_123_456_789}, r"now_ms must be in \[0, 2\^53\), got 17.*789: milliseconds since"),
        ({"generation": None}, "generation must be a whole number, got None of type NoneType"),
        ({"ranges": (Range(SOURCE, 1, 2.5),)}, r"stop of clicks:0 must be a whole number, got 2\.5"),
        ({"ranges": (Range(Source("clicks", "0"), 1, 2),)}, "partition of a source must be a whole number, got '0'"),
        ({"ranges": (Range(Source(None, 0), 1, 2),)}, "topic id of a source must be a string, got None"),
        # sums that would not be finite
        ({"positives": np.full(2, 3e38, np.float32)}, r"positives must be finite.*at most 1e\+15.*got 3e\+38"),
        # ids of a wrong type
        ({"keys": np.array([1, 2])}, "keys must be a 1-d array of uint64, got int64"),
        ({"keys": np.array([1.0, 2.0])}, "got float64"),
        ({"keys": np.array(["a", "b"])}, "got <U1"),
        ({"keys": [1, 2]}, "got list"),
        ({"keys": np.array([5, 5], np.uint64)}, "5 for one; sum counts and gradients per key first"),
        ({"checks": np.array([1, 2])}, "checks must be a 1-d array of uint32"),
        ({"ids": Ragged.of([b"1" * 600, b""])}, "600 bytes; at most 512"),
        ({"ids": [b"1", b"2"]}, "ids must be a Ragged, got list"),
    ],
)
def test_a_bad_call_names_the_value_and_changes_nothing(store, change, message):
    begin(store, SPEC)
    store.apply("item", flush_of([1], 0, 1, gradients=np.ones((1, 3)), counts=[1]))
    before = whole_state(store, "item")
    with pytest.raises(BadRequest, match=message) as refused:
        store.apply("item", replace(GOOD, **change))
    assert "'item'" in str(refused.value)
    assert whole_state(store, "item") == before
    assert outcomes(store.apply("item", GOOD)) == {"applied"}


@pytest.mark.parametrize(
    "keys", [np.array([1, 2]), np.array([1.0]), np.array(["a"]), np.ones((1, 1), np.uint64), [1], None]
)
def test_a_lookup_by_keys_of_a_wrong_type_is_refused(store, keys):
    begin(store, SPEC)
    with pytest.raises(BadRequest, match=r"table 'item': keys must be a 1-d array of uint64, got "):
        store.lookup("item", keys)


@pytest.mark.parametrize(
    ("shard", "new", "message"),
    [
        (0, 1.5, r"new offset must be a whole number, got 1\.5 of type float"),
        (0, 2**63, r"to 9223372036854775808: offsets lie in \[0, 2\^63\)"),
        ("0", 5, "shard must be a whole number, got '0'"),
    ],
)
def test_a_seek_to_what_is_no_offset_is_refused(store, shard, new, message):
    begin(store, SPEC)
    before = whole_state(store, "item")
    with pytest.raises(BadRequest, match=message):
        store.seek("item", shard, SOURCE, 0, new, "a test")
    assert whole_state(store, "item") == before


def test_numbers_of_numpy_are_numbers(store):
    begin(store, SPEC)
    source = Source("clicks", np.int32(0))
    assert outcomes(
        store.apply("item", replace(GOOD, ranges=(Range(source, np.int64(0), np.int64(2)),), events=np.int32(2)))
    ) == {"applied"}
    assert [(s.clock, s.offsets) for s in store.status("item")] == [(2, {SOURCE: 2})] * 2
    assert store.lookup("item", KEYS).found.all()


def test_a_clock_that_would_overflow_is_refused(store):
    begin(store, SPEC)
    store.apply("item", replace(GOOD, ranges=(Range(SOURCE, 0, 1),), events=2**52))
    before = whole_state(store, "item")
    with pytest.raises(BadRequest, match=r"clock of shard 0 of table 'item' is 4503599627370496.*events"):
        store.apply("item", replace(GOOD, events=2**52))
    assert whole_state(store, "item") == before
    assert outcomes(store.apply("item", GOOD)) == {"applied"}


def test_a_table_that_nobody_created_is_named(store):
    begin(store, SPEC)
    cursor = store.changes("item", None).cursor
    for call in (
        lambda: store.spec("itme"),
        lambda: store.lookup("itme", KEYS),
        lambda: store.histories("itme", KEYS),
        lambda: store.apply("itme", GOOD),
        lambda: store.seek("itme", 0, SOURCE, None, 0, "start"),
        lambda: store.status("itme"),
        lambda: store.changes("itme", None),
        lambda: store.wait_for_changes(["itme"], [cursor], 0),
    ):
        with pytest.raises(UnknownTable, match=r"no table 'itme' in this store; create\(\) it first"):
            call()


def test_another_declaration_is_refused_with_both_values(store):
    begin(store, SPEC)
    store.apply("item", replace(GOOD, ranges=(Range(SOURCE, 0, 1),)))
    before = whole_state(store, "item")
    for change, message in (
        ({"dim": 4}, "dim is 3, got 4"),
        ({"shards": 9}, "shards is 2, got 9"),
        ({"optimizer": Sgd()}, "optimizer is .*'adagrad'.*, got .*'sgd'"),
        ({"optimizer": Adagrad(learning_rate=0.5)}, r"'learning_rate': 0\.05.*, got .*'learning_rate': 0\.5"),
    ):
        with pytest.raises(SpecConflict, match=message + r"[\s\S]*use the stored one, or another name"):
            store.create(SPEC.model_copy(update=change))
    assert store.spec("item") == SPEC
    assert whole_state(store, "item") == before


def test_no_keys_is_a_call_like_any_other(store):
    begin(store, SPEC)
    none = np.zeros(0, np.uint64)
    assert store.lookup("item", none, with_state=True).vectors.shape == (0, 3)
    assert outcomes(store.apply("item", flush_of([], 0, 4, gradients=np.zeros((0, 3))))) == {"applied"}
    assert outcomes(store.apply("item", flush_of([], 4, 5))) == {"applied"}
    assert [(s.clock, s.rows) for s in store.status("item")] == [(5, 0)] * 2


@pytest.mark.parametrize(
    "opener", ["memory", pytest.param(server_names()[0], marks=pytest.mark.servers)], indirect=True
)
def test_a_million_keys_are_a_call_and_one_more_is_too_many(store):
    """On memory and one server only: the size is what is tested, and it takes seconds."""
    begin(store, TableSpec(name="wide", dim=1, shards=2, optimizer=Add()))
    keys = np.arange(MAX_KEYS + 1, dtype=np.uint64)
    n = MAX_KEYS
    flush = replace(
        flush_of([], 0, 1),
        keys=keys[:n],
        counts=np.zeros(n, np.int64),
        positives=np.zeros(n, np.float32),
        checks=np.zeros(n, np.uint32),
        ids=Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8)),
        gradients=np.arange(1, n + 1, dtype=np.float32)[:, None],
    )
    assert outcomes(store.apply("wide", flush)) == {"applied"}
    rows = store.lookup("wide", keys[:n])
    np.testing.assert_array_equal(rows.vectors, flush.gradients)
    assert sum(s.rows for s in store.status("wide")) == n
    with pytest.raises(BadRequest, match="table 'wide': 1000001 keys in one call; at most 1000000, make several calls"):
        store.lookup("wide", keys)
    with pytest.raises(BadRequest, match="1000001 keys in one call; at most 1000000, make several calls"):
        store.apply("wide", replace(flush, ranges=(Range(SOURCE, 1, 2),), keys=keys))
    assert {s.offsets[SOURCE] for s in store.status("wide")} == {1}
