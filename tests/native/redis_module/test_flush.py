"""TOW.APPLY's blob: every length and number is checked, and the sentence has both values."""

import struct
from contextlib import suppress

import numpy as np
import pytest

from tests.native.redis_module.blobs import HEAD, HEAD_NAMES, PLACE_NONE, Blob, full
from tests.native.redis_module.parsers import Parsers, Refused

SIZE = len(full().bytes())


@pytest.fixture(scope="module")
def parsers(tmp_path_factory) -> Parsers:
    return Parsers(tmp_path_factory.mktemp("parsers"))


def test_good_calls(parsers):
    parsers.flush(full().bytes(), 3, 2)
    parsers.flush(Blob().bytes(), 0, 0)
    parsers.flush(Blob(ranges=[(b"s" * 600, 0, 2**63 - 1)], events=2**63 - 1).bytes(), 0, 0)
    parsers.flush(full().bytes(), 3, 2)  # nothing is left of the call before


def test_every_length_but_its_own_is_refused(parsers):
    blob = full().bytes()
    for size in range(SIZE):
        with pytest.raises(Refused, match=rf"^TOWBAD .*{size}"):
            parsers.flush(blob[:size], 3, 2)
    for more in (1, 7, 4096):
        with pytest.raises(Refused, match=rf"columns take {SIZE} bytes, but it has {SIZE + more}"):
            parsers.flush(blob + bytes(more), 3, 2)


@pytest.mark.parametrize("name", HEAD_NAMES)
@pytest.mark.parametrize("value", [0, 1, 5, 2**16 + 1, 2**20, 2**20 + 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_any_number_in_the_head_is_read_or_refused(parsers, name, value):
    """With what the columns have, only numbers that count nothing may be others."""
    code = dict(zip(HEAD_NAMES, HEAD.format[1:].replace("5q", "qqqqq").replace("6I", "I" * 6).replace("3Q", "QQQ")
                    .replace("2I", "II"), strict=True))[name]  # fmt: skip
    width = struct.calcsize(code)
    signed = code == "q"
    if value >= 2 ** (8 * width):
        return
    whole = struct.unpack(f"<{code}", value.to_bytes(width, "little"))[0] if signed else value
    blob = full()
    blob.head = {name: whole}
    free = {"generation", "event_time_ms", "produced_ms"}
    good = whole >= 0 and (
        name in free or (name == "now_ms" and whole < 2**53) or (name == "events" and whole >= 2)
        or (name, whole) in {("version", 1), ("version", 2), ("unused", 0)}
    )  # fmt: skip
    try:
        parsers.flush(blob.bytes(), 3, 2)
    except Refused:
        assert not good
    else:
        assert good


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"head": {"version": 3}}, "format version 3; this module reads 1 to 2"),
        ({"head": {"version": 0}}, "format version 0; this module reads 1 to 2"),
        ({"head": {"flags": 127}}, "flags 0x7f; known are 0x3f"),
        ({"head": {"flags": 63, "version": 1}}, "flags 0x3f; known are 0x1f"),
        ({"head": {"flags": 63}}, "flags 0x3f say that places of own events are here, and that they are not"),
        ({"dim": 4}, "has dim 3 and state_dim 2, the call is for 4 and 2"),
        ({"ranges": []}, "0 ranges"),
        ({"head": {"ranges": 65537}}, "65537 ranges in one call; at most 65536"),
        ({"head": {"keys": 10_000_000}}, "10000000 keys in one call; at most 1048576"),
        ({"head": {"forgets": 2**32 - 1}}, "4294967295 forgets in one call; at most 1048576"),
        ({"head": {"ids_size": 2**64 - 8}}, "18446744073709551608 bytes of ids in a call of"),
        ({"head": {"sources_size": 2**63}}, "9223372036854775808 bytes of sources in a call of"),
        ({"head": {"unused": 9}}, "last field must be 0, got 9"),
        ({"state": None}, "state_dim 2, changes of state missing"),
        ({"deltas": False}, "changes of state given"),
        ({"head": {"flags": 23}}, "3 places of own events, but flags 0x17"),
        ({"generation": -1}, "generation must not be negative, got -1"),
        ({"now_ms": 2**53}, "now_ms must be below 9007199254740992, got 9007199254740992"),
        ({"events": 1}, r"count of key 0 is 2; it must lie in \[0, events = 1\]"),
        ({"ranges": [(b"t:0", 3, 3)]}, r"range 0, \[3, 3\), is empty or negative"),
        ({"ranges": [(b"t:0", -1, 3)]}, r"range 0, \[-1, 3\)"),
        ({"ranges": [(b"", 0, 3)]}, "source of range 0 has 0 bytes; 1 to 600"),
        ({"ranges": [(b"s" * 601, 0, 3)]}, "source of range 0 has 601 bytes; 1 to 600"),
        ({"ranges": [(b"b", 0, 1), (b"a", 0, 1), (b"b", 0, 1)]}, "source b has two ranges, number [02] and [02]"),
        ({"ranges": [(b"b", 0, 1), (b"b", 1, 2)]}, "source b has two ranges"),
        ({"lengths": {"sources": [7, 7, 10]}}, "lengths of sources add up to 24, but they have 23 bytes"),
        ({"lengths": {"ids": [6, 0, 512, 1]}}, "lengths of ids add up to 519, but they have 520 bytes"),
        ({"lengths": {"ids": [6, 0, 513, 1]}}, "id of key 2 has 513 bytes; at most 512"),
        ({"lengths": {"values": [5, 2**32 - 1, 300]}}, "lengths of values add up to 4294967600, but they have 305"),
        ({"counts": [2, -1, 1, 0]}, r"count of key 1 is -1; it must lie in \[0, events = 8\]"),
        ({"positives": [1, float("nan"), 0, 0]}, "positives of key 1 are -?nan"),
        ({"positives": [1, 2e15, 0, 0]}, "positives of key 1 are 2e"),
        ({"appends": [(4, (7, 0, 9, 1, 1.0))]}, "append 0 is of row 4; the call has 4 keys"),
        ({"appends": [(0, (-7, 0, 9, 1, 1.0))]}, "append 0 is at time -7 and place 0"),
        ({"appends": [(0, (7, 0, 9, 1, float("inf")))]}, "weight of append 0 is inf"),
        ({"values": [(2**32 - 1, (1, 1, 1), b"")]}, "value 0 is of row 4294967295"),
        ({"values": [(1, (PLACE_NONE, 1, 1), b"")]}, "value 0 is at time -9223372036854775808 and place 1"),
        ({"own": [(0, (1, 1, 1), 0.0)]}, "1 places of own events, but counts of 3"),
        ({"own": [(0, (1, 1, 1), 0.0)] * 3}, "key 0 has 3 places of own events, but a count of 2"),
        ({"own": [(2, (1, 1, 1), 0.0), (0, (1, 1, 1), 0.0), (2, (1, 1, 1), 0.0)]}, "key 0 has 1 places .* count of 2"),
        ({"own": [(0, (1, 1, 1), 0.0), (0, (1, 1, 1), 0.0), (3, (1, 1, 1), 0.0)]}, "key 2 has 0 places .* count of 1"),
        ({"own": [(9, (1, 1, 1), 0.0)] * 3}, "own event 0 is of row 9"),
        ({"own": [(0, (1, -1, 1), 0.0)] * 3}, "own event 0 is at time 1 and place -1"),
        ({"own": [(0, (1, 1, 1), -1.0)] * 3}, "positives of own event 0 are -1"),
        ({"forgets": [(4, (1, 1, 1)), (0, (1, 1, 1))]}, "forget 0 is of row 4"),
        ({"forgets": [(2, (1, 1, 1)), (2, (1, 2, 1))]}, "forget 1 is of row 2, as an earlier one is"),
        ({"forgets": [(2, (1, 1, 1)), (1, (-1, 2, 1))]}, "forget 1 is at time -1 and place 2"),
    ],
)
def test_what_is_refused(parsers, change, sentence):
    blob = full()
    for name, value in change.items():
        setattr(blob, name, value)
    with pytest.raises(Refused, match=f"^TOWBAD .*{sentence}"):
        parsers.flush(blob.bytes(), 3, 2)
    parsers.flush(full().bytes(), 3, 2)  # a refused call leaves nothing behind


def test_many_sources_in_any_order(parsers):
    rng = np.random.default_rng(5)
    names = [b"topic-%d:%d" % (k % 7, k) for k in range(3000)]
    rng.shuffle(names)
    parsers.flush(Blob(ranges=[(name, 0, 1) for name in names]).bytes(), 0, 0)
    repeated = names[int(rng.integers(len(names)))]
    names.insert(int(rng.integers(len(names))), repeated)
    with pytest.raises(Refused, match=f"source {repeated.decode()} has two ranges"):
        parsers.flush(Blob(ranges=[(name, 0, 1) for name in names]).bytes(), 0, 0)


def test_random_changes_of_bytes_never_read_past_the_end(parsers):
    rng = np.random.default_rng(11)
    good = np.frombuffer(full().bytes(), np.uint8)
    for _ in range(4000):
        changed = good.copy()
        at = rng.integers(0, SIZE if rng.random() < 0.3 else 400, rng.integers(1, 4))
        changed[at] = rng.integers(0, 256, len(at))
        with suppress(Refused):
            parsers.flush(changed.tobytes(), 3, 2)
