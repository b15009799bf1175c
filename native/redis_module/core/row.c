#include "row.h"

#include <string.h>

double row_power(double base, int64_t exponent)
{
    double result = 1.0;
    while (exponent > 0) {
        if (exponent & 1)
            result *= base;
        base *= base;
        exponent >>= 1;
    }
    return result;
}

/* 2^−whole · a fixed Taylor polynomial of degree 16, its coefficients 1/k!. Not libm's exp2: its last bit differs between
 * systems, and replicas must agree. floor and ldexp are done by hand, exactly, so that the loops are free of calls.
 */
void row_halved(int n, double *x)
{
    static const double inverse_factorials[17] = {
        1.0,
        1.0,
        1.0 / 2,
        1.0 / 6,
        1.0 / 24,
        1.0 / 120,
        1.0 / 720,
        1.0 / 5040,
        1.0 / 40320,
        1.0 / 362880,
        1.0 / 3628800,
        1.0 / 39916800,
        1.0 / 479001600,
        1.0 / 6227020800,
        1.0 / 87178291200,
        1.0 / 1307674368000,
        1.0 / 20922789888000,
    };
    double y[ROW_BLOCK], total[ROW_BLOCK], scale[ROW_BLOCK];
    for (int i = 0; i < n; i++) {
        int32_t whole = (int32_t)(x[i] > 1022.0 ? 1022.0 : x[i]);
        uint64_t bits = (uint64_t)(1023 - whole) << 52; /* 2^−whole, a normal number */
        memcpy(&scale[i], &bits, sizeof bits);
        y[i] = -(x[i] - whole) * 0.693147180559945309417232121458;
        total[i] = inverse_factorials[16];
    }
    for (int k = 15; k >= 0; k--)
        for (int i = 0; i < n; i++)
            total[i] = total[i] * y[i] + inverse_factorials[k];
    for (int i = 0; i < n; i++)
        x[i] = x[i] > 1022.0 ? 0.0 : total[i] * scale[i];
}

void row_observe(struct row *row, int64_t count, float positives, int64_t clock, double gap_rate, double faded)
{
    double elapsed = (double)(clock - row->last_seen);
    if (row->count == 0) {
        row->gap = (float)((double)clock / (double)count);
    } else {
        double kept = row_power(1.0 - gap_rate, count);
        row->gap = (float)(kept * (double)row->gap + (1.0 - kept) * elapsed / (double)count);
    }
    row->popularity = (float)((double)row->popularity * faded + (double)positives);
    row->count = (int64_t)((uint64_t)row->count + (uint64_t)count); /* wraps, as NumPy's */
    row->last_seen = clock;
}
