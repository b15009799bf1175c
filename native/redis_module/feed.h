/* Which keys changed, call by call: entries numbered 1, 2, 3, …, the oldest dropped.
 *
 * Blocks of keys and not nodes in a list of rows: 8 bytes are written in order for each key of a call, where keeping rows
 * in the order of their updates costs two cache misses each. As of embedding_store/shard.py, about FEED_KEYS keys are kept and
 * at least 4 entries; but no more than a quarter of the rows or FEED_FEWEST, so that a small shard has a small feed.
 */
#ifndef TOW_FEED_H
#define TOW_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "allocator.h"

#define FEED_KEYS (1 << 20)
#define FEED_FEWEST (1 << 14)

struct feed_entry {
    uint64_t *keys;
    int64_t number, count, capacity;
};

#define FEED_ENTRIES 4096
struct feed {
    struct allocator *allocator;
    struct feed_entry *ring; /* FEED_ENTRIES, first taken with the first entry */
    uint32_t first, length;
    int64_t keys; /* of all entries */
};

#endif
