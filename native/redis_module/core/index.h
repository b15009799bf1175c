/* From keys to handles: extendible hashing (Fagin et al. 1979) with open addressing inside segments of 682 slots.
 *
 * Growth is a split of one segment in two: at most 682 slots are read and written and 8 KiB allocated by an insert,
 * however large the index is; the old and the new index never exist side by side, which would cost a dozen bytes a row more
 * at the worst moment. (Doubling one big array and moving a few slots an operation was rejected for that, and because
 * every find has to look in two places.) The directory, 8 bytes a segment, is copied when it doubles: 256 KB at 10
 * million rows, and half as often as the rows double.
 *
 * A slot is (place, handle), 12 bytes. The place is all 64 bits of mix_place: its low bits choose the directory entry, its
 * high ones the slot where probing begins. As the mix is a bijection, a place that is found is the key's: no find reads
 * a row to be sure, so its lines can all be fetched at once, and a call knows from the index alone which keys are new.
 * Slots of 32 bits of place were smaller by a third, and cost every find a wait for the row's header.
 *
 * Segments are split at 13/16 of their slots: unsuccessful linear probing then looks at 15 slots, three cache lines.
 * Worst load, all segments just split: 13/32, 29.6 bytes a row. Erasing shifts back what follows: no tombstones, so
 * churn does not lengthen probes. The index does not shrink.
 */
#ifndef TOW_INDEX_H
#define TOW_INDEX_H

#include <stdbool.h>

#include "slab.h"

#define INDEX_SLOTS 682u /* with a segment's own two numbers 8 KiB, a size class of allocators */
#define INDEX_FULL 554u
#define INDEX_MAX_DEPTH 22u

struct index_slot {
    uint64_t place;
    handle handle; /* 0: empty */
} __attribute__((packed));

struct index_segment {
    uint32_t used;
    uint32_t depth; /* low bits of the place that all its keys share */
    struct index_slot slots[INDEX_SLOTS];
};

_Static_assert(sizeof(struct index_segment) == 8192, "a size class");

struct index {
    struct allocator *allocator;
    struct index_segment **directory; /* 2^depth */
    uint32_t depth;
    uint64_t used;
    uint64_t segments;
    uint64_t splits;
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

/* Where probing begins: from the high bits, as the low ones are the same in the whole segment. */
static inline uint32_t index_home(uint64_t place)
{
    return (uint32_t)((place >> 32) * INDEX_SLOTS >> 32);
}

static inline uint32_t index_after(uint32_t slot)
{
    return slot + 1 == INDEX_SLOTS ? 0 : slot + 1;
}

static inline struct index_segment *index_segment(const struct index *x, uint64_t place)
{
    return x->directory[place & ((1u << x->depth) - 1)];
}

/* Begins to fetch what index_find will read. */
static inline void index_prefetch(const struct index *x, uint64_t place)
{
    __builtin_prefetch(&index_segment(x, place)->slots[index_home(place)]);
}

/* Begins to fetch what index_insert will read besides. */
static inline void index_prefetch_count(const struct index *x, uint64_t place)
{
    __builtin_prefetch(&index_segment(x, place)->used, 1);
}

/* The handle of a place, 0: none. O(1) expected. Ends because a segment is never full. */
static inline handle index_find(const struct index *x, uint64_t place)
{
    const struct index_slot *slots = index_segment(x, place)->slots;
    for (uint32_t s = index_home(place);; s = index_after(s))
        if (slots[s].place == place || slots[s].handle == 0)
            return slots[s].handle;
}

#endif
