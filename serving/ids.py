"""Ids as they arrive in paths, query strings and JSON: canonical bytes of 1 to 512, and the keys of many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from urllib.parse import unquote_to_bytes

import numpy as np
import xxhash

from embedding_store.contract import U64
from native.hashing import keys_and_checks, keys_of_lines
from native.identity import MAX_ID_BYTES, TEXT_BIT, canonical, is_integer
from native.ragged import Ragged
from serving.problems import Problem, invalid


def from_path(raw_path: bytes, segments: int) -> bytes:
    """The id that follows `segments` path segments, percent-decoded. Raises Problem 422.

    Taken from the raw path: a server decodes it leniently, and bytes that aren't UTF-8 would meet in U+FFFD.
    """
    parts = raw_path.split(b"/", segments + 1)
    if len(parts) < segments + 2:
        raise Problem(404, "not-found", "no such path: separate the id from the tower by a plain slash")
    return _decoded(parts[-1], "id")


def from_query(query: bytes, name: str) -> bytes:
    """The id that a query string gives under `name`, once. Raises Problem 422.

    Taken from the raw bytes for the same reason; `+` is a space there, as forms and clients write it.
    """
    pairs = [part.partition(b"=") for part in query.split(b"&")]
    found = [value for key, _, value in pairs if unquote_to_bytes(key) == name.encode()]
    if len(found) != 1:
        raise invalid(name, f"{name} is given {len(found)} times: give it once, as in ?user_id=u1&item_id=i1")
    return _decoded(found[0].replace(b"+", b" "), name)


def _decoded(encoded: bytes, field: str) -> bytes:
    identity = unquote_to_bytes(encoded)
    try:
        identity.decode()
    except UnicodeDecodeError:
        raise invalid(field, "the id's percent-encoded bytes are not UTF-8") from None
    return checked(identity, field)


def from_json(entity: str | int, field: str) -> bytes:
    """Canonical bytes of a JSON id; `42` and `"42"` are the same. Raises Problem 422."""
    return checked(canonical(entity), field)


def checked(identity: bytes, field: str) -> bytes:
    """`identity` if it has 1 to 512 bytes. Raises Problem 422."""
    if not 1 <= len(identity) <= MAX_ID_BYTES:
        raise invalid(field, f"an id has 1 to {MAX_ID_BYTES} bytes in UTF-8, got {len(identity)}")
    return identity


def many(entities: Sequence[str | int], field: str) -> list[bytes]:
    """Canonical bytes of each id. Raises Problem 422 that names the first bad one's place."""
    identities = [str(entity).encode() for entity in entities]
    lengths = list(map(len, identities))
    if lengths and not (min(lengths) >= 1 and max(lengths) <= MAX_ID_BYTES):
        for i, identity in enumerate(identities):
            checked(identity, f"{field}[{i}]")
    return identities


def keys_of_many(entities: Sequence[str | int], field: str) -> U64:
    """(n,) keys of n ids as JSON gave them. Raises Problem 422 as `many`.

    Texts become lines of one text: an object an id would be half of what a batch costs.
    """
    try:
        text = "\n".join(cast("Sequence[str]", entities))
    except TypeError:  # integers among them
        return keys_of(many(entities, field))
    keys = None
    if text.count("\n") == len(entities) - 1:  # none within an id
        keys = keys_of_lines(text.encode(), len(entities))
    return keys if keys is not None else keys_of(many(entities, field))


def key_of(identity: bytes) -> int:
    """The key of canonical bytes: `native.identity.key_and_check` without check bits, which cost a loop per byte."""
    return int(identity) if is_integer(identity) else xxhash.xxh3_64_intdigest(identity) | TEXT_BIT


_FEW = 8  # ids: hashing them one by one costs less than the kernel's preparations


def keys_of(identities: Sequence[bytes]) -> U64:
    """(n,) keys of n ids in canonical bytes."""
    if len(identities) <= _FEW:
        return np.fromiter(map(key_of, identities), np.uint64, len(identities))
    return keys_and_checks(Ragged.of(identities))[0]
