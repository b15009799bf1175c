"""float32 as text: exact both ways, short, and always JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.floats import rows_json, vector_json


def _round_trip(values: np.ndarray) -> np.ndarray:
    return np.array(json.loads(vector_json(values)), np.float64).astype(np.float32)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_reads_back_as_the_same_float32(value: float) -> None:
    given_value = np.array([value], np.float32)
    assert _round_trip(given_value).view(np.uint32)[0] == given_value.view(np.uint32)[0]


def test_every_kind_of_bit_pattern_reads_back() -> None:
    bits = np.random.default_rng(5).integers(0, 2**32, 300_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    edges = np.concatenate(
        [
            np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32),
            np.array([f"1e{n}" for n in range(-45, 39)], np.float32),
            np.nextafter(np.float32(10) ** np.arange(-30, 38, dtype=np.float32), np.float32(0)),
            np.array(
                [0.0, -0.0, 1e8, 999999999, 1e9, 1e10, 16777217, 0.0001, 0.00009999, np.finfo(np.float32).max],
                np.float32,
            ),
        ]
    )
    values = np.concatenate([values, edges, -edges])
    assert (_round_trip(values).view(np.uint32) == values.view(np.uint32)).all()


def test_is_no_longer_than_numpys_shortest_repr() -> None:
    values = np.random.default_rng(6).normal(0, 1, 5000).astype(np.float32)
    texts = vector_json(values)[1:-1].decode().split(",")
    for text, value in zip(texts, values, strict=True):
        assert len(text.strip("-0.").replace(".", "").split("e")[0]) <= len(
            np.format_float_positional(value, unique=True).strip("-0.").replace(".", "")
        ), (text, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1.0, "1.0"),
        (-2.5, "-2.5"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1e-5, "1e-5"),
        (1.5e-7, "1.5e-7"),
        (123456.0, "123456.0"),
        (3e10, "3e10"),
        (0.0001, "0.0001"),
    ],
)
def test_carries_no_float64_noise(value: float, text: str) -> None:
    assert vector_json(np.array([value], np.float32)).decode() == f"[{text}]"


def test_rows_may_be_missing_read_only_strided_or_none_at_all() -> None:
    rows = np.array([[1, 2], [np.nan, 1], [3, 4]], np.float32)
    present = np.array([True, False, True])
    expected = b"[1.0,2.0],null,[3.0,4.0]"
    assert rows_json(rows, present) == expected
    rows.flags.writeable = False
    present.flags.writeable = False
    assert rows_json(rows, present) == expected
    assert rows_json(np.repeat(rows, 2, axis=1)[:, ::2], present) == expected
    assert rows_json(np.zeros((0, 2), np.float32), np.zeros(0, np.bool_)) == b""
    assert vector_json(np.zeros(0, np.float32)) == b"[]"


def test_the_longest_texts_fit() -> None:
    values = np.full(1000, -1.23456789e-38, np.float32)
    values[::2] = -0.000123456789
    assert (_round_trip(values) == values).all()
