"""Replies that come in pieces, beside each other and too large for the buffer."""

import random

import numpy as np
import pytest

from embedding_store.redis_store.replies import KEPT_BYTES, READ_BYTES, DamagedStream, Replies, RowReplies


class Refused(Exception):
    pass


def over(raw: bytes, sizes=lambda: READ_BYTES) -> Replies:
    """Replies over a connection that delivers so many bytes at a time, and then closes."""
    at = 0

    def receive_into(buffer: memoryview) -> int:
        nonlocal at
        size = min(sizes(), len(buffer), len(raw) - at)
        buffer[:size] = raw[at : at + size]
        at += size
        return size

    return Replies(receive_into, Refused)


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def array(values) -> bytes:
    return b"*%d\r\n" % len(values) + b"".join(map(bulk, values))


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_other_replies_in_any_pieces(seed):
    rng = random.Random(seed)
    parts = [[rng.choice([None, rng.randbytes(rng.randint(1, 3000))]) for _ in range(n)] for n in (300, 0, 1, 700)]
    raw = (
        b"+OK\r\n"
        + array(parts[0])
        + b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n"
        + b"".join(map(array, parts[1:]))
        + b"-ERR x\r\n"
    )
    largest = rng.choice([7, 1000, 1 << 20])
    replies = over(raw, lambda: rng.randint(1, largest))
    rows = RowReplies(1001, rng.choice([1, 4000]))
    assert replies.take() == b"OK"
    assert replies.take_rows(rows, 300) is None
    assert replies.take() == [1, [b"a"]]
    for part in parts[1:]:
        assert replies.take_rows(rows, len(part)) is None
    assert isinstance(replies.take(), Refused)
    assert not replies.waiting
    records = rows.records()
    wanted = [value for part in parts for value in part]
    assert records.found.tolist() == [value is not None for value in wanted]
    got = [records.data[a:b].tobytes() for a, b in zip(records.bounds[:-1], records.bounds[1:], strict=True)]
    assert got == [value for value in wanted if value is not None]


def test_an_error_instead_of_rows_is_the_reply():
    replies = over(b"-MOVED 1 here:1\r\n" + array([b"x"]))
    rows = RowReplies(1, 1)
    assert str(replies.take_rows(rows, 1)) == "MOVED 1 here:1"
    assert replies.take_rows(rows, 1) is None
    assert rows.records().data.tobytes() == b"x"


def test_a_large_reply_is_not_kept():
    big = b"v" * (3 * KEPT_BYTES)
    replies = over(bulk(big) + b"+OK\r\n")
    assert replies.take() == big
    assert replies.take() == b"OK"
    assert len(replies._data) <= KEPT_BYTES


@pytest.mark.parametrize(
    ("raw", "error"),
    [(b"HTTP/1.1 400 Bad Request\r\n", DamagedStream), (b"", ConnectionError), (b"*1\r\n$9\r\nabc", ConnectionError)],
)
def test_what_is_no_reply_and_what_ends_early(raw, error):
    with pytest.raises(error):
        over(raw).take()


def test_too_few_rows_are_noticed():
    with pytest.raises(DamagedStream, match="HMGET of 2 fields"):
        over(array([b"a"])).take_rows(RowReplies(2, 9), 2)
    rows = RowReplies(2, 9)
    over(array([b"a"])).take_rows(rows, 1)
    with pytest.raises(AssertionError, match="1 of 2 rows"):
        rows.records()
    assert RowReplies(0, 9).records().found.dtype == np.bool_


@pytest.mark.parametrize("seed", range(6))
def test_blobs_come_in_arrays_of_their_own(seed):
    """Beside ordinary replies, nested, and in any pieces."""
    rng = random.Random(seed)
    largest = rng.choice([1, 7, 1000, 1 << 20])
    longest = 5000 if largest < 1000 else 3 * READ_BYTES
    values = [rng.randbytes(rng.choice([0, 1, 63, 64, 65, longest])) for _ in range(8)]
    raw = (
        b"+OK\r\n"
        + b"".join(map(bulk, values))
        + b":12\r\n$-1\r\n*-1\r\n*0\r\n*4\r\n:-7\r\n$-1\r\n"
        + bulk(values[0])
        + b"*1\r\n"
        + bulk(values[1])
        + b"-TOWBAD "
        + b"x" * 500
        + b"\r\n"
        + array([b"a"])
    )
    replies = over(raw, lambda: rng.randint(1, largest))
    assert replies.take_blobs() == b"OK"
    for value in values:
        blob = replies.take_blobs()
        assert blob.tobytes() == value
        assert blob.flags.writeable
    assert [replies.take_blobs() for _ in range(4)] == [12, None, None, []]
    number, nil, string, (inner,) = replies.take_blobs()
    assert (number, nil, string.tobytes(), inner.tobytes()) == (-7, None, values[0], values[1])
    assert str(replies.take_blobs()) == "TOWBAD " + "x" * 500
    assert replies.take() == [b"a"]
    assert not replies.waiting


def test_a_blob_that_does_not_end_is_damage():
    with pytest.raises(DamagedStream, match="a string of 3 bytes does not end where it says"):
        over(b"$3\r\nabcde").take_blobs()
    with pytest.raises(ConnectionError):
        over(b"$3\r\nab").take_blobs()
    with pytest.raises(DamagedStream):
        over(b"?what\r\n").take_blobs()
    with pytest.raises(DamagedStream):
        over(b"$1x\r\nabcd\r\n").take_blobs()
