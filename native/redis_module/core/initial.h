/* Initial vectors: a pure function of (table seed, key, j), bit for bit native/initial.py. */
#ifndef TOW_INITIAL_H
#define TOW_INITIAL_H

#include <stdint.h>

struct initial {
    uint64_t salt;
    double scale; /* 0: zeros */
};

struct initial initial_of(uint64_t seed, double std);

/* out[0 … dim) is the initial vector of `key`. O(dim). */
void initial_fill(const struct initial *initial, uint64_t key, uint32_t dim, float *out);

#endif
