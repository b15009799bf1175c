/* A fuzzer's input as a row of decisions: what a target builds from it is mostly valid, and any mutation of it builds
 * something else that is. Bytes as a blob would nearly all be refused for their length.
 */
#ifndef DECISIONS_H
#define DECISIONS_H

#include <stddef.h>
#include <stdint.h>

struct decisions {
    const uint8_t *at, *end;
};

static inline size_t left(const struct decisions *d)
{
    return (size_t)(d->end - d->at);
}

/* The next byte; 0 where there are no more. */
static inline uint32_t byte(struct decisions *d)
{
    return d->at < d->end ? *d->at++ : 0;
}

static inline uint32_t below(struct decisions *d, uint32_t n)
{
    return byte(d) % n;
}

static inline uint64_t word(struct decisions *d)
{
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)byte(d) << 8 * i;
    return n;
}

/* How many allocations succeed before one fails, one time in n; else −1, all. */
static inline int64_t allocations(struct decisions *d, uint32_t n, uint32_t most)
{
    return below(d, n) ? -1 : (int64_t)below(d, most);
}

/* Numbers at which something changes, and now and then any number. */
uint64_t edge(struct decisions *d);

#endif
