"""Records against struct and NumPy: written, framed, read back."""

import struct

import numpy as np
import pytest

from native.ragged import Ragged
from native.rows import (
    BARE,
    ENTRY_BYTES,
    FENCED,
    FIELD_FRAME,
    HEADER,
    HEADER_BYTES,
    decode_headers,
    digits,
    encode_fields,
    encode_records,
    gather_fixed,
    gather_ragged,
    place_records,
    put_fixed,
    put_ragged,
    same_bytes,
)


def rows(n: int, dim: int, state_dim: int, entries: int):
    rng = np.random.default_rng(n + dim)
    headers = np.zeros(n, HEADER)
    headers["clock"] = rng.integers(0, 2**60, n)
    headers["gap"] = rng.random(n)
    headers["entries"] = rng.integers(0, entries + 1, n)
    ids = Ragged.of([b"x" * int(k) for k in rng.integers(0, 40, n)])
    headers["id_len"] = ids.lengths
    bounds = np.concatenate([[0], np.cumsum(headers["entries"].astype(np.int64))])
    body = [rng.integers(0, 256, size, np.uint8) for size in ((n, 4 * dim), (n, 4 * state_dim), 32 * bounds[-1])]
    keys = rng.integers(0, 2**64, n, np.uint64)
    for array in (keys, headers, *body, bounds, ids.data, ids.offsets):
        array.flags.writeable = False
    return keys, headers, *body, bounds, ids


def oracle(i: int, headers, vectors, state, entries, bounds, ids) -> bytes:
    h = headers[i]
    packed = struct.pack("<qqqqffIHH", *h.tolist())
    return (
        packed
        + vectors[i].tobytes()
        + state[i].tobytes()
        + entries[32 * bounds[i] : 32 * bounds[i + 1]].tobytes()
        + ids.at(i)
    )


@pytest.mark.parametrize(
    ("n", "dim", "state_dim", "entries"), [(0, 3, 0, 0), (1, 1, 1, 0), (50, 7, 7, 0), (50, 0, 0, 300)]
)
@pytest.mark.parametrize("framed", [False, True])
def test_encode_and_decode(n, dim, state_dim, entries, framed):
    keys, headers, vectors, state, packed, bounds, ids = rows(n, dim, state_dim, entries)
    want = [oracle(i, headers, vectors, state, packed, bounds, ids) for i in range(n)]
    chosen = np.arange(n)[::-2].copy()
    lengths = np.array([len(want[i]) for i in chosen], np.int64)
    at = np.empty(len(chosen), np.int64)
    out = np.empty(place_records(lengths, framed, at), np.uint8)
    encode_records(
        chosen, keys, headers.view(np.uint8).reshape(n, HEADER_BYTES), vectors, state, packed, bounds,
        ids.data, ids.offsets, framed, at, out,
    )  # fmt: skip
    if framed:
        parts = [
            b"$8\r\n%b\r\n$%d\r\n%b\r\n" % (struct.pack("<Q", int(keys[i])), len(want[i]), want[i]) for i in chosen
        ]
    else:
        parts = [want[i] for i in chosen]
    assert out.tobytes() == b"".join(parts)

    joined = np.frombuffer(b"".join(want[i] for i in chosen), np.uint8)
    at = np.concatenate([[0], np.cumsum(lengths)])
    got, body_at, id_at = np.zeros(n, HEADER), np.zeros(n, np.int64), np.zeros(n, np.int64)
    body, unit = (0, ENTRY_BYTES) if entries else (4 * (dim + state_dim), 0)
    raw = got.view(np.uint8).reshape(n, HEADER_BYTES)
    assert decode_headers(joined, at, body, unit, chosen, raw, body_at, id_at) == -1
    assert (got[chosen] == headers[chosen]).all()
    found = np.zeros(n, np.bool_)
    found[chosen] = True
    back = np.zeros((n, 4 * dim), np.uint8)
    gather_fixed(joined, body_at, found, 0, back)
    assert (back[found] == vectors[found]).all()
    assert not back[~found].any()
    offsets = np.concatenate([[0], np.cumsum(got["id_len"].astype(np.int64))])
    texts = np.zeros(offsets[-1], np.uint8)
    gather_ragged(joined, id_at, found, offsets, texts)
    assert Ragged(offsets, texts).tolist() == [ids.at(i) if found[i] else b"" for i in range(n)]


@pytest.mark.parametrize("cut", [0, 10, 47, 48, 60])
def test_a_torn_record_is_noticed(cut):
    _, headers, vectors, state, packed, bounds, ids = rows(1, 3, 0, 0)
    record = oracle(0, headers, vectors, state, packed, bounds, ids)[:cut]
    out, at = np.zeros((1, HEADER_BYTES), np.uint8), np.zeros(1, np.int64)
    data = np.frombuffer(record, np.uint8)
    assert decode_headers(data, np.array([0, len(data)]), 12, 0, np.array([0]), out, at, at.copy()) == 0


@pytest.mark.parametrize(("flags", "size"), [(BARE, 48), (BARE | FENCED, 80), (FENCED, 48 + 12 + 3 + 32), (0, 63)])
def test_flags_say_what_follows_a_header(flags, size):
    """A bare record has no body and no id, whatever the rest of its header says; a fence is at the end."""
    header = np.zeros(1, HEADER)
    header["entries"], header["id_len"] = flags, 3
    for length, first_wrong in ((size, -1), (size - 1, 0), (size + 1, 0)):
        data = np.zeros(length, np.uint8)
        data[:48] = header.view(np.uint8)[:length]
        out, at, id_at = np.zeros((1, HEADER_BYTES), np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64)
        got = decode_headers(data, np.array([0, length]), 12, 0, np.array([0]), out, at, id_at)
        assert got == first_wrong
        if got == -1:
            assert (at[0], id_at[0]) == (48, 48 if flags & BARE else 60)


def test_bytes_are_compared_and_put():
    one, other = np.frombuffer(b"abcabdabc", np.uint8), np.frombuffer(b"xabc", np.uint8)
    out = np.ones(4, np.bool_)
    same_bytes(one, np.array([0, 3, 6, 8]), other, np.array([1, 1, 1, 0]), np.array([3, 3, 3, 0]), out)
    assert out.tolist() == [True, False, True, True]
    where = np.zeros(7, np.uint8)
    chosen = np.array([True, False, True])
    put_ragged(one, np.array([0, 3, 4]), np.array([2, 3, 2]), chosen, np.array([5, 0, 0]), where)
    assert where.tobytes() == b"bd\0\0\0ab"
    put_fixed(np.frombuffer(b"123456", np.uint8).reshape(3, 2), chosen, np.array([0, 9, 3]), where)
    assert where.tobytes() == b"12\x0056ab"


@pytest.mark.parametrize("n", [0, 1, 9])
def test_fields(n):
    keys = np.random.default_rng(n).integers(0, 2**64, n, np.uint64)
    keys.flags.writeable = False
    out = np.empty(FIELD_FRAME * n, np.uint8)
    encode_fields(keys, out)
    assert out.tobytes() == b"".join(b"$8\r\n%b\r\n" % struct.pack("<Q", int(k)) for k in keys)


def test_digits():
    assert [digits(v) for v in (0, 9, 10, 99, 100, 12345)] == [1, 1, 2, 2, 3, 5]
