"""Events that name an id whose 64-bit key is taken by another id: found before anything is learned from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedding_store.contract import I64, U32, U64, Bool, EmbeddingStore
from ingest.columns import Events
from native.identity import TEXT_BIT
from native.key_index import unique_keys
from native.mixing import mix_keys

_REMEMBERED = 1 << 16
_TABLES = {"item": "item", "user": "history"}


class Identities:
    """Asks the store about ids that are new to this worker; those it knows cost a table look-up.

    Only texts are asked about: an integer's key is the integer itself. Who comes first has the key, in the store or in
    what this worker has not applied yet. Two workers that meet two new ids of one key at the same moment both let
    theirs through: then the store refuses the later one at apply, and counts it.
    """

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self._known = {side: _Known() for side in _TABLES}
        self._claimed: dict[str, tuple[U64, U32]] = {}
        self.clear()

    def clear(self) -> None:
        """What was claimed is in the store, or has been dropped."""
        self._claimed = {side: (np.zeros(0, np.uint64), np.zeros(0, np.uint32)) for side in _TABLES}

    def refused(self, events: Events) -> I64:
        """Rows of the events that must not be learned, ascending. Raises StoreUnavailable."""
        bad = np.zeros(len(events), np.bool_)
        for side in _TABLES:
            bad[self._refused(side, events)] = True
        return np.flatnonzero(bad)

    def _refused(self, side: str, events: Events) -> I64:
        all_keys, all_checks = getattr(events, f"{side}_key"), getattr(events, f"{side}_check")
        rows = np.flatnonzero(all_keys >= np.uint64(TEXT_BIT))
        if len(rows):
            rows = rows[~self._known[side].has(all_keys[rows], all_checks[rows])]
        if not len(rows):
            return rows
        keys, checks = all_keys[rows], all_checks[rows]
        bad = self._store.taken(_TABLES[side], keys, checks, getattr(events, f"{side}_id").take(rows))
        claimed_keys, claimed_checks = self._claimed[side]
        keys, checks = np.concatenate([claimed_keys, keys[~bad]]), np.concatenate([claimed_checks, checks[~bad]])
        distinct, numbers = unique_keys(keys)
        first = np.zeros(len(distinct), np.int64)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        clash = (checks != checks[first][numbers])[len(claimed_keys) :]
        bad[np.flatnonzero(~bad)[clash]] = True
        self._claimed[side] = (distinct, checks[first])
        self._known[side].add(all_keys[rows[~bad]], all_checks[rows[~bad]])
        return rows[bad]


class _Known:
    """The ids met last, by the place their key hashes to."""

    def __init__(self) -> None:
        self._keys = np.zeros(_REMEMBERED, np.uint64)
        self._checks = np.zeros(_REMEMBERED, np.uint32)

    def has(self, keys: U64, checks: U32) -> Bool:
        at = _places(keys)
        return np.asarray((self._keys[at] == keys) & (self._checks[at] == checks))

    def add(self, keys: U64, checks: U32) -> None:
        at = _places(keys)
        self._keys[at], self._checks[at] = keys, checks


def _places(keys: U64) -> npt.NDArray[np.int64]:
    out = np.empty(len(keys), np.int64)
    mix_keys(keys, _REMEMBERED - 1, out)
    return out
