"""Refusals that the laws don't reach through a store."""

from dataclasses import replace

import numpy as np
import pytest

from embedding_store import validation
from embedding_store.contract import ORDER, OwnEvents, Range, Source
from embedding_store.errors import BadRequest
from embedding_store.spec import TableSpec
from embedding_store.validation import checked_flush, checked_identities, checked_keys
from native.ragged import Ragged
from tests.flushes import flush_of

SPEC = TableSpec(name="item", dim=2)
GOOD = flush_of([1, 2], 0, 3, gradients=np.ones((2, 2)), counts=[1, 1])


def own(*rows, time_ms=0, positive=1.0):
    orders = np.zeros(len(rows), ORDER)
    orders["time_ms"] = time_ms
    return OwnEvents(np.array(rows, np.int64), orders, np.full(len(rows), positive, np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": np.array([[1, 2]], np.uint64)}, r"keys must be a 1-d array of uint64, got uint64 \(1, 2\)"),
        ({"keys": [1, 2]}, "got list"),
        ({"counts": np.ones(3, np.int64)}, "counts must have 2 elements, got 3"),
        ({"positives": np.ones(2)}, "positives must be a 1-d array of float32, got float64"),
        ({"positives": np.array([np.nan, 1], np.float32)}, "positives must be finite"),
        ({"checks": np.ones(2, np.int32)}, "checks"),
        ({"gradients": np.ones((2, 2))}, "must be float32"),
        ({"gradients": np.array([[-np.inf, 0], [0, 0]], np.float32)}, "gradients must be finite"),
        ({"ids": Ragged.of([b"1"])}, "ids.offsets must have 3 elements, got 2"),
        ({"ids": Ragged.of([b"x" * 513, b""])}, "an id has 513 bytes; at most 512"),
        ({"ids": Ragged(np.array([0, 5, 2]), np.zeros(9, np.uint8))}, "don't fit"),
        ({"ids": Ragged(np.array([0, 5, 99]), np.zeros(9, np.uint8))}, "don't fit"),
        ({"forget": np.array([1])}, "forget must be a 1-d array of uint64"),
        ({"ranges": (Range(Source("", 0), 0, 1),)}, "needs a topic id"),
        ({"ranges": (Range(Source("a", -1), 0, 1),)}, "partition of 0 or more"),
        ({"ranges": (Range(Source("a", 0), -1, 1),)}, "empty or negative"),
        ({"now_ms": -1}, "now_ms must be in"),
        ({"forget_orders": np.zeros(1, ORDER)}, "forget_orders must have 0 elements, got 1"),
        ({"forget_checks": np.zeros(1, np.uint32)}, "forget_checks must have 0 elements"),
        ({"forget_orders": np.zeros(0)}, "forget_orders must be a 1-d array of"),
        ({"own_events": own(0)}, "must name each own event once, 1 do for 2"),
        ({"own_events": own(0, 2)}, "own_events.rows index the flush's 2 keys, got 0 to 2"),
        ({"own_events": own(0, 1, time_ms=-1)}, "must not be negative"),
        ({"own_events": own(0, 1, positive=np.nan)}, "own_events.positives must be finite"),
        ({"values": Ragged.of([b"x"])}, "holds no values: leave values out"),
        ({"generation": 2**63}, "generation must be in"),
    ],
)
def test_a_refusal_names_the_value(change, message):
    with pytest.raises(BadRequest, match=message) as refused:
        checked_flush(SPEC, replace(GOOD, **change))
    assert "'item'" in str(refused.value)


def test_many_keys_want_several_calls(monkeypatch):
    monkeypatch.setattr(validation, "MAX_KEYS", 1)
    with pytest.raises(BadRequest, match="2 keys in one call; at most 1"):
        checked_flush(SPEC, GOOD)
    with pytest.raises(BadRequest, match="2 keys in one call"):
        checked_keys(SPEC, GOOD.keys, "lookup")


def test_strided_and_read_only_columns_are_taken():
    wide = np.ones((2, 8), np.float32)[:, ::4]
    keys = np.arange(4, dtype=np.uint64)[::2]
    keys.flags.writeable = False
    checked = checked_flush(SPEC, replace(GOOD, gradients=wide, keys=keys))
    assert checked.gradients is not None
    assert checked.gradients.flags.c_contiguous
    assert checked.keys.tolist() == [0, 2]


def test_identities_that_are_asked_about_are_checked():
    keys, checks, ids = np.zeros(2, np.uint64), np.zeros(2, np.uint32), Ragged.of([b"a", b"b"])
    assert checked_identities(SPEC, keys, checks, ids)[2].tolist() == [b"a", b"b"]
    for change, message in (
        ((keys.astype(np.int64), checks, ids), "keys must be"),
        ((keys, checks[:1], ids), "checks must have 2 elements"),
        ((keys, checks, Ragged.of([b"a"])), "ids.offsets must have 3"),
        ((keys, checks, Ragged.of([b"a", b"x" * 600])), "an id has 600 bytes"),
    ):
        with pytest.raises(BadRequest, match=message):
            checked_identities(SPEC, *change)
