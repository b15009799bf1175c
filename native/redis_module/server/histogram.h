/* How long calls take: counts by powers of two of microseconds, and the longest. Knows nothing of Redis. */
#ifndef TOW_HISTOGRAM_H
#define TOW_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BUCKETS 32

struct histogram {
    uint64_t calls, longest_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS]; /* [0]: below 1 µs; [k]: from 2^(k − 1) µs on, below 2^k µs */
};

/* CPU time of the calling thread. A system call, some 300 ns. */
uint64_t histogram_now_ns(void);

/* O(1). */
void histogram_add(struct histogram *h, uint64_t ns);

#endif
