"""Reading bytes at an address, for kernels that scan text.

They take addresses, not arrays: an array argument costs two atomic reference counts a call, more than the hash of a
short id. The caller keeps the array alive and answers for the bounds.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

if sys.byteorder != "little":
    raise ImportError("native.memory loads little-endian words; this machine is big-endian")


def _load(bits: int) -> Any:
    """An intrinsic (address) -> uint64: `bits` little-endian bits from that address on, in one machine load."""

    def build(_typing: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            word = ir.IntType(bits)
            value = builder.load(builder.inttoptr(args[0], word.as_pointer()), align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.uint64(types.int64), generate

    return intrinsic(build)


read8, read32, read64 = _load(8), _load(32), _load(64)


def _trailing_zeros(_typing: Any, _word: Any) -> Any:
    """(uint64) -> int64: zero bits below the lowest one; 64 for 0."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _fold_product(_typing: Any, _a: Any, _b: Any) -> Any:
    """(uint64, uint64) -> uint64: low word XOR high word of the 128-bit product."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return builder.xor(builder.trunc(product, ir.IntType(64)), high)

    return types.uint64(types.uint64, types.uint64), generate


trailing_zeros: Any = intrinsic(_trailing_zeros)
fold_product: Any = intrinsic(_fold_product)


def _reinterpreted(source: Any, target: Any, kind: Any) -> Any:
    """An intrinsic that gives the bits of a `source` as a `target`: no instruction, and it stays in vector loops."""

    def build(_typing: Any, _value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], kind)

        return target(source), generate

    return intrinsic(build)


float_to_bits = _reinterpreted(types.float32, types.int32, ir.IntType(32))
float_of_bits = _reinterpreted(types.int32, types.float32, ir.FloatType())
