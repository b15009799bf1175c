#include "elementary.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static const double LN2_HIGH = 0x1.62e42feep-1; /* 32 bits: times a whole number below 2^21 it is exact */
static const double LN2_LOW = 0x1.a39ef35793c76p-33;
static const double LN2_INVERSE = 0x1.71547652b82fep+0;
static const double SQRT_2 = 0x1.6a09e667f3bcdp+0;
static const double PI = 0x1.921fb54442d18p+1;

/* From the last coefficient to the first. Factorials up to 22! are exact. */
static const double EXP[] = {1.0 / 87178291200.0, 1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0,
                             1.0 / 3628800.0,     1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,
                             1.0 / 720.0,         1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,
                             1.0 / 2.0};
static const double LOG[] = {2.0 / 21.0, 2.0 / 19.0, 2.0 / 17.0, 2.0 / 15.0, 2.0 / 13.0,
                             2.0 / 11.0, 2.0 / 9.0,  2.0 / 7.0,  2.0 / 5.0,  2.0 / 3.0};
static const double SIN[] = {1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
                             1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
static const double COS[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
                             1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
#define SERIES(c, x) series(c, (int)(sizeof(c) / sizeof *(c)), x)

static inline double series(const double *coefficients, int n, double x)
{
    double q = 0.0;
    for (int i = 0; i < n; i++)
        q = coefficients[i] + x * q;
    return q;
}

/* 2^k for −1022 ≤ k ≤ 1023. */
static inline double two_to(int64_t k)
{
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* k, the whole number nearest to x/ln 2, for −746 ≤ x < 0. */
static inline int64_t halvings(double x)
{
    return (int64_t)(x * LN2_INVERSE - 0.5);
}

/* e^(x − k·ln 2) − 1. */
static inline double expm1_of_rest(double x, int64_t k)
{
    double high = x - (double)k * LN2_HIGH, low = (double)k * LN2_LOW;
    double r = high - low, rest = (high - r) - low;
    return r + (rest + r * r * SERIES(EXP, r));
}

double elementary_exp(double x)
{
    if (!(x < 0.0))
        return x != x ? x : 1.0;
    if (x < -746.0)
        return 0.0;
    int64_t k = halvings(x);
    double y = 1.0 + expm1_of_rest(x, k);
    return k < -1022 ? y * two_to(k + 128) * two_to(-128) : y * two_to(k);
}

double elementary_expm1(double x)
{
    if (!(x < 0.0))
        return x != x ? x : 0.0;
    if (x < -40.0)
        return -1.0;
    int64_t k = halvings(x);
    double y = expm1_of_rest(x, k);
    if (k == 0)
        return y;
    double scale = two_to(k);
    return scale * y + (scale - 1.0);
}

double elementary_log1p(double x)
{
    if (x <= -1.0)
        return -INFINITY;
    if (!(x < INFINITY))
        return x;
    int64_t k = 0;
    double f = x, low = 0.0;
    if (!(1.0 / SQRT_2 - 1.0 < x && x < SQRT_2 - 1.0)) {
        double u = 1.0 + x, lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0), m;
        uint64_t bits;
        memcpy(&bits, &u, sizeof bits);
        k = (int64_t)(bits >> 52) - 1023;
        bits = (bits & 0xFFFFFFFFFFFFF) | UINT64_C(1023) << 52;
        memcpy(&m, &bits, sizeof m); /* [1, 2) */
        if (m > SQRT_2) {
            k++;
            m *= 0.5;
        }
        f = m - 1.0;
        low = (double)k * LN2_LOW + lost / u;
    }
    double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s;
    return (double)k * LN2_HIGH - ((half - (s * (half + z * SERIES(LOG, z)) + low)) - f);
}

double elementary_cos_pi(double x)
{
    if (0.25 < x && x < 0.75) {
        double y = PI * (0.5 - x), z = y * y;
        return y + y * (z * SERIES(SIN, z));
    }
    double y = PI * (x <= 0.25 ? x : 1.0 - x), z = y * y;
    double half = 0.5 * z, w = 1.0 - half;
    double cosine = w + (((1.0 - w) - half) + z * z * SERIES(COS, z));
    return x <= 0.25 ? cosine : -cosine;
}
