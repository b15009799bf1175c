"""Declared features of events: that the hand parser reads what msgspec and the door do, and what is refused."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.codecs import Decoded, JsonLines, MessagePack, Records
from ingest.door import Door
from ingest.fetched import Values
from ingest.settings import IngestSettings
from native.features import CATEGORIES, CATEGORY, ITEM, NUMBER, REQUEST, USER, Declared, FeatureSchema

NOW = 1_790_000_000_000
SCHEMA = FeatureSchema(
    [
        Declared("genre", ITEM, CATEGORIES),
        Declared("device", REQUEST, CATEGORY),
        Declared("age", USER, NUMBER, (18.0, 25.0, 40.5)),
        Declared("city", USER, CATEGORY, (), 1000),
        Declared("price", ITEM, NUMBER, (-1.0, 0.0, 1.0)),
    ]
)
DOOR = Door.of(IngestSettings(), SCHEMA)
BASE = {"user_id": "u", "item_id": "i"}


def records(*values: bytes) -> Records:
    n = len(values)
    return Records(np.zeros(n, np.uint32), np.arange(n), np.full(n, NOW - 10**6, np.int64), Values.of(values))


def listed(decoded: Decoded) -> list[list[tuple[str, int]]]:
    """Names and keys of each event's values."""
    f = decoded.events.features
    assert f is not None
    names = [SCHEMA.declared[number].name for number in f.number.tolist()]
    flat = list(zip(names, f.key.tolist(), strict=True))
    return [flat[a:b] for a, b in zip(f.offsets[:-1].tolist(), f.offsets[1:].tolist(), strict=True)]


def told(decoded: Decoded) -> list[tuple[object, ...]]:
    p = decoded.profiles
    if p is None:
        return []
    keys = [p.features.key[a:b].tolist() for a, b in zip(p.features.offsets[:-1], p.features.offsets[1:], strict=True)]
    columns = (p.side, p.partition, p.place, p.time_ms, p.key, p.check)
    return list(zip(*(c.tolist() for c in columns), p.id.tolist(), keys, strict=True))


def both(*values: bytes) -> Decoded:
    fast, slow = (JsonLines(DOOR, fast=f).decode(records(*values), NOW) for f in (True, False))
    assert listed(fast) == listed(slow)
    assert told(fast) == told(slow)
    assert fast.refusals == slow.refusals
    assert fast.unknown_fields == slow.unknown_fields
    assert fast.events.place.tolist() == slow.events.place.tolist()
    return fast


def event(features: object, **more: object) -> bytes:
    return json.dumps(BASE | {"features": features} | more, ensure_ascii=False).encode()


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 60), st.integers(10**14, 10**17), st.text(max_size=6),
    st.floats(allow_nan=False, allow_infinity=False), st.floats(-2, 50).map(lambda x: round(x, 2)),
    st.sampled_from(["", "x" * 256, "x" * 257, "ü" * 128, "42", "007", "1.5"]),
)  # fmt: skip
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=4), st.lists(st.text(max_size=3), max_size=70))
FEATURES = st.one_of(
    st.dictionaries(st.sampled_from([*SCHEMA.by_name, "other", "gen", "genres", 'a"b']), VALUES, max_size=6),
    SCALARS, st.dictionaries(st.sampled_from(["genre"]), st.dictionaries(st.text(max_size=2), SCALARS)),
)  # fmt: skip


@given(st.lists(FEATURES, min_size=1, max_size=5), st.sampled_from([(",", ":"), (" ,\t", " : "), (", ", ": ")]),
       st.booleans())  # fmt: skip
@example([{"genre": []}], (" , ", " : "), True)
@example([{"age": -18.0, "price": -0.5}], (",", ":"), True)
@settings(max_examples=400, deadline=None)
def test_the_hand_parser_reads_what_msgspec_does(many, separators, escaped):
    texts = [json.dumps(BASE | {"features": f}, separators=separators, ensure_ascii=escaped) for f in many]
    both(*(text.encode("utf-8", "surrogatepass") for text in texts))


@given(st.binary(max_size=30), st.sampled_from([b"{}", b'{"genre":["a"]}', b'{"age":1}', b"null"]))
@settings(max_examples=300, deadline=None)
def test_torn_objects_are_read_alike(noise, features):
    at = len(noise) % (len(features) + 1)
    line = b'{"user_id":1,"item_id":2,"features":' + features[:at] + noise + features[at:] + b"}"
    both(line.replace(b"\n", b" "), event({"device": "x"}))


def test_the_fast_path_takes_what_is_common():
    """Not by the way round msgspec: nothing is put one by one."""
    usual = event({"genre": ["a", "b"], "device": "phone", "age": 31, "city": "Bern", "price": -12.5})
    calls = []
    codec = JsonLines(DOOR)
    codec._read = lambda *args: calls.append(args)  # type: ignore[method-assign]
    assert [len(row) for row in listed(codec.decode(records(usual, event({"genre": []}), event(None)), NOW))] == [
        6,
        0,
        0,
    ]
    assert not calls


def test_missing_null_and_empty_have_no_values():
    lines = [event({}), event(None), event({"genre": [], "age": None}), json.dumps(BASE).encode()]
    assert listed(both(*lines)) == [[], [], [], []]


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"age": "31"}, "age is '31'; send a finite number"),
        ({"age": [31]}, "age is a list of 1"),
        ({"device": 1.5}, "device is 1.5"),
        ({"device": False}, "device is False"),
        ({"device": ["phone"]}, "device is a list of 1"),
        ({"device": ""}, "device has 0 bytes"),
        ({"genre": ["a"] * 10_000}, "genre holds 10000 categories; at most 64"),
        ({"genre": ["a", None]}, "genre is None"),
        ({"genre": {"a": 1}}, "genre is an object of 1 fields"),
        ("phone", "features is 'phone'; send an object"),
        ([1], "features is a list of 1"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_dead_letter_and_the_next_event_is_not(features, said):
    decoded = both(event(features), event({"device": "phone"}))
    (refusal,) = decoded.refusals
    assert (refusal.kind, refusal.record) == ("features", 0)
    assert said in refusal.reason
    assert len(decoded.events) == 1


def test_numbers_beyond_all_boundaries_fall_in_the_outer_buckets():
    decoded = both(event({"age": 1e30}), event({"age": -(10**17)}), event({"age": 40.5}), event({"age": 1e-300}))
    keys = [row[0][1] for row in listed(decoded)]
    assert keys[0] == keys[2]
    assert keys[1] == keys[3] != keys[0]
    assert not decoded.refusals


def test_a_name_given_twice_is_the_last_one():
    decoded = both(b'{"user_id":1,"item_id":2,"features":{"device":"a","device":"b"}}')
    assert listed(decoded) == listed(both(event({"device": "b"})))


def test_features_given_twice_are_refused():
    line = b'{"user_id":1,"item_id":2,"features":{"device":"a"},"features":{"device":"b"}}'
    (refusal,) = both(line).refusals
    assert "features is given 2 times" in refusal.reason


def test_what_is_not_declared_is_ignored_and_counted():
    decoded = both(event({"other": [1, {"a": 2}], "device": "x"}), event({"other": 1}), event({"device": "x"}))
    assert decoded.unknown_fields == 2
    assert [len(row) for row in listed(decoded)] == [1, 0, 1]
    plain = JsonLines(Door.of(IngestSettings())).decode(records(event({"device": "x"}), event(None)), NOW)
    assert (plain.unknown_fields, plain.events.features, len(plain.events)) == (1, None, 2)
    slow = JsonLines(Door.of(IngestSettings()), fast=False).decode(records(event({"device": "x"}), event(None)), NOW)
    assert slow.unknown_fields == 1


def test_events_of_one_id_tell_its_features():
    lines = [
        b'{"item_id": 7, "features": {"genre": ["a"], "age": 3}, "timestamp": 1780000000000}',
        b'{"user_id": "u", "features": {"age": 20}}',
        b'{"item_id": 8, "features": {"genre": null}}',
        event({"genre": ["b"]}),
    ]
    decoded = both(*lines)
    assert len(decoded.events) == 1
    assert [(row[0], row[2], row[6], len(row[7])) for row in told(decoded)] == [
        (ITEM, 0, b"7", 1), (USER, 1 << 16, b"u", 1), (ITEM, 2 << 16, b"8", 0),
    ]  # fmt: skip
    assert told(decoded)[0][3] == 1_780_000_000_000
    assert not decoded.refusals


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"item_id": 7, "features": {"age": 3}}', "user_id"),  # no feature of items
        (b'{"item_id": 7}', "user_id"),
        (b'{"user_id": 7, "features": {"genre": ["a"]}}', "item_id"),
        (b'{"features": {"genre": ["a"]}}', "user_id"),
        (b'{"item_id": 7, "features": {"genre": [1.5]}}', "features"),
    ],
)
def test_events_that_tell_nothing_are_refused_as_ever(line, kind):
    (refusal,) = both(line).refusals
    assert refusal.kind == kind


def test_messagepack_has_the_same_rules_and_knows_numbers_that_json_does_not():
    good = {"genre": ["a", 1], "device": "phone", "age": 20.5, "city": 3, "price": -1}
    packed = [
        msgspec.msgpack.encode(BASE | {"features": f})
        for f in (good, {"age": float("nan")}, {"age": float("inf")}, {"device": b"x"}, {"age": 2**63})
    ]
    decoded = MessagePack(DOOR).decode(records(*packed, msgspec.msgpack.encode({"item_id": 1, "features": good})), NOW)
    assert listed(decoded)[0] == listed(both(event(good)))[0]
    assert [r.record for r in decoded.refusals] == [1, 2, 3]
    assert "age is nan; send a finite number" in decoded.refusals[0].reason
    assert [row[6] for row in told(decoded)] == [b"1"]
