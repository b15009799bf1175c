/* Which keys changed, call by call: entries numbered 1, 2, 3, …, the oldest dropped.
 *
 * Blocks of keys, and not nodes in a list of rows: 8 bytes are written in order for each key of a call, where keeping rows
 * in the order of their updates costs two cache misses each. As of embedding_store/shard.py, at least FEED_FEWEST entries
 * are kept, so that a mirror that keeps up never scans; and at most FEED_ENTRIES, with as many keys as a quarter of the
 * rows, FEED_SMALLEST at least and FEED_KEYS at most: a small shard has a small feed.
 */
#ifndef TOW_FEED_H
#define TOW_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "allocator.h"

#define FEED_KEYS (1 << 20)
#define FEED_SMALLEST (1 << 14)
#define FEED_ENTRIES 4096
#define FEED_FEWEST 4

struct feed_entry {
    uint64_t *keys;
    int64_t number, count, capacity;
};

struct feed {
    struct allocator *allocator;
    struct feed_entry *ring; /* FEED_ENTRIES, taken with the first entry */
    uint32_t first, length;
    int64_t keys; /* of all entries */
};

void feed_open(struct feed *f, struct allocator *allocator);
void feed_close(struct feed *f);

/* An entry of its own for up to `capacity` keys. False: no memory. O(1). */
bool feed_reserve(struct feed *f, int64_t capacity, struct feed_entry *entry);

/* Gives back an entry that was not added. */
void feed_release(struct feed *f, struct feed_entry *entry);

/* Adds a reserved entry, whose number is the newest, and drops what is too old. O(entries dropped). */
void feed_add(struct feed *f, const struct feed_entry *entry, uint64_t rows);

/* Whether the feed still tells all that came after entry `since`; newest: the number of the last entry ever added. */
bool feed_reaches(const struct feed *f, int64_t since, int64_t newest);

/* Keys of all entries after `since`, without repeats, rising, in a block of *capacity keys that the caller gives back to
 * the allocator. −1: no memory. O(keys).
 */
int64_t feed_since(const struct feed *f, int64_t since, uint64_t **keys, int64_t *capacity);

#endif
