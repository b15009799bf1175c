"""Keys of feature values, columns of them, and sums of their rows against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from native.features import (
    CATEGORIES,
    CATEGORY,
    ITEM,
    NUMBER,
    REQUEST,
    USER,
    BadValue,
    Declared,
    Entry,
    FeatureSchema,
    FeatureValues,
    add_bag_gradients,
    add_bags,
    bucket_text,
    concatenate,
    keys_of,
)
from native.identity import key_and_check
from native.ragged import Ragged

GENRE = Declared("genre", ITEM, CATEGORIES)
DEVICE = Declared("device", REQUEST, CATEGORY)
AGE = Declared("age", USER, NUMBER, (18.0, 25.0))
CITY = Declared("city", USER, CATEGORY, (), 7)
SCHEMA = FeatureSchema([GENRE, DEVICE, AGE, CITY])


def key(text: bytes) -> int:
    return key_and_check(text)[0]


def test_a_value_is_keyed_as_an_id_is_by_its_feature_and_text():
    assert keys_of(DEVICE, "phone") == [key(b"device=phone")]
    assert keys_of(DEVICE, 42) == keys_of(DEVICE, "42")
    assert keys_of(GENRE, ["a", 1]) == [key(b"genre=a"), key(b"genre=1")]
    assert keys_of(GENRE, "a") == keys_of(GENRE, ["a"])
    assert keys_of(GENRE, []) == []
    assert keys_of(CITY, "Bern") == [key(b"city=#%d" % (key(b"city=Bern") % 7))]
    assert len({keys_of(CITY, str(i))[0] for i in range(500)}) == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [(17.9, b"age=[-inf,18.0)"), (18, b"age=[18.0,25.0)"), (24.99, b"age=[18.0,25.0)"), (25, b"age=[25.0,inf)"),
     (1e30, b"age=[25.0,inf)"), (-1e300, b"age=[-inf,18.0)"), (10**30, b"age=[25.0,inf)")],
)  # fmt: skip
def test_a_number_falls_in_a_bucket_that_is_named_by_its_range(value, text):
    assert keys_of(AGE, value) == [key(text)]


@pytest.mark.parametrize(
    ("feature", "value", "said"),
    [
        (AGE, "31", "age is '31'; send a finite number"),
        (AGE, True, "send a finite number"),
        (AGE, float("nan"), "age is nan; send a finite number"),
        (AGE, float("inf"), "send a finite number"),
        (AGE, 10**400, "an integer of 1329 bits"),
        (AGE, [1], "age is a list of 1"),
        (DEVICE, 1.5, "device is 1.5; send a text or an integer"),
        (DEVICE, True, "send a text or an integer"),
        (DEVICE, ["a"], "device is a list of 1"),
        (DEVICE, "", "device has 0 bytes"),
        (DEVICE, "x" * 257, "device has 257 bytes"),
        (DEVICE, "\ud800", "not valid Unicode"),
        (DEVICE, {"a": 1}, "device is an object of 1 fields"),
        (GENRE, [None], "genre is None; send texts or integers"),
        (GENRE, [["a"]], "genre is a list of 1"),
        (GENRE, ["a"] * 10_000, "genre holds 10000 categories; at most 64"),
    ],
)
def test_what_can_not_be_a_value_is_named_with_the_remedy(feature, value, said):
    with pytest.raises(BadValue, match=said.replace("(", r"\(")):
        keys_of(feature, value)


def test_an_object_is_read_in_its_order_and_what_is_not_declared_is_told():
    entries, unknown = SCHEMA.read({"age": 20, "x": 1, "genre": ["b", "a"], "device": None})
    assert entries == [Entry(2, key(b"age=[18.0,25.0)")), Entry(0, key(b"genre=b")), Entry(0, key(b"genre=a"))]
    assert unknown == ["x"]
    assert SCHEMA.read(None) == ([], [])
    with pytest.raises(BadValue, match="features is a list of 1"):
        SCHEMA.read([1])
    many = FeatureSchema([Declared(f"f{i}", ITEM, CATEGORIES) for i in range(5)])
    with pytest.raises(BadValue, match="features hold 320 values; at most 256"):
        many.read({f"f{i}": list(range(64)) for i in range(5)})


def test_boundaries_that_change_are_other_rows():
    other = AGE._replace(boundaries=(18.0, 26.0))
    assert bucket_text(other, 1) != bucket_text(AGE, 1)
    assert keys_of(other, 17) == keys_of(AGE, 17)


def random_values(rng, n, features=4):
    rows = []
    for _ in range(n):
        row = []
        for number in rng.permutation(features)[: rng.integers(0, features + 1)].tolist():
            row += [Entry(number, int(rng.integers(0, 2**63))) for _ in range(rng.integers(1, 4))]
        rows.append(row)
    return rows


def listed(values):
    flat = list(zip(values.number.tolist(), values.key.tolist(), strict=True))
    return [flat[a:b] for a, b in zip(values.offsets[:-1].tolist(), values.offsets[1:].tolist(), strict=True)]


def test_columns_are_the_lists_they_are_made_of():
    rng = np.random.default_rng(0)
    rows, more = random_values(rng, 40), random_values(rng, 40)
    values, other = FeatureValues.of(rows), FeatureValues.of(more)
    at = rng.integers(0, 40, 60)
    assert listed(values) == rows
    assert listed(values.take(at)) == [rows[i] for i in at.tolist()]
    assert listed(values.beside(other)) == [a + b for a, b in zip(rows, more, strict=True)]
    assert listed(concatenate([values, other])) == rows + more
    assert listed(values.of_side(SCHEMA, USER)) == [[e for e in row if e.number in (2, 3)] for row in rows]
    assert listed(FeatureValues.empty(3)) == [[], [], []]
    counted = [[row.count(e) / sum(f.number == e.number for f in row) for e in row] for row in rows]
    assert values.weights().tolist() == pytest.approx([w for row in counted for w in row])


def test_what_a_record_keeps_comes_back_but_for_features_that_are_gone():
    rng = np.random.default_rng(1)
    rows = random_values(rng, 30)
    kept = FeatureValues.of(rows).stored(SCHEMA)
    assert listed(FeatureValues.from_stored(SCHEMA, kept)) == rows
    fewer = FeatureSchema([CITY, GENRE])
    renumbered = [[(0 if e.number == 3 else 1, e.key) for e in row if e.number in (0, 3)] for row in rows]
    assert listed(FeatureValues.from_stored(fewer, kept)) == renumbered
    assert listed(FeatureValues.from_stored(FeatureSchema(), kept)) == [[] for _ in rows]
    with pytest.raises(ValueError, match="13 bytes"):
        FeatureValues.from_stored(SCHEMA, Ragged.of([b"x" * 13]))


def test_sums_of_rows_and_their_gradients_are_a_matrix_product():
    rng = np.random.default_rng(2)
    n, w, dim = 9, 6, 5
    counts = rng.integers(0, 4, n)
    offsets = np.cumsum([0, *counts])
    rows = rng.integers(-1, w, offsets[-1])
    weights = rng.random(offsets[-1]).astype(np.float32)
    matrix = np.zeros((n, w))
    for i in range(n):
        for k in range(offsets[i], offsets[i + 1]):
            if rows[k] >= 0:
                matrix[i, rows[k]] += weights[k]
    vectors = rng.normal(size=(w, dim)).astype(np.float32)
    vectors.flags.writeable = False
    chosen = np.array([3, -1, 0, 3, 8])
    out = np.ones((5, dim), np.float32)
    add_bags(vectors, chosen, offsets, rows, weights, out)
    picked = np.where(chosen[:, None] >= 0, matrix[chosen], 0.0)
    np.testing.assert_allclose(out, 1 + picked @ vectors, rtol=1e-5, atol=1e-6)
    gradients = rng.normal(size=(5, dim)).astype(np.float32)
    back = np.zeros((w, dim), np.float32)
    add_bag_gradients(gradients, chosen, offsets, rows, weights, back)
    np.testing.assert_allclose(back, picked.T @ gradients, rtol=1e-5, atol=1e-6)
    add_bags(vectors, chosen[:0], offsets, rows, weights, out[:0])
