"""Products of bytes, four at a time: by the processor's own instruction where it has one, else the same in loops.

`vpdpbusd` (AVX-512 VNNI, AVX-VNNI) adds to each of eight 32-bit sums four products of an unsigned and a signed byte. As
sums are of integers, both ways give the same to the bit.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils as _cgutils
from numba.core import config as _config
from numba.extending import intrinsic

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]

cgutils: Any = _cgutils  # no types are published
config: Any = _config

ROWS, TOGETHER = 16, 4
"""Rows of a block; bytes of a row that lie next to each other."""
_LANES = 8


def _has_instruction() -> bool:
    """Whether what is compiled here may use it."""
    if not config.ENABLE_AVX:
        return False
    told = llvm.get_host_cpu_features().flatten() if config.CPU_FEATURES is None else config.CPU_FEATURES
    features = set(str(told).split(","))
    return "+avxvnni" in features or {"+avx512vnni", "+avx512vl"} <= features


def _block(users: int) -> Any:
    """An intrinsic: see `block_sums_of_one`."""

    def build(_typing: Any, codes: Any, _at: Any, tastes: Any, _user: Any, sums: Any, _to: Any, _place: Any) -> Any:
        if any(array.layout != "C" for array in (codes, tastes, sums)):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            i32, i64 = ir.IntType(32), ir.IntType(64)
            eight = ir.VectorType(i32, _LANES)
            arrays = [context.make_array(signature.args[i])(context, builder, args[i]) for i in (0, 2, 4)]
            width = cgutils.unpack_tuple(builder, arrays[2].shape)[1]
            groups = cgutils.unpack_tuple(builder, arrays[1].shape)[1]
            code, taste, out = (builder.bitcast(array.data, i32.as_pointer()) for array in arrays)
            multiply = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(eight, [eight, eight, eight]), "llvm.x86.avx512.vpdpbusd.256"
            )
            halves = ROWS // _LANES
            nothing = ir.Constant(eight, [0] * _LANES)
            found = [cgutils.alloca_once_value(builder, nothing) for _ in range(users * halves)]
            begin = builder.mul(args[1], builder.mul(groups, ir.Constant(i64, ROWS)))
            with cgutils.for_range(builder, groups) as loop:
                at = builder.add(begin, builder.mul(loop.index, ir.Constant(i64, ROWS)))
                rows = [
                    builder.load(
                        builder.bitcast(
                            builder.gep(code, [builder.add(at, ir.Constant(i64, half * _LANES))]), eight.as_pointer()
                        ),
                        align=1,
                    )
                    for half in range(halves)
                ]
                for user in range(users):
                    row = builder.mul(builder.add(args[3], ir.Constant(i64, user)), groups)
                    word = builder.load(builder.gep(taste, [builder.add(row, loop.index)]), align=4)
                    spread = builder.insert_element(ir.Constant(eight, ir.Undefined), word, ir.Constant(i32, 0))
                    spread = builder.shuffle_vector(spread, spread, ir.Constant(eight, [0] * _LANES))
                    for half in range(halves):
                        kept = found[user * halves + half]
                        builder.store(builder.call(multiply, [builder.load(kept), rows[half], spread]), kept)
            for user in range(users):
                row = builder.mul(builder.add(args[5], ir.Constant(i64, user)), width)
                to = builder.add(row, args[6])
                for half in range(halves):
                    there = builder.gep(out, [builder.add(to, ir.Constant(i64, half * _LANES))])
                    kept = builder.load(found[user * halves + half])
                    builder.store(kept, builder.bitcast(there, eight.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(codes, types.int64, tastes, types.int64, sums, types.int64, types.int64), generate

    return intrinsic(build)


_one, _four = _block(1), _block(4)


@njit(cache=True, nogil=True)
def block_sums_in_loops(
    codes: U8, block: int, tastes: I32, user: int, users: int, sums: I32, to: int, place: int
) -> None:
    """`block_sums_of_four` of `users`, by any processor."""
    flat, groups = codes.reshape(-1), tastes.shape[1]
    for u in range(users):
        for i in range(ROWS):
            sums[to + u, place + i] = 0
        for g in range(groups):
            word, at = tastes[user + u, g], (block * groups + g) * ROWS * TOGETHER
            a, b = np.int32(np.int8(word)), np.int32(np.int8(word >> 8))
            c, d = np.int32(np.int8(word >> 16)), np.int32(np.int8(word >> 24))
            for i in range(ROWS):
                j = at + TOGETHER * i
                sums[to + u, place + i] += (
                    np.int32(flat[j]) * a
                    + np.int32(flat[j + 1]) * b
                    + np.int32(flat[j + 2]) * c
                    + np.int32(flat[j + 3]) * d
                )


if _has_instruction():

    @njit(cache=True, nogil=True)
    def block_sums_of_one(codes: U8, block: int, tastes: I32, user: int, sums: I32, to: int, place: int) -> None:
        """sums[to, place + i] = Σ codes of row i of the block · tastes[user], for its 16 rows.

        codes (…, groups, ROWS, TOGETHER) u8 in C order, where `block` numbers all that comes before the last three;
        tastes (m, groups) i32: four signed bytes each; sums (n, ≥ place + ROWS) i32.
        """
        _one(codes, block, tastes, user, sums, to, place)

    @njit(cache=True, nogil=True)
    def block_sums_of_four(codes: U8, block: int, tastes: I32, user: int, sums: I32, to: int, place: int) -> None:
        """sums[to + u, place + i] likewise of tastes[user + u], four users, who share what is loaded of a row."""
        _four(codes, block, tastes, user, sums, to, place)

else:

    @njit(cache=True, nogil=True)
    def block_sums_of_one(codes: U8, block: int, tastes: I32, user: int, sums: I32, to: int, place: int) -> None:
        """As above."""
        block_sums_in_loops(codes, block, tastes, user, 1, sums, to, place)

    @njit(cache=True, nogil=True)
    def block_sums_of_four(codes: U8, block: int, tastes: I32, user: int, sums: I32, to: int, place: int) -> None:
        """As above."""
        block_sums_in_loops(codes, block, tastes, user, 4, sums, to, place)
