"""An open-addressing index from 64-bit keys to slots, for batches of keys.

The table is two arrays: `places` (capacity, a power of two) holds slot + 1, 0 for never used, -1 for deleted;
`slot_keys` holds the key of each slot. Linear probing from a mixed key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from native.mixing import mix

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def find(places: I64, slot_keys: U64, keys: U64, out: I64) -> None:
    """out[i] = slot of keys[i], -1 where absent. O(n). places (capacity,) i64, keys (n,) u64, out (n,) i64."""
    mask = np.uint64(len(places) - 1)
    for i in range(len(keys)):
        at = mix(keys[i]) & mask
        out[i] = -1
        while places[at] != 0:
            if places[at] > 0 and slot_keys[places[at] - 1] == keys[i]:
                out[i] = places[at] - 1
                break
            at = (at + np.uint64(1)) & mask


@njit(cache=True, nogil=True)
def insert(places: I64, slot_keys: U64, keys: U64, slots: I64) -> None:
    """Index keys[i], absent until now, at slots[i]; writes slot_keys. The caller keeps the load below one half."""
    mask = np.uint64(len(places) - 1)
    for i in range(len(keys)):
        at = mix(keys[i]) & mask
        while places[at] > 0:
            at = (at + np.uint64(1)) & mask
        places[at] = slots[i] + 1
        slot_keys[slots[i]] = keys[i]


@njit(cache=True, nogil=True)
def remove(places: I64, slot_keys: U64, keys: U64) -> None:
    """Forget the places of `keys`, absent ones ignored; the slots are the caller's to reuse."""
    mask = np.uint64(len(places) - 1)
    for i in range(len(keys)):
        at = mix(keys[i]) & mask
        while places[at] != 0:
            if places[at] > 0 and slot_keys[places[at] - 1] == keys[i]:
                places[at] = -1
                break
            at = (at + np.uint64(1)) & mask


@njit(cache=True, nogil=True)
def number(keys: U64, unique_keys: U64, inverse: I64, places: I64) -> int:
    """As `unique`. places (capacity,): zeros, a power of two that is 2n at least; becomes the index of unique_keys."""
    mask = np.uint64(len(places) - 1)
    found = 0
    for i in range(len(keys)):
        at = mix(keys[i]) & mask
        while places[at] != 0 and unique_keys[places[at] - 1] != keys[i]:
            at = (at + np.uint64(1)) & mask
        if places[at] == 0:
            unique_keys[found] = keys[i]
            found += 1
            places[at] = found
        inverse[i] = places[at] - 1
    return found


@njit(cache=True, nogil=True)
def unique(keys: U64, unique_keys: U64, inverse: I64) -> int:
    """Number the distinct keys by first appearance: fills unique_keys and inverse (n,), returns how many. O(n).

    unique_keys (n,) u64, inverse (n,) i64: unique_keys[inverse[i]] == keys[i].
    """
    capacity = 16
    while capacity < 2 * len(keys):
        capacity *= 2
    return number(keys, unique_keys, inverse, np.zeros(capacity, np.int64))


class Numbered(NamedTuple):
    """Distinct keys of a column, by first appearance."""

    keys: U64  # (u,)
    numbers: I64  # (n,) of each of the column's
    places: I64

    def find(self, keys: U64) -> I64:
        """(m,) number of each key, -1 where the column hasn't it. Pure."""
        out = np.empty(len(keys), np.int64)
        find(self.places, self.keys, keys, out)
        return out


def numbered(keys: U64) -> Numbered:
    """The column's distinct keys, to be asked for others."""
    distinct, inverse = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int64)
    places = np.zeros(1 << max(4, (2 * len(keys) - 1).bit_length()), np.int64)
    n = number(keys, distinct, inverse, places)
    return Numbered(distinct[:n].copy(), inverse, places)


def unique_keys(keys: U64) -> tuple[U64, I64]:
    """(distinct keys by first appearance, (n,) index of each key among them)."""
    found = numbered(keys)
    return found.keys, found.numbers


class KeyIndex:
    """A growing map from keys to dense slots 0 … n-1 with reuse of freed slots. Not thread-safe."""

    def __init__(self, capacity: int = 1024) -> None:
        capacity = 1 << max(3, (capacity - 1).bit_length())  # probing masks instead of dividing
        self._places = np.zeros(4 * capacity, np.int64)
        self._keys = np.zeros(capacity, np.uint64)
        self._used = 0  # slots ever handed out
        self._dead = 0  # deleted places in the table: they lengthen probes until the next rebuild
        self._free: list[int] = []

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def high_water(self) -> int:
        """One more than the highest slot ever handed out."""
        return self._used

    @property
    def capacity(self) -> int:
        """Slots the owner of parallel arrays must hold."""
        return len(self._keys)

    @property
    def table(self) -> I64:
        """The places: another array after each rebuild."""
        return self._places

    @property
    def slot_keys(self) -> U64:
        """(high_water,) key of each slot; of a freed slot, its last key."""
        return self._keys[: self._used]

    def room_for(self, more: int) -> int:
        """`capacity` after so many more keys at most. Pure."""
        return _doubled(self.capacity, self._used + more)

    def reserve(self, capacity: int) -> None:
        """Raise `capacity` to what `room_for` gave. O(capacity)."""
        if capacity > self.capacity:
            self._rebuild(capacity)

    def find(self, keys: U64) -> I64:
        """(n,) slot of each key, -1 where absent. Pure."""
        out = np.empty(len(keys), np.int64)
        find(self._places, self._keys, keys, out)
        return out

    def add(self, keys: U64) -> I64:
        """(n,) slot of each key, absent ones given one; unique keys. May raise `capacity`: grow parallel arrays."""
        slots = self.find(keys)
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            reused = [self._free.pop() for _ in range(min(len(self._free), len(missing)))]
            fresh = np.arange(self._used, self._used + len(missing) - len(reused), dtype=np.int64)
            slots[missing] = np.concatenate([np.array(reused, np.int64), fresh])
            self._used += len(fresh)
            if self._used > len(self._keys) or 2 * (self._used + self._dead) > len(self._places):
                self._rebuild(_doubled(self.capacity, self._used))
            insert(self._places, self._keys, keys[missing], slots[missing])
        return slots

    def discard(self, keys: U64) -> I64:
        """Slots freed by removing `keys`; absent keys and repeats are ignored."""
        slots = np.unique(self.find(keys))
        slots = slots[slots >= 0]
        remove(self._places, self._keys, keys)
        self._dead += len(slots)
        self._free.extend(slots.tolist())
        return slots

    def _rebuild(self, capacity: int) -> None:
        live = self._places[self._places > 0] - 1
        keys = np.zeros(capacity, np.uint64)
        keys[: min(len(self._keys), capacity)] = self._keys
        self._places = np.zeros(4 * capacity, np.int64)
        self._dead = 0
        self._keys = keys
        insert(self._places, self._keys, keys[live], live)


def _doubled(capacity: int, slots: int) -> int:
    """As often as it takes for so many slots."""
    while capacity < slots:
        capacity *= 2
    return capacity
