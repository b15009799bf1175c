"""Declared context features: which rows of table `feature` stand for a value, and columns of such values.

A row is keyed as ids are, by xxh3-64 of its text: `genre=Comedy` for a category, `city=#17` for one of a declared
number of hash buckets of categories, `age=[18.0,25.0)` for a bucket of numbers. So there is no vocabulary, and other
boundaries are other rows. 42 and "42" are one category, as they are one id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from native.identity import fnv1a_32, key_and_check
from native.ragged import Ragged

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

ITEM, USER, REQUEST = 0, 1, 2
"""Whose a feature is."""

CATEGORY, CATEGORIES, NUMBER = 0, 1, 2
"""One text or integer; a list of them; a number that falls in a bucket."""

MAX_CATEGORIES = 64
"""Of one list."""
MAX_VALUES = 256
"""Of one event, all its features together."""
MAX_CATEGORY_BYTES = 256

STORED = np.dtype([("key", "<u8"), ("feature", "<u4")])
"""One value in a record: the key of its row, and FNV-1a-32 of the feature's name."""


class BadValue(ValueError):
    """A feature's value that can't be taken. The message names feature, value and remedy."""


class Declared(NamedTuple):
    """A feature as the model declares it."""

    name: str
    side: int
    kind: int
    boundaries: tuple[float, ...] = ()  # rising; bucket i of a number x: as many boundaries as are ≤ x
    hash_buckets: int = 0  # 0: a row for each category


class Entry(NamedTuple):
    """One value of an event."""

    number: int  # of the feature
    key: int  # of its row


class FeatureSchema:
    """All declared features, with what kernels need of them; feature k is `declared[k]`."""

    def __init__(self, declared: Sequence[Declared] = ()) -> None:
        self.declared = tuple(declared)
        self.by_name = {one.name: k for k, one in enumerate(self.declared)}
        self.side: U8 = np.array([one.side for one in self.declared], np.uint8)
        self.kind: U8 = np.array([one.kind for one in self.declared], np.uint8)
        self.hash_buckets: U64 = np.array([one.hash_buckets for one in self.declared], np.uint64)
        self.hashes: U32 = np.array([fnv1a_32(one.name.encode()) for one in self.declared], np.uint32)
        self.names = Ragged.of(one.name.encode() for one in self.declared)
        buckets = [_bucket_keys(one) for one in self.declared]
        self.boundaries: F64 = np.array([b for one in self.declared for b in one.boundaries], np.float64)
        self.boundary_offsets: I64 = np.cumsum([0, *(len(one.boundaries) for one in self.declared)], dtype=np.int64)
        self.bucket_keys: U64 = np.array([key for keys in buckets for key in keys], np.uint64)
        self.bucket_offsets: I64 = np.cumsum([0, *map(len, buckets)], dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self.declared)

    def has(self, *sides: int) -> bool:
        """Whether a feature of any of the sides is declared."""
        return bool(np.isin(self.side, sides).any())

    def read(self, features: object) -> tuple[list[Entry], list[str]]:
        """(values of one decoded `features` object in its order, names in it that aren't declared). Raises BadValue."""
        if features is None:
            return [], []
        if not isinstance(features, Mapping):
            raise BadValue(f"features is {_shown(features)}; send an object of values by the features' names")
        entries: list[Entry] = []
        unknown = []
        for name, value in features.items():
            number = self.by_name.get(name) if isinstance(name, str) else None
            if number is None:
                unknown.append(str(name))
            elif value is not None:
                entries += [Entry(number, key) for key in keys_of(self.declared[number], value)]
        if len(entries) > MAX_VALUES:
            raise BadValue(f"features hold {len(entries)} values; at most {MAX_VALUES} are taken: send fewer")
        return entries, unknown


NO_FEATURES = FeatureSchema()


def keys_of(feature: Declared, value: object) -> list[int]:
    """Keys of the rows that stand for a value that is not null. Raises BadValue."""
    if feature.kind == NUMBER:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise BadValue(f"{feature.name} is {_shown(value)}; send a finite number")
        bucket = int(np.searchsorted(np.array(feature.boundaries), float(value), side="right"))
        return [_key(bucket_text(feature, bucket))]
    if feature.kind == CATEGORY or not isinstance(value, list | tuple):
        return [_category(feature, value)]
    if len(value) > MAX_CATEGORIES:
        raise BadValue(
            f"{feature.name} holds {len(value)} categories; at most {MAX_CATEGORIES} are taken: send those that matter"
        )
    return [_category(feature, one) for one in value]


def from_text(feature: Declared, text: str) -> object:
    """What a cell of a table says: nothing if empty, of categories the parts between `|`, of a number its value.

    A text that is no number stays one, and is refused as it would be in an event.
    """
    if text == "":
        return None
    if feature.kind == CATEGORIES:
        return [part for part in text.split("|") if part]
    if feature.kind == NUMBER:
        try:
            return float(text)
        except ValueError:
            return text
    return text


def bucket_text(feature: Declared, bucket: int) -> bytes:
    """The text of a bucket's row: it names its range, so that other boundaries are other rows."""
    bounds = (-math.inf, *feature.boundaries, math.inf)
    return f"{feature.name}=[{bounds[bucket]},{bounds[bucket + 1]})".encode()


def _category(feature: Declared, value: object) -> int:
    wanted = "a text or an integer" if feature.kind == CATEGORY else "texts or integers"
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadValue(f"{feature.name} is {_shown(value)}; send {wanted}")
    try:
        text = str(value).encode()
    except UnicodeEncodeError:
        raise BadValue(f"{feature.name} is {_shown(value)}, which is not valid Unicode; send UTF-8") from None
    except ValueError:  # an integer of more digits than Python writes
        raise BadValue(f"{feature.name} is an integer of {int(value).bit_length()} bits; send a shorter one") from None
    if not 1 <= len(text) <= MAX_CATEGORY_BYTES:
        raise BadValue(
            f"{feature.name} has {len(text)} bytes, {_shown(value)}; a category has 1 to {MAX_CATEGORY_BYTES}: leave "
            "out what is empty, shorten what is long"
        )
    key = _key(feature.name.encode() + b"=" + text)
    return key if not feature.hash_buckets else _key(b"%s=#%d" % (feature.name.encode(), key % feature.hash_buckets))


def _bucket_keys(feature: Declared) -> list[int]:
    if feature.kind != NUMBER:
        return []
    return [_key(bucket_text(feature, bucket)) for bucket in range(len(feature.boundaries) + 1)]


def _key(text: bytes) -> int:
    return key_and_check(text)[0]


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def _shown(value: object) -> str:
    """For a message: escaped to ASCII, cut, never raising."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} fields"
    text = ascii(value[:61] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 60 else text[:60] + "…"


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """Values of n rows, one after the other: row i has those at offsets[i]:offsets[i + 1], a feature's together."""

    offsets: I64  # (n + 1,) from 0
    number: U8  # (m,) which of the declared features
    key: U64  # (m,) of the row of table `feature`

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def empty(cls, n: int = 0) -> FeatureValues:
        """n rows without values."""
        return cls(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.uint64))

    @classmethod
    def of(cls, rows: Iterable[Sequence[Entry]]) -> FeatureValues:
        """From a list per row; for cold paths."""
        kept = list(rows)
        flat = [entry for row in kept for entry in row]
        return cls(
            np.cumsum([0, *map(len, kept)], dtype=np.int64),
            np.array([entry.number for entry in flat], np.uint8),
            np.array([entry.key for entry in flat], np.uint64),
        )

    @property
    def counts(self) -> I64:
        """(n,) values of each row."""
        return np.diff(self.offsets)

    def take(self, rows: I64) -> FeatureValues:
        """Some of the rows, any order, repeats allowed; copied."""
        offsets, at = csr_take(self.offsets, rows)
        return FeatureValues(offsets, self.number[at], self.key[at])

    def of_side(self, schema: FeatureSchema, *sides: int) -> FeatureValues:
        """The same rows with the values of those sides' features alone."""
        return self.where(np.isin(schema.side, sides)[self.number])

    def where(self, kept: npt.NDArray[np.bool_]) -> FeatureValues:
        """The same rows with some of the values (m,)."""
        if kept.all():
            return self
        before = np.zeros(len(kept) + 1, np.int64)
        np.cumsum(kept, out=before[1:])
        return FeatureValues(before[self.offsets], self.number[kept], self.key[kept])

    def beside(self, other: FeatureValues) -> FeatureValues:
        """Each row's values, then those of the other's same row; of features that the two don't share."""
        n = len(self)
        both = concatenate([self, other])
        pairs = np.stack([np.arange(n), n + np.arange(n)], axis=1).reshape(-1)
        paired = both.take(pairs)
        return FeatureValues(np.ascontiguousarray(paired.offsets[::2]), paired.number, paired.key)

    def weights(self) -> F32:
        """(m,) what each value's row counts: all of one feature are a mean."""
        out = np.empty(len(self.key), np.float32)
        _weigh(self.offsets, self.number, out)
        return out

    def stored(self, schema: FeatureSchema) -> Ragged:
        """(n,) what a record keeps of each row."""
        entries = np.empty(len(self.key), STORED)
        entries["key"], entries["feature"] = self.key, schema.hashes[self.number]
        return Ragged(self.offsets * STORED.itemsize, entries.view(np.uint8))

    @classmethod
    def from_stored(cls, schema: FeatureSchema, records: Ragged) -> FeatureValues:
        """Inverse of `stored`; values of features that are no longer declared are left out.

        Raises ValueError for what can't be such a record.
        """
        if (records.lengths % STORED.itemsize).any():
            raise ValueError(
                f"a record of features has {records.lengths.max()} bytes, no multiple of {STORED.itemsize}"
            )
        first = int(records.offsets[0])
        data = np.ascontiguousarray(records.data[first : int(records.offsets[-1])])
        entries = data.view(STORED)
        known = np.argsort(schema.hashes)
        at = np.searchsorted(schema.hashes[known], entries["feature"])
        number = known[np.minimum(at, max(0, len(known) - 1))] if len(known) else np.zeros(len(entries), np.int64)
        kept = schema.hashes[number] == entries["feature"] if len(known) else np.zeros(len(entries), np.bool_)
        whole = cls((records.offsets - first) // STORED.itemsize, number.astype(np.uint8), entries["key"].copy())
        return whole.where(np.asarray(kept, np.bool_))


def concatenate(parts: Sequence[FeatureValues]) -> FeatureValues:
    """The rows of several, one after the other."""
    if not parts:
        return FeatureValues.empty()
    offsets = np.zeros(sum(map(len, parts)) + 1, np.int64)
    np.cumsum(np.concatenate([part.counts for part in parts]), out=offsets[1:])
    return FeatureValues(
        offsets, np.concatenate([part.number for part in parts]), np.concatenate([part.key for part in parts])
    )


def csr_take(offsets: I64, rows: I64) -> tuple[I64, I64]:
    """(offsets of rows (r,) of a ragged column, (elements,) where each of their elements lies in it)."""
    counts = np.diff(offsets)[rows]
    taken = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=taken[1:])
    return taken, np.arange(taken[-1]) + np.repeat(offsets[:-1][rows] - taken[:-1], counts)


@njit(cache=True, nogil=True)
def _weigh(offsets: I64, number: U8, out: F32) -> None:
    counts = np.zeros(256, np.int64)
    for i in range(len(offsets) - 1):
        for k in range(offsets[i], offsets[i + 1]):
            counts[number[k]] += 1
        for k in range(offsets[i], offsets[i + 1]):
            out[k] = np.float32(1.0) / np.float32(counts[number[k]])
        for k in range(offsets[i], offsets[i + 1]):
            counts[number[k]] = 0


@njit(cache=True, nogil=True)
def add_bags(vectors: F32, chosen: I64, offsets: I64, rows: I64, weights: F32, out: F32) -> None:
    """out[i] += Σ_k weights[k]·vectors[rows[k]] over k in offsets[b]:offsets[b + 1] of bag b = chosen[i].

    Negative rows and bags add nothing. vectors (w, dim), offsets (bags + 1,), rows and weights (m,), out (n, dim).
    """
    for i in range(len(chosen)):
        bag = chosen[i]
        if bag < 0:
            continue
        target = out[i]
        for k in range(offsets[bag], offsets[bag + 1]):
            if rows[k] >= 0:
                weight = weights[k]
                source = vectors[rows[k]]
                for j in range(out.shape[1]):
                    target[j] += weight * source[j]


@njit(cache=True, nogil=True)
def add_bag_gradients(gradients: F32, chosen: I64, offsets: I64, rows: I64, weights: F32, out: F32) -> None:
    """Add to out (w, dim) the gradient of `add_bags` with respect to vectors, from its output's (n, dim)."""
    for i in range(len(chosen)):
        bag = chosen[i]
        if bag < 0:
            continue
        source = gradients[i]
        for k in range(offsets[bag], offsets[bag + 1]):
            if rows[k] >= 0:
                weight = weights[k]
                target = out[rows[k]]
                for j in range(out.shape[1]):
                    target[j] += weight * source[j]


def shown_names(schema: FeatureSchema, *sides: int) -> str:
    """Names of the declared features of some sides, for messages."""
    return ", ".join(one.name for one in schema.declared if one.side in sides) or "none"
