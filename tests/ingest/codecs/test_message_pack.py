"""The `msgpack` codec: the rules of JSON over maps and arrays of maps."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.codecs import Decoded, MessagePack, Records
from ingest.door import Door
from ingest.fetched import Fetched, Values
from ingest.settings import IngestSettings
from native.identity import key_and_check

NOW = 1_790_000_000_000
pack = msgspec.msgpack.encode
GOOD = {"user_id": 1, "item_id": "b"}


def decode(*values: bytes) -> Decoded:
    n = len(values)
    records = Records(np.zeros(n, np.uint32), np.arange(10, 10 + n), np.full(n, NOW, np.int64), Values.of(values))
    return MessagePack(Door.of(IngestSettings())).decode(records, NOW)


def test_a_map_and_an_array_of_maps() -> None:
    decoded = decode(pack(GOOD), pack([GOOD, {"user_id": 7, "item_id": 2**63, "label": 0, "weight": 0.5, "x": 1}]))
    e = decoded.events
    assert e.place.tolist() == [10 << 16, 11 << 16, (11 << 16) + 1]
    assert e.user_id.tolist() == [b"1", b"1", b"7"]
    assert list(zip(e.item_key.tolist(), e.item_check.tolist(), strict=True)) == [
        key_and_check(i) for i in (b"b", b"b", str(2**63).encode())
    ]
    assert (e.label.tolist(), e.weight.tolist(), decoded.unknown_fields) == ([1, 1, 0], [1, 1, 0.5], 1)


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        (b"", "empty", "empty"),
        (pack([]), "empty", "empty array"),
        (b"\xc1", "malformed", "malformed"),
        (pack(GOOD)[:-1], "malformed", "truncated"),
        (pack(GOOD) + b"\x00", "malformed", "trailing"),
        (b"\xdd\xff\xff\xff\xff", "lines", "4294967295"),
        (b"\xdc\xff\xff\x01", "malformed", "truncated"),
        (pack(5), "malformed", "5"),
        (pack({**GOOD, "weight": float("nan")}), "weight", "nan"),
        (pack({**GOOD, "weight": float("inf")}), "weight", "inf"),
        (pack({**GOOD, "label": float("nan")}), "label", "nan"),
        (pack({**GOOD, "label": -1}), "label", "-1"),
        (pack({**GOOD, "user_id": b"bytes"}), "user_id", "bytes"),
        (pack({1: 2}), "user_id", "missing"),
        (b"\x81\x81\x01\x02\x03", "malformed", "malformed"),
        (b"\x83\xa7user_id\x01\xa7item_id\x02\xa7user_id\x03", "malformed", "twice"),
        (b"\x82\xa7user_id\xa1\xff\xa7item_id\x02", "malformed", "UTF-8"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why_and_spares_its_neighbours(value: bytes, kind: str, says: str) -> None:
    decoded = decode(pack(GOOD), value, pack(GOOD))
    (refusal,) = decoded.refusals
    assert (refusal.record, refusal.kind, refusal.value) == (1, kind, value)
    assert says in refusal.reason or says == "malformed"
    assert len(decoded.events) == 2


def test_a_bad_map_spares_the_others_of_its_array() -> None:
    decoded = decode(pack([GOOD, {"user_id": 1}, GOOD]))
    assert [(r.line, r.kind) for r in decoded.refusals] == [(1, "item_id")]
    assert decoded.events.place.tolist() == [10 << 16, (10 << 16) + 2]


def test_count_is_never_fooled() -> None:
    codec = MessagePack(Door.of(IngestSettings()))
    values = (b"", pack(GOOD), pack([GOOD] * 20), b"\xdd\xff\xff\xff\xff", b"\xdd\xff", pack([GOOD] * 2), None)
    fetched = Fetched.of((i, 0, None, value) for i, value in enumerate(values))
    assert codec.count(fetched).tolist()[:-1] == [1, 1, 20, 65_536, 255, 2]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda b: pack([GOOD]) + b)), max_size=5))
def test_any_bytes_are_events_or_refusals(values: list[bytes]) -> None:
    decoded = decode(*values)
    assert {r.record for r in decoded.refusals} | {p // 65_536 - 10 for p in decoded.events.place.tolist()} == set(
        range(len(values))
    )


scalars = st.one_of(st.integers(-(2**40), 2**63), st.floats(), st.booleans(), st.none(), st.text(max_size=5))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["user_id", "item_id", "label", "weight", "timestamp", "x"]), scalars)))
def test_any_maps_are_events_or_refusals(maps: list[dict[str, object]]) -> None:
    decoded = decode(*map(pack, maps))
    assert len(decoded.events) + len(decoded.refusals) == len(maps)
    assert np.isfinite(decoded.events.label).all()
    assert (decoded.events.weight > 0).all()
