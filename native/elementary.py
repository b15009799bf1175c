"""exp, expm1, log1p and cos(π·x) with the same bits everywhere.

The last bit of libm's and NumPy's differs between versions and processors, but rows must decay alike in every backend
and on every replica. Here are only + − × ÷ and comparisons, in a fixed order, and powers of two by their bits:
`native/redis_module/core/elementary.c` has the same operations.

Methods: the argument reductions, the split of ln 2 and the compensated last sums are those of fdlibm (Sun Microsystems
1993: e_exp.c, s_log1p.c, k_cos.c). The polynomials are plain series instead of its minimax ones, a few terms longer, so
that each coefficient is one division of whole numbers, which nobody can mistype. Errors are below 1 ulp; of cos(π·x),
whose π·x is rounded once, below 2.

A kernel for one number, and one with `_each` over x (n,) into out (n,), which may be x.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit, types

F64 = npt.NDArray[np.float64]

LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 32 bits: times a whole number below 2^21 it is exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_LN2_INVERSE = float.fromhex("0x1.71547652b82fep+0")
_SQRT_2 = float.fromhex("0x1.6a09e667f3bcdp+0")

# from the last coefficient to the first
_EXP = tuple(1.0 / math.factorial(n) for n in range(14, 1, -1))  # Σ rⁿ⁻²/n!
_LOG = tuple(2.0 / n for n in range(21, 2, -2))  # Σ 2·zⁿ/(2n + 3), of the series of artanh
_SIN = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(8, 0, -1))  # Σ ±zⁿ⁻¹/(2n + 1)!
_COS = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(8, 1, -1))  # Σ ±zⁿ⁻²/(2n)!

_OF_ONE = types.float64(types.float64)
_OF_EACH = types.void(types.Array(types.float64, 1, "C", readonly=True), types.float64[::1])


@njit(types.float64(types.int64), cache=True, nogil=True)
def _two_to(k: int) -> float:
    """2^k for −1022 ≤ k ≤ 1023."""
    return np.int64((k + 1023) << 52).view(np.float64)


@njit(types.int64(types.float64), cache=True, nogil=True)
def _halvings(x: float) -> int:
    """k, the whole number nearest to x/ln 2, for −746 ≤ x < 0."""
    return int(x * _LN2_INVERSE - 0.5)


@njit(types.float64(types.float64, types.int64), cache=True, nogil=True)
def _expm1_of_rest(x: float, k: int) -> float:
    """e^(x − k·ln 2) − 1, of |x − k·ln 2| ≤ ln 2/2 and a bit: r + r²·(1/2! + r/3! + …), r in two parts."""
    high = x - k * LN2_HIGH
    low = k * LN2_LOW
    r = high - low
    rest = (high - r) - low
    q = 0.0
    for c in _EXP:
        q = c + r * q
    return r + (rest + r * r * q)


@njit(_OF_ONE, cache=True, nogil=True)
def exp(x: float) -> float:
    """e^x for x ≤ 0, 0 where that is below half the least number. x > 0 is taken for 0."""
    if not x < 0.0:
        return x if math.isnan(x) else 1.0
    if x < -746.0:
        return 0.0
    k = _halvings(x)
    y = 1.0 + _expm1_of_rest(x, k)
    if k < -1022:
        return y * _two_to(k + 128) * _two_to(-128)  # exact, then rounded once
    return y * _two_to(k)


@njit(_OF_ONE, cache=True, nogil=True)
def expm1(x: float) -> float:
    """e^x − 1 for x ≤ 0. x > 0 is taken for 0."""
    if not x < 0.0:
        return x if math.isnan(x) else 0.0
    if x < -40.0:
        return -1.0
    k = _halvings(x)
    y = _expm1_of_rest(x, k)
    if k == 0:
        return y
    scale = _two_to(k)
    return scale * y + (scale - 1.0)


@njit(_OF_ONE, cache=True, nogil=True)
def log1p(x: float) -> float:
    """log(1 + x) for x > −1; −∞ for others.

    1 + x = 2^k·(1 + f) + lost with 1 + f in [√½, √2], `lost` what rounding took. With s = f/(2 + f) and z = s²,
    log(1 + f) = 2·artanh(s) = f − (f²/2 − s·(f²/2 + z·(2/3 + 2/5·z + …))).
    """
    if x <= -1.0:
        return -math.inf
    if not x < math.inf:
        return x
    k, f, low = 0, x, 0.0
    if not (1.0 / _SQRT_2 - 1.0 < x < _SQRT_2 - 1.0):
        u = 1.0 + x
        lost = 1.0 - (u - x) if x > 1.0 else x - (u - 1.0)
        bits = int(np.float64(u).view(np.int64))
        k = (bits >> 52) - 1023
        m = np.int64((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).view(np.float64)  # [1, 2)
        if m > _SQRT_2:
            k += 1
            m *= 0.5
        f = m - 1.0
        low = k * LN2_LOW + lost / u
    half = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    q = 0.0
    for c in _LOG:
        q = c + z * q
    return k * LN2_HIGH - ((half - (s * (half + z * q) + low)) - f)


@njit(_OF_ONE, cache=True, nogil=True)
def cos_pi(x: float) -> float:
    """cos(π·x) for x in [0, 1]; exact at 0, ½ and 1.

    The sine of π·(½ − x) between ¼ and ¾, else the cosine of π·x or π·(1 − x): both differences are exact.
    """
    if 0.25 < x < 0.75:
        y = math.pi * (0.5 - x)
        z = y * y
        q = 0.0
        for c in _SIN:
            q = c + z * q
        return y + y * (z * q)
    y = math.pi * (x if x <= 0.25 else 1.0 - x)
    z = y * y
    q = 0.0
    for c in _COS:
        q = c + z * q
    half = 0.5 * z
    w = 1.0 - half
    cosine = w + (((1.0 - w) - half) + z * z * q)
    return cosine if x <= 0.25 else -cosine


@njit(_OF_EACH, cache=True, nogil=True)
def exp_each(x: F64, out: F64) -> None:
    """`exp`."""
    for i in range(x.shape[0]):
        out[i] = exp(x[i])


@njit(_OF_EACH, cache=True, nogil=True)
def expm1_each(x: F64, out: F64) -> None:
    """`expm1`."""
    for i in range(x.shape[0]):
        out[i] = expm1(x[i])


@njit(_OF_EACH, cache=True, nogil=True)
def log1p_each(x: F64, out: F64) -> None:
    """`log1p`."""
    for i in range(x.shape[0]):
        out[i] = log1p(x[i])


@njit(_OF_EACH, cache=True, nogil=True)
def cos_pi_each(x: F64, out: F64) -> None:
    """`cos_pi`."""
    for i in range(x.shape[0]):
        out[i] = cos_pi(x[i])
