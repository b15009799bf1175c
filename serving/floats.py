"""float32 as a short JSON number that reads back as the same float32, at some 60 ns a value.

Converting to Python floats would print float64 noise (0.1 becomes 0.10000000149011612). The method: for p = 6, 7, 8, 9
digits, round |x| to p significant digits in float64, m·10^q, and take the least that rounds back to x. Six digits
always survive a trip through float32 and nine always identify one (Matula 1968; C's FLT_DIG and FLT_DECIMAL_DIG), so
the loop ends; it is the shortest, but for a few powers of two, where one digit may be spared. m < 2^30 is exact in
float64, and so are powers of ten up to 10^22.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types

from embedding_store.contract import F32, Bool

Function = TypeVar("Function", bound=Callable[..., int])
_MAX_BYTES = 18  # "-0.000123456789," has 16, "-1.23456789e-38," too
_POWERS = np.array([float(f"1e{i}") for i in range(64)])  # correctly rounded, as powers by multiplication are not
_LOWEST = 46
_DECADES = np.array([float(f"1e{i}") for i in range(-_LOWEST, 41)])
_LOG10_2 = math.log10(2.0)
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_BYTES = types.uint8[::1]
# Rows may come from a read-only view: without its own signature that would compile anew on a live request.
_ROWS = [
    types.int64(types.Array(types.float32, 2, "C", readonly=readonly), types.boolean[::1], _BYTES)
    for readonly in (False, True)
]


def _kernel(signature: Any) -> Callable[[Function], Function]:
    return cast("Callable[[Function], Function]", njit(signature, cache=True, nogil=True, error_model="numpy"))


@_kernel(types.int64(_BYTES, types.int64, types.uint64, types.int64))
def _write_padded(out: Any, at: int, m: Any, width: int) -> int:
    """`width` digits of m, leading zeros kept, at out[at:]; returns the new end."""
    for i in range(width - 1, -1, -1):
        rest = m // np.uint64(10)
        out[at + i] = np.uint64(48) + m - rest * np.uint64(10)
        m = rest
    return at + width


@_kernel(types.int64(types.float64, types.int64))
def _rounded(x: Any, q: int) -> int:
    """m with m·10^q nearest to x; -1 if that isn't x as a float32."""
    if q <= 0:
        m = np.rint(x * _POWERS[-q])
        back = m / _POWERS[-q]
    else:
        m = np.rint(x / _POWERS[q])
        back = m * _POWERS[q]
    return int(m) if np.float64(np.float32(back)) == x else -1


@_kernel(types.int64(_BYTES, types.int64, types.float32))
def _write_float(out: Any, at: int, value: Any) -> int:
    """The decimal of a finite value at out[at:]; returns the new end."""
    x = np.float64(value)
    if math.copysign(1.0, x) < 0.0:
        out[at] = 45  # -
        at += 1
        x = -x
    if x == 0.0:
        out[at], out[at + 1], out[at + 2] = 48, 46, 48
        return at + 3
    magnitude = math.floor((math.frexp(x)[1] - 1) * _LOG10_2)  # of the power of two below x: right, or one too low
    if x >= _DECADES[magnitude + 1 + _LOWEST]:
        magnitude += 1
    # Most values need seven or eight digits: start there. Subnormals have fewer than six: start at one.
    q = magnitude - (6 if x >= _SMALLEST_NORMAL else 0)
    m = _rounded(x, q)
    if m >= 0:
        shorter = _rounded(x, q + 1)
        if shorter >= 0:
            m = shorter
            q += 1
    while m < 0:
        q -= 1
        m = _rounded(x, q)
    while m % 10 == 0:
        m //= 10
        q += 1
    digits = 1
    bound = 10
    while m >= bound:
        bound *= 10
        digits += 1
    lead = q + digits - 1  # x = d.ddd·10^lead
    if lead < -4 or lead > 8:
        tail = bound // 10
        first = m // tail
        out[at] = 48 + first
        at += 1
        if digits > 1:
            out[at] = 46  # .
            at = _write_padded(out, at + 1, m - first * tail, digits - 1)
        out[at] = 101  # e
        at += 1
        if lead < 0:
            out[at] = 45
            at += 1
            lead = -lead
        return _write_padded(out, at, lead, 2 if lead > 9 else 1)
    if q >= 0:
        at = _write_padded(out, at, m * int(_POWERS[q]), lead + 1)
        out[at], out[at + 1] = 46, 48
        return at + 2
    if lead < 0:
        out[at], out[at + 1] = 48, 46
        return _write_padded(out, at + 2, m, -q)
    scale = int(_POWERS[-q])
    whole = m // scale
    at = _write_padded(out, at, whole, lead + 1)
    out[at] = 46
    return _write_padded(out, at + 1, m - whole * scale, -q)


@_kernel(_ROWS)
def _write_rows(rows: Any, present: Any, out: Any) -> int:
    """`[a,b],null,[c,d]` at out[0:]; returns the end."""
    at = 0
    for i in range(rows.shape[0]):
        if i > 0:
            out[at] = 44  # ,
            at += 1
        if not present[i]:
            out[at], out[at + 1], out[at + 2], out[at + 3] = 110, 117, 108, 108  # null
            at += 4
            continue
        out[at] = 91
        at += 1
        for j in range(rows.shape[1]):
            if j > 0:
                out[at] = 44
                at += 1
            at = _write_float(out, at, rows[i, j])
        out[at] = 93
        at += 1
    return at


def rows_json(rows: F32, present: Bool) -> bytes:
    """JSON arrays of rows (n, dim), separated by commas without brackets around; `null` where not present (n,).

    Values of present rows must be finite. Releases the GIL.
    """
    n, dim = rows.shape
    out: npt.NDArray[np.uint8] = np.empty(n * (dim * _MAX_BYTES + 7) + 1, np.uint8)
    # the mask is copied: read-only ones would need two more signatures
    end = _write_rows(np.ascontiguousarray(rows, np.float32), np.array(present, np.bool_), out)
    return out[:end].tobytes()


def vector_json(vector: F32) -> bytes:
    """A JSON array of finite float32 values (n,)."""
    return rows_json(vector.reshape(1, -1), _ONE)


def numbers_json(values: F32) -> list[bytes | None]:
    """The JSON number of each of (n,) values; None where it is not finite."""
    finite = np.isfinite(values)
    numbers = vector_json(np.where(finite, values, np.float32(0.0)))[1:-1].split(b",")
    return [number if good else None for number, good in zip(numbers, finite.tolist(), strict=False)]


_ONE = np.ones(1, np.bool_)
