#include "initial.h"

#include <math.h>
#include <string.h>

#include "mix.h"

struct initial initial_of(uint64_t seed, double std)
{
    /* the standard deviation of the sum of four integers uniform on [0, 2^16) */
    double sum_std = sqrt((4294967296.0 - 1.0) / 3.0);
    return (struct initial){mix(seed + MIX_GOLDEN), std / sum_std};
}

void initial_fill(const struct initial *initial, uint64_t key, uint32_t dim, float *out)
{
    if (initial->scale == 0.0) {
        memset(out, 0, dim * sizeof *out);
        return;
    }
    uint64_t z = mix(key + initial->salt);
    for (uint32_t j = 0; j < dim; j++) {
        z += MIX_GOLDEN;
        uint64_t x = mix(z);
        int64_t total = (int64_t)((x & 0xFFFF) + (x >> 16 & 0xFFFF) + (x >> 32 & 0xFFFF) + (x >> 48));
        out[j] = (float)((double)(total - 131070) * initial->scale);
    }
}
