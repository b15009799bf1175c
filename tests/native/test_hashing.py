"""`native.hashing` against the scalar twin `native.identity`, which rests on the xxhash package."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.hashing import keys_and_checks, keys_of_lines
from native.identity import MAX_ID_BYTES, key_and_check
from native.ragged import Ragged

INTEGER_LIKE = [
    b"0", b"00", b"1", b"9", b"007", b"00123", b"-5", b"-0", b"+5", b" 5", b"5 ", b"1.0", b"1e3", b"/", b":", b"12/",
    b"1:", *(str(2**63 + d).encode() for d in (-2, -1, 0, 1)), *(str(2**64 + d).encode() for d in (-1, 0, 1)),
    b"9" * 19, b"9" * 20, b"1" + b"0" * 18, b"0" * 19, "٣".encode(), "²".encode(),
]  # fmt: skip


def check(ids: list[bytes]) -> None:
    keys, checks = keys_and_checks(Ragged.of(ids))
    assert list(zip(keys.tolist(), checks.tolist(), strict=True)) == [key_and_check(i) for i in ids]


def test_every_length_up_to_the_limit() -> None:
    data = np.random.default_rng(7).integers(0, 256, MAX_ID_BYTES, dtype=np.uint8).tobytes()
    check([data[:n] for n in range(MAX_ID_BYTES + 1)])
    check([data[n:] for n in range(MAX_ID_BYTES + 1)])
    check([b"\x00" * n for n in range(MAX_ID_BYTES + 1)] + [b"\xff" * n for n in range(MAX_ID_BYTES + 1)])


def test_ids_that_look_like_integers() -> None:
    check(INTEGER_LIKE)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.one_of(st.binary(max_size=MAX_ID_BYTES), st.integers().map(lambda i: str(i).encode()[:512]))))
def test_any_bytes(ids: list[bytes]) -> None:
    check(ids)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.from_regex(rb"\A[0-9]{1,22}\Z"), min_size=1))
def test_any_digits(ids: list[bytes]) -> None:
    check(ids)


def test_column_that_starts_inside_its_bytes_and_read_only_arrays() -> None:
    ids = Ragged(np.array([3, 5, 5, 9], np.int64), np.frombuffer(b"xxx42abcdyyy", np.uint8))
    keys, checks = keys_and_checks(ids)
    assert list(zip(keys.tolist(), checks.tolist(), strict=True)) == [key_and_check(b) for b in (b"42", b"", b"abcd")]
    again, _ = keys_and_checks(Ragged(ids.offsets.copy(), ids.data.copy()))
    assert again.tolist() == keys.tolist()


def test_no_ids() -> None:
    keys, checks = keys_and_checks(Ragged.empty())
    assert (len(keys), keys.dtype, len(checks), checks.dtype) == (0, np.uint64, 0, np.uint32)


@pytest.mark.parametrize(
    ("offsets", "says"),
    [([0, 513], "513 bytes"), ([0, 601], "601 bytes"), ([599, 601], "leave"), ([-1, 2], "leave"), ([5, 2], "leave")],
)
def test_offsets_that_would_read_elsewhere_are_refused(offsets: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        keys_and_checks(Ragged(np.array(offsets, np.int64), np.zeros(600, np.uint8)))


@pytest.mark.parametrize("text", [b"a", b"17\nb", b"0\n007\n" + b"x" * 512, "é\n日本".encode()])
def test_lines_have_the_keys_of_their_ids(text: bytes) -> None:
    ids = text.split(b"\n")
    keys = keys_of_lines(text, len(ids))
    assert keys is not None
    assert keys.tolist() == [key_and_check(identity)[0] for identity in ids]


@pytest.mark.parametrize(("text", "n"), [(b"", 1), (b"a\n", 2), (b"\na", 2), (b"a\n" + b"x" * 513, 2), (b"a", 3)])
def test_lines_that_are_no_ids_have_no_keys(text: bytes, n: int) -> None:
    assert keys_of_lines(text, n) is None
