/* An allocator that counts, and fails when told to. */
#ifndef COUNTING_H
#define COUNTING_H

#include <stdint.h>

#include "allocator.h"

struct counting {
    int64_t left;  /* takes until one fails; negative: none does */
    int64_t taken; /* takes that succeeded */
    int64_t failed;
    int64_t held;      /* bytes, counted apart from the allocator's own account */
    int64_t most_held; /* the largest there was */
    int64_t fast;      /* blocks are not filled with rubbish: for benchmarks */
};

/* a allocates with malloc and counts in c. */
void counting_open(struct allocator *a, struct counting *c);

#endif
