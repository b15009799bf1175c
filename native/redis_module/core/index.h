/* From keys to handles: extendible hashing (Fagin et al. 1979), segments of 128 buckets of one cache line each.
 *
 * Growth is a split of one segment in two: at most 640 slots are read and written and 8 KiB allocated by an insert,
 * however large the index is; the old and the new index never exist side by side, which would cost a dozen bytes a row more
 * at the worst moment. (Doubling one big array and moving a few slots an operation was rejected for that, and because
 * every find has to look in two places.) The directory, 8 bytes a segment, is copied when it doubles: 256 KB at 10
 * million rows, and half as often as the rows double.
 *
 * A slot is (place, handle), 12 bytes. The place is all 64 bits of mix_place: its low bits choose the directory entry, its
 * high ones the bucket where probing begins. As the mix is a bijection, a place that is found is the key's: no find reads
 * a row to be sure, so its lines can all be fetched at once, and a call knows from the index alone which keys are new.
 * Slots of 32 bits of place were smaller by a third, and cost every find a wait for the row's header.
 *
 * A bucket is compared as a whole, without a branch that depends on where in it the place is; what finds no room in its
 * bucket goes to the next that has. So a find is one line, which was prefetched, nearly always. Linear probing over slots
 * that straddle lines waited for a second line that nobody had prefetched, often behind a mispredicted branch; lookup and
 * apply together took 7 % longer.
 *
 * Segments on huge pages were measured and left: all of them there saved a twentieth of lookup and apply more, before there
 * were places found last. But blocks of the server's allocator begin anywhere, so that about half of a million rows'
 * index would be on huge pages (reckoned, not built), and after a fork a key that comes would cost a copy of 2 MiB.
 *
 * Trainers look rows up and apply to the same ones a moment later: the places found last, with their handles, stand in a
 * small direct-mapped table, and the second call does not wait for the index. Handles and not addresses, so what
 * moves in memory doesn't concern it.
 *
 * Segments are split at 17/20 of their slots. Worst load, all segments just split: 17/40, 30.1 bytes a row. Erasing moves
 * back what follows: no tombstones, so churn does not lengthen probes. The index does not shrink.
 */
#ifndef TOW_INDEX_H
#define TOW_INDEX_H

#include <stdbool.h>

#include "slab.h"

/* A function that does nothing but prefetch has no effect that gcc knows of: a call that is not inlined early is dropped. */
#define PREFETCHING static inline __attribute__((always_inline))

#define INDEX_BUCKETS 128u
#define INDEX_SLOTS 5u /* of a bucket */
#define INDEX_FULL 544u /* slots of a segment */
#define INDEX_MAX_DEPTH 22u

/* Slots that are in use come first. Those that are not are all zeros. */
struct index_bucket {
    uint64_t places[INDEX_SLOTS];
    handle handles[INDEX_SLOTS]; /* 0: empty */
    uint32_t number;             /* of the segment, see there */
};

struct index_segment {
    struct index_bucket buckets[INDEX_BUCKETS]; /* on cache lines if the allocator gives 8 KiB so; else only slower */
};

_Static_assert(sizeof(struct index_bucket) == 64, "a cache line");
_Static_assert(sizeof(struct index_segment) == 8192, "a size class of allocators");

#define INDEX_RECENT_PER_SEGMENT_BITS 4u /* 16 a segment: .7 bytes a row at most */
#define INDEX_RECENT_FEWEST_BITS 10u     /* a smaller index fits the cache itself */
#define INDEX_RECENT_MOST_BITS 15u       /* 384 KiB: eight batches of 4096 keys, and a fifth of a second cache */

/* What was found last of all places that share some bits. */
struct index_recent {
    uint64_t place;
    handle handle; /* 0: nothing */
} __attribute__((packed));

struct index {
    struct allocator *allocator;
    struct index_segment **directory; /* 2^depth */
    uint32_t depth;
    uint64_t used;
    uint64_t segments;
    uint64_t splits;
    struct index_recent *recent; /* 2^recent_bits if that is not 0, each a slot of a segment or nothing; NULL: none */
    uint32_t recent_bits;
};

/* False: no memory; nothing is held then. */
bool index_open(struct index *x, struct allocator *allocator);

/* O(segments). */
void index_close(struct index *x);

/* A place that is not there. False: no memory for a split, or more than INDEX_FULL places that agree in INDEX_MAX_DEPTH
 * bits; the places are as before. O(1) expected, a split at most.
 */
bool index_insert(struct index *x, uint64_t place, handle h);

/* The place must be there. O(1) expected. */
void index_erase(struct index *x, uint64_t place);

/* Another handle for a place, which must be there. O(1) expected. */
void index_replace(struct index *x, uint64_t place, handle h);

/* Slots in use. */
static inline uint32_t *index_segment_used(struct index_segment *segment)
{
    return &segment->buckets[0].number;
}

/* Low bits of the place that all keys of the segment share. */
static inline uint32_t *index_segment_depth(struct index_segment *segment)
{
    return &segment->buckets[1].number;
}

/* The bucket where probing begins: from the high bits, as the low ones are the same in the whole segment. */
static inline uint32_t index_home(uint64_t place)
{
    return (uint32_t)(place >> 57);
}

static inline uint32_t index_after(uint32_t bucket)
{
    return (bucket + 1) % INDEX_BUCKETS;
}

static inline struct index_segment *index_segment(const struct index *x, uint64_t place)
{
    return x->directory[place & ((1u << x->depth) - 1)];
}

/* Begins to fetch what index_find will read. */
PREFETCHING void index_prefetch(const struct index *x, uint64_t place)
{
    __builtin_prefetch(&index_segment(x, place)->buckets[index_home(place)]);
}

/* Begins to fetch what index_insert will read besides. */
PREFETCHING void index_prefetch_count(const struct index *x, uint64_t place)
{
    __builtin_prefetch(index_segment_used(index_segment(x, place)), 1);
}

/* The slot of a place in a bucket, INDEX_SLOTS: none. May be the first empty one for place 0. */
static inline uint32_t index_match(const struct index_bucket *bucket, uint64_t place)
{
    uint32_t matches = 1u << INDEX_SLOTS;
#pragma GCC unroll 5
    for (uint32_t s = 0; s < INDEX_SLOTS; s++)
        matches |= (uint32_t)(bucket->places[s] == place) << s;
    return (uint32_t)__builtin_ctz(matches);
}

/* The handle of a place, 0: none. O(1) expected. Ends because a segment is never full. */
static inline handle index_find(const struct index *x, uint64_t place)
{
    const struct index_bucket *buckets = index_segment(x, place)->buckets;
    for (uint32_t b = index_home(place);; b = index_after(b)) {
        uint32_t s = index_match(&buckets[b], place);
        if (s < INDEX_SLOTS)
            return buckets[b].handles[s];
        if (!buckets[b].handles[INDEX_SLOTS - 1])
            return 0;
    }
}

/* What is held for the places found last. */
static inline size_t index_recent_bytes(const struct index *x)
{
    return x->recent ? sizeof *x->recent << x->recent_bits : 0;
}

/* Where a place found last would be. Other bits than those of directory and bucket. */
static inline struct index_recent *index_recent(const struct index *x, uint64_t place)
{
    return &x->recent[place >> 24 & ((1u << x->recent_bits) - 1)];
}

/* Begins to fetch what index_find_recent will read of the index, if anything. */
PREFETCHING void index_prefetch_recent(const struct index *x, uint64_t place)
{
    if (!x->recent || index_recent(x, place)->place != place)
        index_prefetch(x, place);
}

/* index_find, which looks first among those found last, and remembers what it finds. Not pure, but for all that it returns:
 * whatever is erased or replaced is forgotten there, and nothing else changes a slot that is in use.
 */
static inline handle index_find_recent(const struct index *x, uint64_t place)
{
    if (!x->recent)
        return index_find(x, place);
    struct index_recent *recent = index_recent(x, place);
    if (recent->place == place && recent->handle)
        return recent->handle;
    handle h = index_find(x, place);
    if (h)
        *recent = (struct index_recent){place, h};
    return h;
}

#endif
