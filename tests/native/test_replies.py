"""Replies in a buffer against hiredis, cut at every byte."""

import random
from itertools import pairwise

import hiredis
import numpy as np
import pytest

from native.replies import DAMAGED, skip_replies, take_bulks


def data_of(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


def random_reply(rng: random.Random, depth: int = 0) -> bytes:
    kind = rng.choice("+-:$$$***" if depth < 3 else "+-:$$$")
    if kind == "*":
        size = rng.choice([-1, 0, 1, 2, 5])
        return b"*%d\r\n" % size + b"".join(random_reply(rng, depth + 1) for _ in range(max(0, size)))
    if kind == "$":
        size = rng.choice([-1, 0, 1, 3, 40])
        return b"$%d\r\n" % size + (rng.randbytes(size) + b"\r\n" if size >= 0 else b"")
    return kind.encode() + (b"%d" % rng.randint(-99, 10**12) if kind == ":" else b"ERR or so") + b"\r\n"


@pytest.mark.parametrize("seed", range(30))
def test_a_reply_ends_where_hiredis_says(seed):
    rng = random.Random(seed)
    replies = [random_reply(rng) for _ in range(4)]
    raw = b"".join(replies)
    at = 0
    for reply in replies:
        end, pending = skip_replies(data_of(raw), at, len(raw), 1)
        assert (end - at, pending) == (len(reply), 0)
        reader = hiredis.Reader()
        reader.feed(raw[at:end])
        assert reader.gets() is not False
        at = end


@pytest.mark.parametrize("seed", range(10))
def test_bytes_may_come_one_by_one(seed):
    reply = random_reply(random.Random(seed))
    at, pending = 0, 1
    for end in range(len(reply) + 1):
        assert pending > 0
        at, pending = skip_replies(data_of(reply), at, end, pending)
        assert at <= end
    assert (at, pending) == (len(reply), 0)


def test_what_is_no_reply_is_told():
    for raw in (b"HTTP/1.1 400\r\n", b"*1\r\n%1\r\n", b"\0"):
        assert skip_replies(data_of(raw), 0, len(raw), 1)[1] == DAMAGED


def test_rows_are_copied_end_to_end():
    rng = random.Random(0)
    values = [None if rng.random() < 0.3 else rng.randbytes(rng.choice([1, 9, 10, 300])) for _ in range(200)]
    raw = b"+OK\r\n*200\r\n" + b"".join(b"$-1\r\n" if v is None else b"$%d\r\n%b\r\n" % (len(v), v) for v in values)
    raw += b":7\r\n"
    there = [v for v in values if v is not None]
    found, bounds, out = np.zeros(200, bool), np.zeros(204, np.int64), np.zeros(len(raw) + 3, np.uint8)
    bounds[1:4] = (1, 2, 3)  # three rows were taken before
    taken, end = take_bulks(data_of(raw), 5, len(raw), found, bounds, 3, out)
    assert (taken, end) == (3 + len(there), len(raw) - 4)
    assert found.tolist() == [v is not None for v in values]
    assert [out[a:b].tobytes() for a, b in pairwise(bounds[3 : taken + 1])] == there


@pytest.mark.parametrize("raw", [b"*2\r\n$1\r\na\r\n$1\r\nb\r\n", b"*1\r\n:3\r\n", b"*-1\r\n", b"*1\r\n*0\r\n"])
def test_another_array_is_refused(raw):
    found, bounds, out = np.zeros(1, bool), np.zeros(2, np.int64), np.zeros(50, np.uint8)
    assert take_bulks(data_of(raw), 0, len(raw), found, bounds, 0, out)[0] == -1
