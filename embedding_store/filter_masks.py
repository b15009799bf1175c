"""Masks of the filters that are asked for, over the slots of a mirror, kept in step with it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from embedding_store.contract import U64, Bool
from embedding_store.feature_mirror import FeatureMirror
from embedding_store.item_filter import ItemFilter
from native.key_index import KeyIndex

MOST = 32
"""Masks kept, a byte a slot each: of the filters asked for last."""


@dataclass(slots=True)
class _Mask:
    passes: Bool  # (slots or more,)
    seen: int  # of `_touched`: what is in it already


class FilterMasks:
    """A filter's mask is made by one pass over the items' values; later, only items touched meanwhile are looked at.

    Call under the mirror's lock. Slots without an item may pass: their popularity keeps them out.
    """

    def __init__(self, features: FeatureMirror) -> None:
        self._features = features
        self._most_touched = 0
        self.clear()

    def clear(self) -> None:
        """Slots are given out anew."""
        self._masks: OrderedDict[ItemFilter, _Mask] = OrderedDict()
        self._touched: list[U64] = []
        self._keys_touched = 0

    def touch(self, keys: U64) -> None:
        """Items that got a slot, or whose values are others now."""
        if not self._masks or not len(keys):
            return
        self._touched.append(keys)
        self._keys_touched += len(keys)
        if self._keys_touched > self._most_touched:  # a pass over all costs no more
            self.clear()

    @property
    def nbytes(self) -> int:
        """Memory of all of it."""
        return sum(mask.passes.nbytes for mask in self._masks.values()) + sum(keys.nbytes for keys in self._touched)

    def of(self, wanted: ItemFilter, index: KeyIndex) -> Bool:
        """(high water,) whether the item of each slot passes. A view, for as long as the lock is held."""
        n = index.high_water
        mask = self._masks.get(wanted)
        if mask is None:
            mask = self._masks[wanted] = _Mask(self._features.passing(wanted, index.slot_keys), len(self._touched))
            self._most_touched = max(n, 1024)
            if len(self._masks) > MOST:
                self._masks.popitem(last=False)
        self._masks.move_to_end(wanted)
        if more := max(0, n - len(mask.passes)):
            mask.passes = np.append(mask.passes, np.zeros(more + n // 8, np.bool_))
        if late := self._touched[mask.seen :]:
            keys = np.unique(np.concatenate(late))
            slots = index.find(keys)
            here = slots >= 0
            mask.passes[slots[here]] = self._features.passing(wanted, keys[here])
            mask.seen = len(self._touched)
        return mask.passes[:n]
