"""Words of memory that processes share: loads, stores and sums that all of them see in one order.

Sequentially consistent (C11): what a process wrote before it stored a word is seen by whoever loads that value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

I64 = npt.NDArray[np.int64]
_intrinsic: Any = intrinsic  # numba publishes no types
_WORDS = types.Array(types.int64, 1, "C")
_ORDER = "seq_cst"


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    get_item_pointer: Any = cgutils.get_item_pointer
    return get_item_pointer(context, builder, signature.args[0], array, [args[1]], wraparound=False)


@_intrinsic
def _load(_: Any, words: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, args), _ORDER, 8, typ=ir.IntType(64))

    return types.int64(words, at), generate


@_intrinsic
def _store(_: Any, words: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _place(context, builder, signature, args), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(words, at, value), generate


@_intrinsic
def _add(_: Any, words: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _place(context, builder, signature, args), args[2], _ORDER)

    return types.int64(words, at, value), generate


@njit(types.int64(_WORDS, types.int64), cache=True)
def load(words: I64, at: int) -> int:
    """words[at]"""
    return int(_load(words, at))


@njit(types.void(_WORDS, types.int64, types.int64), cache=True)
def store(words: I64, at: int, value: int) -> None:
    """words[at] = value"""
    _store(words, at, value)


@njit(types.int64(_WORDS, types.int64, types.int64), cache=True)
def add(words: I64, at: int, value: int) -> int:
    """words[at] += value; returns what it was."""
    return int(_add(words, at, value))


@njit(types.int64(_WORDS, types.int64, types.int64), cache=True)
def pin(words: I64, turn: int, pins: int) -> int:
    """Hold the side that is being read: n = words[turn], side n mod 2; adds 1 to words[pins + side]. Returns n.

    Who writes stores n + 1 at `turn` once side n + 1 is whole, and touches a side again only after all its pins were 0
    since. The second look is what makes that safe: a pin that came after the turn is taken back.
    """
    while True:
        n = _load(words, turn)
        side = pins + (n & 1)
        _add(words, side, 1)
        if _load(words, turn) == n:
            return int(n)
        _add(words, side, -1)


@njit(types.void(_WORDS, types.int64, types.int64), cache=True)
def unpin(words: I64, pins: int, n: int) -> None:
    """Let go of what `pin` returned."""
    _add(words, pins + (n & 1), -1)
