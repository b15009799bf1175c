#include "feed.h"

#include <string.h>

void feed_open(struct feed *f, struct allocator *allocator)
{
    *f = (struct feed){.allocator = allocator};
}

void feed_release(struct feed *f, struct feed_entry *entry)
{
    allocator_give(f->allocator, entry->keys, (size_t)entry->capacity * sizeof *entry->keys);
    entry->keys = NULL;
}

static struct feed_entry *entry_at(const struct feed *f, uint32_t k)
{
    return &f->ring[(f->first + k) % FEED_ENTRIES];
}

static void drop_first(struct feed *f)
{
    struct feed_entry *entry = entry_at(f, 0);
    f->keys -= entry->count;
    feed_release(f, entry);
    f->first = (f->first + 1) % FEED_ENTRIES;
    f->length--;
}

void feed_close(struct feed *f)
{
    while (f->length)
        drop_first(f);
    allocator_give(f->allocator, f->ring, FEED_ENTRIES * sizeof *f->ring);
    feed_open(f, f->allocator);
}

bool feed_reserve(struct feed *f, int64_t capacity, struct feed_entry *entry)
{
    *entry = (struct feed_entry){0};
    if (!f->ring && !(f->ring = allocator_take(f->allocator, FEED_ENTRIES * sizeof *f->ring)))
        return false;
    if (!capacity)
        return true;
    entry->keys = allocator_take(f->allocator, (size_t)capacity * sizeof *entry->keys);
    entry->capacity = capacity;
    return entry->keys != NULL;
}

void feed_add(struct feed *f, const struct feed_entry *entry, uint64_t rows)
{
    uint64_t quarter = rows / 4;
    int64_t most = quarter < FEED_SMALLEST ? FEED_SMALLEST : quarter > FEED_KEYS ? FEED_KEYS : (int64_t)quarter;
    if (f->length == FEED_ENTRIES)
        drop_first(f);
    f->length++;
    *entry_at(f, f->length - 1) = *entry;
    f->keys += entry->count;
    while (f->length > FEED_FEWEST && f->keys > most)
        drop_first(f);
}

bool feed_reaches(const struct feed *f, int64_t since, int64_t newest)
{
    if (since > newest || since < 0)
        return false; /* a feed that went back in time under the same run */
    return since == newest || (f->length && entry_at(f, 0)->number <= since + 1);
}

/* Radix sort over the bytes in which keys differ; the sorted keys are in the one that is returned. */
static uint64_t *sort(int64_t n, uint64_t *keys, uint64_t *spare)
{
    uint64_t any = 0, all = ~UINT64_C(0);
    for (int64_t i = 0; i < n; i++) {
        any |= keys[i];
        all &= keys[i];
    }
    for (int shift = 0; shift < 64; shift += 8) {
        if (!((any ^ all) >> shift & 0xFF))
            continue;
        int64_t counts[257] = {0};
        for (int64_t i = 0; i < n; i++)
            counts[(keys[i] >> shift & 0xFF) + 1]++;
        for (int b = 0; b < 256; b++)
            counts[b + 1] += counts[b];
        for (int64_t i = 0; i < n; i++)
            spare[counts[keys[i] >> shift & 0xFF]++] = keys[i];
        uint64_t *swap = keys;
        keys = spare;
        spare = swap;
    }
    return keys;
}

int64_t feed_since(const struct feed *f, int64_t since, uint64_t **keys, int64_t *capacity)
{
    int64_t n = 0;
    for (uint32_t k = 0; k < f->length; k++)
        n += entry_at(f, k)->number > since ? entry_at(f, k)->count : 0;
    *capacity = 2 * n;
    *keys = NULL;
    if (!n)
        return 0;
    uint64_t *block = allocator_take(f->allocator, (size_t)*capacity * sizeof *block);
    if (!block)
        return -1;
    int64_t at = 0;
    for (uint32_t k = 0; k < f->length; k++) {
        const struct feed_entry *entry = entry_at(f, k);
        if (entry->number <= since || !entry->count)
            continue;
        memcpy(block + at, entry->keys, (size_t)entry->count * sizeof *block);
        at += entry->count;
    }
    const uint64_t *sorted = sort(n, block, block + n);
    int64_t unique = 0;
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || sorted[i] != sorted[i - 1])
            block[unique++] = sorted[i]; /* never ahead of what is read */
    *keys = block;
    return unique;
}
