"""Elementary functions against sums of series in sixty decimal digits, and at their edges."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from native import elementary
from native.elementary import LN2_HIGH, LN2_LOW, cos_pi, exp, expm1, log1p

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
CORNERS = (
    0.0, -math.log(2) / 2, -1.5 * math.log(2), -40.0, -708.4, -745.1332191019412, -746.0, -1.0, math.sqrt(0.5) - 1,
    math.sqrt(2) - 1, 1.0, 2.0**52, 2.0**53, 0.25, 0.5, 0.75, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7e308,
)  # fmt: skip
EDGES = np.array([
    *(y for x in CORNERS for y in (x, math.nextafter(x, -math.inf), math.nextafter(x, math.inf))),
    -0.0, math.inf, -math.inf, math.nan,
])  # fmt: skip


def spread(name, rng, n):
    """(about 4n) numbers that a function is for."""
    small = 10.0 ** rng.uniform(-320, 0, n)
    if name == "log1p":
        return np.concatenate([rng.uniform(-1, 3, 2 * n), small, -small[: n // 2], 10.0 ** rng.uniform(0, 308, n // 2)])
    if name == "cos_pi":
        near = 0.5 + 10.0 ** rng.uniform(-17, -1, n // 2) * rng.choice([-1, 1], n // 2)
        return np.concatenate([rng.random(3 * n), small[: n // 2], near])
    return np.concatenate([-small, rng.uniform(-6, 0, n), rng.uniform(-760, 0, 2 * n)])


def series(term, ratio):
    """term·(1 + ratio(1) + ratio(1)·ratio(2) + …)"""
    total, n = Decimal(0), 0
    while abs(term) > abs(total) * Decimal("1e-55"):
        total += term
        n += 1
        term *= ratio(n)
    return total


def true_expm1(x):
    return series(x, lambda n: x / (n + 1)) if x > Decimal("-0.1") else x.exp() - 1


def true_log1p(x):
    s = x / (2 + x)
    return series(2 * s, lambda n: s * s * (2 * n - 1) / (2 * n + 1)) if abs(x) < Decimal("0.1") else (1 + x).ln()


def true_cos_pi(x):
    y = PI * (Decimal("0.5") - x)
    return series(y, lambda n: -y * y / (2 * n * (2 * n + 1)))  # as a sine, exact also where it is near 0


TRUE = {"exp": Decimal.exp, "expm1": true_expm1, "log1p": true_log1p, "cos_pi": true_cos_pi}


@pytest.mark.parametrize("name", TRUE)
def test_errors_are_below_one_unit_in_the_last_place_or_two_of_the_cosine(name):
    most = 2 if name == "cos_pi" else 1
    rng = np.random.default_rng(3)
    x = spread(name, rng, 1500)
    x = np.concatenate([x, EDGES[np.isfinite(EDGES)]])
    x = x[(x > -1) & (x != 0)] if name == "log1p" else x[(x >= 0) & (x <= 1)] if name == "cos_pi" else x[x < 0]
    got = np.empty_like(x)
    getattr(elementary, f"{name}_each")(x, got)
    with localcontext() as context:
        context.prec, context.Emin = 60, -999_999
        for at, value in zip(x.tolist(), got.tolist(), strict=True):
            want = TRUE[name](Decimal(at))
            assert abs(Decimal(value) - want) < most * Decimal(math.ulp(float(want))), at


def test_ln_2_is_split_so_that_multiples_are_exact():
    with localcontext() as context:
        context.prec = 60
        assert abs(Decimal(LN2_HIGH) + Decimal(LN2_LOW) - Decimal(2).ln()) < Decimal("2e-26")
    assert all(k * LN2_HIGH == float(Decimal(k) * Decimal(LN2_HIGH)) for k in range(1100))


def test_edges():
    assert (exp(0.0), exp(-0.0), exp(-math.inf), exp(-745.2), exp(-745.1), exp(1.0)) == (1, 1, 0, 0, 5e-324, 1)
    assert (expm1(0.0), expm1(-0.0), expm1(-math.inf), expm1(-5e-324), expm1(2.0)) == (0, 0, -1, -5e-324, 0)
    assert (log1p(0.0), log1p(-1.0), log1p(-2.0), log1p(math.inf)) == (0, -math.inf, -math.inf, math.inf)
    assert (cos_pi(0.0), cos_pi(0.25), cos_pi(0.5), cos_pi(1.0)) == (1, math.sqrt(0.5), 0, -1)
    assert all(math.isnan(f(math.nan)) for f in (exp, expm1, log1p, cos_pi))


@pytest.mark.parametrize(("name", "x"), [
    ("exp", np.linspace(-750, 0, 200_001)), ("exp", np.linspace(-1, 0, 200_001)),
    ("expm1", np.linspace(-41, 0, 200_001)), ("log1p", np.linspace(-1 + 2**-40, 1, 200_001)),
    ("cos_pi", np.linspace(1, 0, 200_001)),
], ids=str)  # fmt: skip
def test_they_rise_and_stay_in_their_range(name, x):
    out = np.empty_like(x)
    getattr(elementary, f"{name}_each")(x, out)
    assert (np.diff(out) >= 0).all()
    least, most = {"exp": (0, 1), "expm1": (-1, 0), "log1p": (-math.inf, 1), "cos_pi": (-1, 1)}[name]
    assert out.min() >= least
    assert out.max() <= most


def test_an_array_may_be_its_own_result_read_only_or_empty():
    x = np.linspace(-3, 0, 7)
    x.flags.writeable = False
    out = x.copy()
    elementary.exp_each(out, out)
    again = np.empty(7)
    elementary.exp_each(x, again)
    assert out.tolist() == again.tolist() == [exp(v) for v in x.tolist()]
    elementary.log1p_each(np.empty(0), np.empty(0))
