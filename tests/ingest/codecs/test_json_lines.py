"""The `json` codec: what comes in, what is refused and why, and that the hand parser never differs from msgspec."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.codecs import Decoded, JsonLines, Records
from ingest.door import Door
from ingest.fetched import Values
from ingest.settings import IngestSettings
from native.identity import key_and_check

NOW = 1_790_000_000_000
PRODUCED = 1_789_999_000_000
DOOR = Door.of(IngestSettings())
GOOD = b'{"user_id": 1, "item_id": "b"}'


def records(*values: bytes, produced_ms: int = PRODUCED) -> Records:
    n = len(values)
    return Records(np.zeros(n, np.uint32), np.arange(10, 10 + n), np.full(n, produced_ms, np.int64), Values.of(values))


def decode(*values: bytes, fast: bool = True, produced_ms: int = PRODUCED, door: Door = DOOR) -> Decoded:
    return JsonLines(door, fast=fast).decode(records(*values, produced_ms=produced_ms), NOW)


def rows(decoded: Decoded) -> list[tuple[object, ...]]:
    e = decoded.events
    columns = (e.partition, e.place, e.time_ms, e.produced_ms, e.user_key, e.user_check, e.item_key, e.item_check)
    values = (e.label.view(np.uint32), e.weight.view(np.uint32))
    return list(
        zip(
            *(c.tolist() for c in columns),
            *(v.tolist() for v in values),
            e.user_id.tolist(),
            e.item_id.tolist(),
            strict=True,
        )
    )


def both(*values: bytes, produced_ms: int = PRODUCED) -> Decoded:
    fast, slow = (decode(*values, fast=f, produced_ms=produced_ms) for f in (True, False))
    assert rows(fast) == rows(slow)
    assert fast.refusals == slow.refusals
    assert fast.unknown_fields == slow.unknown_fields
    for (_, _, *_), (user, item) in zip(rows(fast), [r[-2:] for r in rows(fast)], strict=True):
        assert 1 <= len(user) <= 512
        assert 1 <= len(item) <= 512
    e = fast.events
    for ids, keys, checks in ((e.user_id, e.user_key, e.user_check), (e.item_id, e.item_key, e.item_check)):
        expected = [key_and_check(i) for i in ids.tolist()]
        assert list(zip(keys.tolist(), checks.tolist(), strict=True)) == expected
    return fast


def one(text: str) -> Decoded:
    return both(text.encode("utf-8", "surrogatepass"))


def test_defaults() -> None:
    e = both(GOOD).events
    assert (e.label.tolist(), e.weight.tolist(), e.time_ms.tolist(), e.place.tolist()) == (
        [1.0], [1.0], [PRODUCED], [10 << 16],
    )  # fmt: skip
    assert (e.user_id.tolist(), e.item_id.tolist(), e.user_key.tolist()) == ([b"1"], [b"b"], [1])


def test_an_integer_and_its_decimal_string_are_one_id() -> None:
    e = both(b'{"user_id":42,"item_id":"42"}', b'{"user_id":"00123","item_id":123}').events
    assert e.user_key[0] == e.item_key[0] == 42
    assert e.user_key[1] != e.item_key[1] == 123


@pytest.mark.parametrize(
    ("fields", "label", "weight", "time_ms"),
    [
        ('"label":0', 0, 1, PRODUCED),
        ('"label":true', 1, 1, PRODUCED),
        ('"label":false', 0, 1, PRODUCED),
        ('"label":null,"weight":null,"timestamp":null', 1, 1, PRODUCED),
        ('"label":4.5,"weight":0.25', 4.5, 0.25, PRODUCED),
        ('"label":-0.0', 0, 1, PRODUCED),
        ('"weight":1e-3', 1, np.float32(1e-3), PRODUCED),
        ('"weight":1000', 1, 1000, PRODUCED),
        ('"timestamp":874724710000', 1, 1, 874_724_710_000),  # MovieLens: September 1997
        ('"timestamp":"1997-09-20T03:05:10Z"', 1, 1, 874_724_710_000),
        ('"timestamp":"1997-09-20T03:05:10.1Z"', 1, 1, 874_724_710_100),
        ('"timestamp":"1997-09-20T03:05:10.123456789Z"', 1, 1, 874_724_710_123),
        ('"timestamp":"1997-09-20T05:05:10+02:00"', 1, 1, 874_724_710_000),
        ('"timestamp":"1997-09-20 03:05:10"', 1, 1, 874_724_710_000),
        ('"timestamp":"2024-02-29T00:00:00Z"', 1, 1, 1_709_164_800_000),
        ('"timestamp":"1997-09-20"', 1, 1, 874_713_600_000),
        (f'"timestamp":{PRODUCED + 86_400_000}', 1, 1, PRODUCED + 86_400_000),
    ],
)
def test_what_comes_in(fields: str, label: float, weight: float, time_ms: int) -> None:
    decoded = one('{"user_id":1,"item_id":2,' + fields + "}")
    e = decoded.events
    assert not decoded.refusals
    assert (e.label.tolist(), e.weight.tolist(), e.time_ms.tolist()) == ([label], [weight], [time_ms])


REFUSED = [
    ("", "empty", "empty"),
    (" \r\n\t\n", "empty", "empty"),
    ("{", "malformed", "truncated"),
    ("[]", "malformed", "array of 0"),
    ("42", "malformed", "42"),
    ("null", "malformed", "None"),
    ('"user"', "malformed", "user"),
    ("{}", "user_id", "missing"),
    ('{"user_id":1}', "item_id", "missing"),
    ('{"user_id":null,"item_id":1}', "user_id", "missing"),
    ('{"user_id":1.5,"item_id":1}', "user_id", "1.5"),
    ('{"user_id":1e3,"item_id":1}', "user_id", "1000.0"),
    ('{"user_id":true,"item_id":1}', "user_id", "True"),
    ('{"user_id":[1],"item_id":1}', "user_id", "array of 1"),
    ('{"user_id":{"a":1},"item_id":1}', "user_id", "object of 1"),
    ('{"user_id":"","item_id":1}', "user_id", "empty"),
    ('{"user_id":"' + "x" * 513 + '","item_id":1}', "user_id", "513 bytes"),
    ('{"user_id":"' + "é" * 257 + '","item_id":1}', "user_id", "514 bytes"),
    ('{"user_id":1,"item_id":"' + "x" * 10_000 + '"}', "item_id", "10000 bytes"),
    ('{"user_id":007,"item_id":1}', "malformed", "malformed"),
    ('{"user_id":1,"item_id":2,"label":-1}', "label", "-1"),
    ('{"user_id":1,"item_id":2,"label":1e30}', "label", "1e+30"),
    ('{"user_id":1,"item_id":2,"label":1e-60}', "label", "float32"),
    ('{"user_id":1,"item_id":2,"label":0.00000000000001}', None, ""),
    ('{"user_id":1,"item_id":2,"label":"1"}', "label", "'1'"),
    ('{"user_id":1,"item_id":2,"label":' + "9" * 400 + "}", "label", "bits"),
    ('{"user_id":1,"item_id":2,"label":NaN}', "malformed", "malformed"),
    ('{"user_id":1,"item_id":2,"weight":NaN}', "malformed", "malformed"),
    ('{"user_id":1,"item_id":2,"weight":Infinity}', "malformed", "malformed"),
    ('{"user_id":1,"item_id":2,"weight":1e999}', "malformed", "out of range"),
    ('{"user_id":1,"item_id":2,"weight":-1}', "weight", "-1"),
    ('{"user_id":1,"item_id":2,"weight":0}', "weight", "above 0"),
    ('{"user_id":1,"item_id":2,"weight":0.0}', "weight", "above 0"),
    ('{"user_id":1,"item_id":2,"weight":1e-60}', "weight", "float32"),
    ('{"user_id":1,"item_id":2,"weight":1000.5}', "weight", "1000"),
    ('{"user_id":1,"item_id":2,"weight":true}', "weight", "True"),
    ('{"user_id":1,"item_id":2,"weight":"1"}', "weight", "'1'"),
    ('{"user_id":1,"item_id":2,"timestamp":874724710}', "timestamp", "seconds; send milliseconds: multiply by 1000"),
    ('{"user_id":1,"item_id":2,"timestamp":1790000000}', "timestamp", "seconds"),
    ('{"user_id":1,"item_id":2,"timestamp":1790000000000000}', "timestamp", "microseconds"),
    ('{"user_id":1,"item_id":2,"timestamp":1790000000000000000}', "timestamp", "nanoseconds"),
    ('{"user_id":1,"item_id":2,"timestamp":0}', "timestamp", "1970"),
    ('{"user_id":1,"item_id":2,"timestamp":-5}', "timestamp", "1970"),
    (f'{{"user_id":1,"item_id":2,"timestamp":{PRODUCED + 86_400_001}}}', "timestamp", "later than"),
    ('{"user_id":1,"item_id":2,"timestamp":"2999-01-01T00:00:00Z"}', "timestamp", "later than"),
    ('{"user_id":1,"item_id":2,"timestamp":1790000000.5}', "timestamp", "integer of milliseconds"),
    ('{"user_id":1,"item_id":2,"timestamp":true}', "timestamp", "True"),
    ('{"user_id":1,"item_id":2,"timestamp":"yesterday"}', "timestamp", "yesterday"),
    ('{"user_id":1,"item_id":2,"timestamp":"2023-02-29T00:00:00Z"}', "timestamp", "2023-02-29"),
    ('{"user_id":1,"item_id":2,"timestamp":"2023-01-01T25:00:00Z"}', "timestamp", "T25"),
    ('{"user_id":1,"item_id":2,"user_id":3}', "malformed", "user_id is given 2 times"),
    ('{"user_id":1,"item_id":2,"user\\u005fid":3}', "malformed", "user_id is given 2 times"),
    ('{"user_id":1,"item_id":2,"label":1,"label":0}', "malformed", "label is given 2 times"),
    ('{"user_id":1,"item_id":2,}', "malformed", "trailing comma"),
    ('{"user_id":1,"item_id":2}x', "malformed", "trailing"),
    ('{"user_id":1 "item_id":2}', "malformed", "malformed"),
    ("{'user_id':1,'item_id':2}", "malformed", "malformed"),
    ('{"user_id":"\\ud800","item_id":2}', "malformed", "malformed"),
    ('{"user_id":"\ud800","item_id":2}', "malformed", "UTF-8"),
    ('{"user_id":"a\x00b","item_id":2}', "malformed", "malformed"),
    ("\ufeff" + GOOD.decode(), "malformed", "malformed"),
    ('{"user_id":1,"item_id":2,"x":' + "[" * 100_000 + "]" * 100_000 + "}", "malformed", "nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "says"), REFUSED)
def test_what_is_refused_says_why_and_spares_its_neighbours(text: str, kind: str | None, says: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    alone = one(text)
    if kind is None:
        assert not alone.refusals
        return
    (refusal,) = alone.refusals
    assert (refusal.kind, refusal.record, refusal.line) == (kind, 0, 0)
    assert says in refusal.reason
    assert len(refusal.reason) < 400
    assert refusal.reason.isascii() or "…" in refusal.reason
    assert refusal.value == raw
    among = both(GOOD, raw, GOOD)
    assert among.events.place.tolist() == [10 << 16, 12 << 16]
    assert [r.record for r in among.refusals] == [1]


def test_a_bad_line_spares_the_other_lines_of_its_record() -> None:
    decoded = both(b"\n".join([GOOD, b"", b"{nope", GOOD, b'{"user_id":1}', GOOD, b""]))
    assert decoded.events.place.tolist() == [(10 << 16) + line for line in (0, 3, 5)]
    assert [(r.record, r.line, r.kind, r.value) for r in decoded.refusals] == [
        (0, 2, "malformed", b"{nope"),
        (0, 4, "item_id", b'{"user_id":1}'),
    ]


def test_one_object_printed_over_several_lines() -> None:
    pretty = json.dumps({"user_id": 7, "item_id": "x", "nested": {"a": [1, 2]}}, indent=2).encode()
    decoded = both(GOOD, b"\n" + pretty, GOOD)
    assert decoded.events.user_key.tolist() == [1, 7, 1]
    assert not decoded.refusals
    hidden = b'{"user_id":7,"item_id":8,"context":\n{"user_id":1,"item_id":2}\n}'  # the inner line alone would pass
    assert both(hidden).events.user_key.tolist() == [7]
    (refusal,) = both(b'{"user_id":7,\n"item_id":8,"label":-3}').refusals
    assert (refusal.kind, refusal.line) == ("label", 0)


def test_oversized_records_and_too_many_lines() -> None:
    limit = IngestSettings().max_record_bytes
    padded = GOOD + b" " * (limit - len(GOOD))
    decoded = both(padded, padded + b" ", GOOD, b"\n" * 65_536 + GOOD, b"\n" * 65_535 + GOOD)
    assert [(r.record, r.kind) for r in decoded.refusals] == [(1, "oversized"), (3, "lines")]
    assert str(limit) in decoded.refusals[0].reason
    assert "65537 lines" in decoded.refusals[1].reason
    assert decoded.events.place.tolist() == [10 << 16, 12 << 16, (14 << 16) + 65_535]


def test_a_record_without_its_own_timestamp() -> None:
    (refusal,) = both(GOOD, produced_ms=-1).refusals
    assert "record's timestamp is -1" in refusal.reason
    decoded = both(b'{"user_id":1,"item_id":2,"timestamp":1700000000000}', produced_ms=-1)
    assert decoded.events.produced_ms.tolist() == [0]
    (refusal,) = both(GOOD, produced_ms=1_789_999_000).refusals
    assert "seconds" in refusal.reason


def test_the_wall_clock_does_not_decide_what_a_replay_lets_in() -> None:
    event = f'{{"user_id":1,"item_id":2,"timestamp":{PRODUCED + 86_400_001}}}'.encode()
    for now in (PRODUCED, NOW, NOW + 10**12):
        assert len(JsonLines(DOOR).decode(records(event), now).refusals) == 1
        assert len(JsonLines(DOOR).decode(records(GOOD), now).events) == 1


def test_unknown_fields_are_ignored_and_counted() -> None:
    decoded = both(
        GOOD, b'{"x":"y","user_id":1,"item_id":2,"z":[{"user_id":5}]}', b'{"user_id":1,"item_id":2,"q":null}'
    )
    assert (len(decoded.events), decoded.unknown_fields) == (3, 2)
    assert decoded.events.user_key.tolist() == [1, 1, 1]


def test_no_records_and_read_only_columns() -> None:
    assert len(both().events) == 0
    frozen = records(GOOD, GOOD)
    for column in (frozen.partition, frozen.offset, frozen.produced_ms):
        column.flags.writeable = False
    assert len(JsonLines(DOOR).decode(frozen, NOW).events) == 2


names = st.sampled_from(
    ["user_id", "item_id", "label", "weight", "timestamp", "x", "user_i", "user_idd", "timestamq", "é"]
)
ids = st.one_of(
    st.integers(-(2**65), 2**65),
    st.integers(0, 10**6),
    st.integers(0, 2**70).map(str),
    st.text(min_size=1, max_size=20),
    st.text(st.characters(categories=("Ll",)), min_size=1, max_size=40),
)
times = st.one_of(
    st.integers(-10, 2**62),
    st.integers(90_000_000_000, NOW + 10**8),
    st.datetimes().map(lambda d: d.isoformat() + "Z"),
    st.datetimes().map(lambda d: d.isoformat(timespec="seconds") + "Z"),
    st.datetimes().map(lambda d: d.isoformat(timespec="milliseconds") + "Z"),
    st.text(max_size=24),
)
numbers = st.one_of(
    st.integers(-2, 6), st.floats(), st.decimals(0, 2000, places=3).map(float), st.booleans(), st.none(), st.text()
)
scalars = st.one_of(numbers, ids, times)
event_objects = st.one_of(
    st.fixed_dictionaries(
        {"user_id": ids, "item_id": ids},
        optional={"label": numbers, "weight": numbers, "timestamp": times, "x": scalars},
    ),
    st.dictionaries(
        names, st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(names, scalars, max_size=2))
    ),
)
layouts = st.sampled_from(
    [
        {"separators": (",", ":")},
        {"separators": (", ", ": ")},
        {"separators": (" ,\t", " :\r ")},
        {"indent": 1},
        {"ensure_ascii": False},
        {"ensure_ascii": False, "separators": (",", ":")},
    ]
)


@st.composite
def written(draw: st.DrawFn) -> bytes:
    text = json.dumps(draw(event_objects), **draw(layouts)).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 3))
        text = text[:at] + draw(st.sampled_from(PIECES)) + text[at + cut :]
    return text


PIECES = [
    b"", b"", b'"', b"\\", b"{", b"}", b",", b":", b"\n", b"\r\n", b" ", b"0", b"-", b".", b"e5", b"E", b"9" * 16,
    b"true", b"null", b"fals", b"\x00", b"\x1f", b"\x7f", b"\xff",
    b"\xc3\xa9", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xe2\x82", b'"user_id":1', b',"label":0', b'"timestamp":', b"Z", b"[1]",
]  # fmt: skip


@settings(max_examples=1500, deadline=None)
@given(st.lists(written(), max_size=8))
def test_the_hand_parser_never_differs(values: list[bytes]) -> None:
    both(*values)


@settings(max_examples=400, deadline=None)
@given(st.lists(written(), max_size=8))
def test_nor_over_json_lines(lines: list[bytes]) -> None:
    both(b"\n".join(lines), GOOD, b"\n".join(lines) + b"\n")


@settings(max_examples=800, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b'{"user_id":1,"item_id":2'])
@example([b'{"user_id":1,"item_id":2,"timestamp'])
@example([b'{"user_id":1,"item_id":2,"weight":t'])
def test_nor_over_any_bytes(values: list[bytes]) -> None:
    both(*values)


def test_nor_over_every_truncation_and_every_changed_byte() -> None:
    text = (
        '{"user_id":"né😀","item_id":123,"label":0.5,"weight":12,"timestamp":"2024-02-29T01:02:03.456Z","x":true}'
    ).encode()
    both(*(text[:n] for n in range(len(text))))
    both(*(text[n:] for n in range(len(text))))
    for byte in b'\x00\n "\\,:{}[]-.0e9Z\x80\xc3\xff':
        both(*(text[:n] + bytes([byte]) + text[n + 1 :] for n in range(len(text))))


def test_the_hand_parser_takes_the_common_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    common = [
        b'{"user_id":17,"item_id":"sku-9","label":1,"weight":0.5,"timestamp":1700000000000}',
        b'{"user_id": "u", "item_id": 5, "timestamp": "2024-02-29T01:02:03.456Z", "page": "home", "n": 3.5}',
        '{"item_id":"é","user_id":"日本"}'.encode(),
    ]

    def never(*_: object) -> None:
        raise AssertionError("left to msgspec")

    monkeypatch.setattr(JsonLines, "_read", never)
    assert len(decode(*common, b"\n".join(common)).events) == 6
