#include "row.h"

#include <math.h>

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

/* 2^(−x), x ≥ 0: not libm's exp2, whose last bit differs between systems, and replicas must agree. */
static double halved(double x)
{
    if (x > 1022.0)
        return 0.0;
    double whole = floor(x);
    double y = -(x - whole) * 0.693147180559945309417232121458;
    double total = 1.0;
    for (int k = 16; k > 0; k--)
        total = 1.0 + total * y / k;
    return ldexp(total, -(int)whole);
}

void row_observe(struct row *row, int64_t count, float positives, int64_t clock, double gap_rate, double half_life)
{
    double elapsed = (double)(clock - row->last_seen);
    if (row->count == 0) {
        row->gap = (float)((double)clock / (double)count);
    } else {
        double kept = row_power(1.0 - gap_rate, count);
        row->gap = (float)(kept * (double)row->gap + (1.0 - kept) * elapsed / (double)count);
    }
    row->popularity = (float)((double)row->popularity * halved(elapsed / half_life) + (double)positives);
    row->count = (int64_t)((uint64_t)row->count + (uint64_t)count); /* wraps, as NumPy's */
    row->last_seen = clock;
}
