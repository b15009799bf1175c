#include "index.h"

#include <string.h>

static struct index_segment *new_segment(struct index *x, uint32_t depth)
{
    struct index_segment *segment = allocator_take(x->allocator, sizeof *segment);
    if (segment) {
        memset(segment, 0, sizeof *segment);
        *index_segment_depth(segment) = depth;
        x->segments++;
    }
    return segment;
}

bool index_open(struct index *x, struct allocator *allocator)
{
    *x = (struct index){.allocator = allocator};
    x->directory = allocator_take(allocator, sizeof *x->directory);
    if (!x->directory)
        return false;
    x->directory[0] = new_segment(x, 0);
    if (x->directory[0])
        return true;
    allocator_give(allocator, x->directory, sizeof *x->directory);
    x->directory = NULL;
    return false;
}

void index_close(struct index *x)
{
    if (!x->directory)
        return;
    size_t length = (size_t)1 << x->depth;
    for (size_t k = 0; k < length; k++) {
        /* a segment of depth d stands at every entry that agrees in d bits; it is freed at the lowest */
        struct index_segment *segment = x->directory[k];
        if (segment && k < (size_t)1 << *index_segment_depth(segment)) {
            uint32_t depth = *index_segment_depth(segment);
            allocator_give(x->allocator, segment, sizeof *segment);
            for (size_t j = k; j < length; j += (size_t)1 << depth)
                x->directory[j] = NULL;
        }
    }
    allocator_give(x->allocator, x->directory, length * sizeof *x->directory);
    allocator_give(x->allocator, x->recent, index_recent_bytes(x));
    *x = (struct index){.allocator = x->allocator};
}

/* Slots of a bucket in use. */
static uint32_t filled(const struct index_bucket *bucket)
{
    uint32_t n = 0;
    while (n < INDEX_SLOTS && bucket->handles[n])
        n++;
    return n;
}

static void put(struct index_segment *segment, uint64_t place, handle h)
{
    uint32_t b = index_home(place), s;
    while ((s = filled(&segment->buckets[b])) == INDEX_SLOTS)
        b = index_after(b);
    segment->buckets[b].places[s] = place;
    segment->buckets[b].handles[s] = h;
    ++*index_segment_used(segment);
}

/* As many as go with the directory; there is nothing in them then. Without memory the old ones stay. */
static void grow_recent(struct index *x)
{
    uint32_t bits = x->depth + INDEX_RECENT_PER_SEGMENT_BITS;
    if (bits < INDEX_RECENT_FEWEST_BITS || bits > INDEX_RECENT_MOST_BITS)
        return;
    struct index_recent *recent = allocator_take(x->allocator, sizeof *recent << bits);
    if (!recent)
        return;
    memset(recent, 0, sizeof *recent << bits);
    allocator_give(x->allocator, x->recent, index_recent_bytes(x));
    x->recent = recent;
    x->recent_bits = bits;
}

/* Before a slot changes. */
static void forget_recent(struct index *x, uint64_t place)
{
    if (x->recent && index_recent(x, place)->place == place)
        *index_recent(x, place) = (struct index_recent){0, 0};
}

static bool double_directory(struct index *x)
{
    size_t length = (size_t)1 << x->depth;
    size_t bytes = length * sizeof *x->directory;
    struct index_segment **directory = allocator_take(x->allocator, 2 * bytes);
    if (!directory)
        return false;
    memcpy(directory, x->directory, bytes);
    memcpy(directory + length, x->directory, bytes);
    allocator_give(x->allocator, x->directory, bytes);
    x->directory = directory;
    x->depth++;
    grow_recent(x);
    return true;
}

static bool split(struct index *x, uint64_t place)
{
    struct index_segment *low = index_segment(x, place);
    uint32_t depth = *index_segment_depth(low);
    if (depth == INDEX_MAX_DEPTH || (depth == x->depth && !double_directory(x)))
        return false;
    struct index_segment *high = new_segment(x, depth + 1);
    if (!high)
        return false;
    struct index_segment old;
    memcpy(&old, low, sizeof old);
    memset(low, 0, sizeof *low);
    *index_segment_depth(low) = depth + 1;
    for (uint32_t b = 0; b < INDEX_BUCKETS; b++) {
        const struct index_bucket *bucket = &old.buckets[b];
        for (uint32_t s = 0; s < INDEX_SLOTS && bucket->handles[s]; s++)
            put(bucket->places[s] >> depth & 1 ? high : low, bucket->places[s], bucket->handles[s]);
    }
    size_t bit = (size_t)1 << depth;
    for (size_t k = (place & (bit - 1)) | bit; k < (size_t)1 << x->depth; k += 2 * bit)
        x->directory[k] = high;
    x->splits++;
    return true;
}

bool index_insert(struct index *x, uint64_t place, handle h)
{
    while (*index_segment_used(index_segment(x, place)) >= INDEX_FULL)
        if (!split(x, place))
            return false;
    put(index_segment(x, place), place, h);
    x->used++;
    return true;
}

/* Steps of probing from one bucket to another. */
static uint32_t distance(uint32_t from, uint32_t to)
{
    return (to - from) % INDEX_BUCKETS;
}

struct slot {
    struct index_bucket *bucket;
    uint32_t at;
};

static struct slot slot_of(const struct index *x, uint64_t place)
{
    struct index_bucket *buckets = index_segment(x, place)->buckets;
    uint32_t b = index_home(place), s;
    while ((s = index_match(&buckets[b], place)) == INDEX_SLOTS || !buckets[b].handles[s])
        b = index_after(b);
    return (struct slot){&buckets[b], s};
}

/* The first slot of a bucket whose probing began at or before bucket `hole`, INDEX_SLOTS: none. */
static uint32_t first_before(const struct index_bucket *buckets, uint32_t hole, uint32_t bucket)
{
    uint32_t s = 0;
    while (s < INDEX_SLOTS && buckets[bucket].handles[s] &&
           distance(index_home(buckets[bucket].places[s]), bucket) < distance(hole, bucket))
        s++;
    return s < INDEX_SLOTS && buckets[bucket].handles[s] ? s : INDEX_SLOTS;
}

void index_erase(struct index *x, uint64_t place)
{
    forget_recent(x, place);
    struct index_segment *segment = index_segment(x, place);
    struct index_bucket *buckets = segment->buckets;
    struct slot hole = slot_of(x, place);
    for (;;) {
        bool full = filled(hole.bucket) == INDEX_SLOTS;
        uint32_t last = filled(hole.bucket) - 1;
        hole.bucket->places[hole.at] = hole.bucket->places[last];
        hole.bucket->handles[hole.at] = hole.bucket->handles[last];
        hole.bucket->places[last] = 0;
        hole.bucket->handles[last] = 0;
        if (!full)
            break;
        /* what passed this bucket because it was full would no longer be found behind it */
        uint32_t from = (uint32_t)(hole.bucket - buckets), b = index_after(from), s;
        while ((s = first_before(buckets, from, b)) == INDEX_SLOTS && filled(&buckets[b]) == INDEX_SLOTS)
            b = index_after(b);
        if (s == INDEX_SLOTS)
            break;
        hole.bucket->places[last] = buckets[b].places[s];
        hole.bucket->handles[last] = buckets[b].handles[s];
        hole = (struct slot){&buckets[b], s};
    }
    --*index_segment_used(segment);
    x->used--;
}

void index_replace(struct index *x, uint64_t place, handle h)
{
    forget_recent(x, place);
    struct slot slot = slot_of(x, place);
    slot.bucket->handles[slot.at] = h;
}
