"""From an id to its 64-bit key, the same in every process, language and release.

An integer in [0, 2^63) and its canonical decimal string are one id, and its key is the integer. Every other id is text:
its key is xxh3-64 of its UTF-8 bytes with the top bit set, so the two kinds can't meet. Check bits tell two texts that
share a key apart: FNV-1a-32 of the same bytes (0 for integers, whose key is already exact).
"""

from __future__ import annotations

import xxhash

MAX_ID_BYTES = 512
TEXT_BIT = 1 << 63


def canonical(entity: str | int) -> bytes:
    """The id's bytes as they are stored and answered: decimal digits or UTF-8 text."""
    return str(entity).encode()


def key_and_check(identity: bytes) -> tuple[int, int]:
    """(key uint64, check uint32) of an id in canonical bytes. Pure. The scalar twin of the bulk kernel."""
    if is_integer(identity):
        return int(identity), 0
    return xxhash.xxh3_64_intdigest(identity) | TEXT_BIT, fnv1a_32(identity)


def is_integer(identity: bytes) -> bool:
    """Whether the bytes are the canonical decimal form of an integer in [0, 2^63): `42` is, `00123`, `-5` are not."""
    if not identity.isdigit() or len(identity) > 19 or (identity[:1] == b"0" and len(identity) > 1):
        return False
    return int(identity) < TEXT_BIT


def fnv1a_32(data: bytes) -> int:
    """Fowler-Noll-Vo 1a, 32 bits (draft-eastlake-fnv)."""
    h = 0x811C9DC5
    for byte in data:
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h
