#define _POSIX_C_SOURCE 200809L
#include "histogram.h"

#include <time.h>

uint64_t histogram_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void histogram_add(struct histogram *h, uint64_t ns)
{
    uint64_t us = ns / 1000;
    int bucket = us ? 64 - __builtin_clzll(us) : 0;
    h->buckets[bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1]++;
    h->calls++;
    if (ns > h->longest_ns)
        h->longest_ns = ns;
}
