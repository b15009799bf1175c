/* Objects of a few sizes in large chunks, addressed by 32-bit handles.
 *
 * Why not one allocation per row: a pointer costs twice a handle in the index and in both links of the order, an
 * allocator's size class up to a fifth of the row, and rows that lie in chunks can be aligned to cache lines, which
 * allocators of modules don't promise. Why chunks of 64 KiB: a size class of jemalloc, large enough that the few bytes
 * lost to alignment and at the end of a chunk are below 1 %. Where a class holds much they are larger, up to 1 MiB, and
 * never more than a 128th of the class, so that the last one's empty end costs less than the many ends it saves.
 *
 * Rows of a large table lie on more pages than the processor keeps translations of, and a row that is fetched waits for
 * one. So the allocator is asked to put chunks on huge pages: memory that chunks have filled without a gap to speak of,
 * one huge page after the other, when the next chunk is taken. Large chunks are what makes that last: between small ones
 * lie the buffers of calls, and when the server's allocator gives the pages of one back, the system splits the huge page.
 *
 * A handle is chunk · 4096 + slot; chunk 0 does not exist, so no handle is 0. Handles stay valid until released; the
 * addresses behind them until the object is released (nothing moves). A chunk whose last object goes is given back,
 * but for one of each size, lest an object at the edge costs an allocation each time.
 */
#ifndef TOW_SLAB_H
#define TOW_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "allocator.h"

#define SLAB_CHUNK_BYTES 65536 /* of the smallest chunk */
#define SLAB_MOST_DOUBLINGS 4  /* 1 MiB */
#define SLAB_CHUNK_SHARE 128   /* a chunk is at most such a part of its class, if it is not the smallest */
#define SLAB_RUN_GAP ((size_t)512 << 10) /* what others may have between two chunks of a run */
#define SLAB_LINE 64u
#define SLAB_SLOT_BITS 12
#define SLAB_SLOTS (1u << SLAB_SLOT_BITS)
#define SLAB_CHUNKS (1u << (32 - SLAB_SLOT_BITS))
#define SLAB_CLASSES 48
#define SLAB_NOTHING UINT16_MAX

typedef uint32_t handle;

struct slab_chunk {
    unsigned char *base; /* of slot 0, on a cache line; NULL: the number is free, `next` the next free one */
    uint32_t stride;
    uint32_t next, prev; /* among the chunks of its class that have room */
    uint16_t slots, used;
    uint16_t fresh; /* slots from here on were never used */
    uint16_t free;  /* first of the released slots, each holding the next; SLAB_NOTHING */
    uint8_t class;
    uint8_t pad; /* base − pad is what the allocator gave */
    uint8_t doublings; /* of the smallest size */
};

_Static_assert(sizeof(struct slab_chunk) == 32, "two of a cache line");

/* Memory in which chunks of a class follow one another. */
struct slab_run {
    uintptr_t from; /* on a huge page, the first that was not asked for yet */
    uintptr_t to;
};

struct slab_class {
    uint32_t stride;
    uint32_t open; /* first chunk with room, 0: none */
    size_t bytes;  /* of its chunks */
    struct slab_run run; /* of those taken last */
};

struct slab {
    struct allocator *allocator;
    struct slab_chunk *chunks;
    uint32_t length, capacity; /* of chunks */
    uint32_t free;             /* first free chunk number, 0: none */
    uint32_t classes;
    struct slab_class class[SLAB_CLASSES];
    uint64_t objects;
};

/* Takes no memory yet. */
void slab_open(struct slab *s, struct allocator *allocator);

/* Gives all memory back. O(chunks). */
void slab_close(struct slab *s);

/* Declares objects of `bytes` and returns their class, or −1 where there are SLAB_CLASSES already. Strides are
 * multiples of a cache line where that costs at most a sixteenth of the object, otherwise of 16 bytes. O(classes).
 */
int slab_class_of(struct slab *s, uint32_t bytes);

/* The same, but a new class, which tells objects that were made for it from one another. slab_class_of may give it to others
 * of the size, too.
 */
int slab_new_class(struct slab *s, uint32_t bytes);

/* A handle, or 0 if memory is short; the object's bytes are whatever they were. O(1), but for one copy of the chunk
 * numbers (32 bytes a chunk) each time they double.
 */
handle slab_take(struct slab *s, int class);

/* O(1). */
void slab_give(struct slab *s, handle h);

/* What a chunk takes of the allocator. Larger objects come sixteen to a chunk, so that its end wastes little of them too. */
static inline size_t slab_chunk_bytes(const struct slab_chunk *c)
{
    return c->stride <= SLAB_CHUNK_BYTES / 16 ? (size_t)SLAB_CHUNK_BYTES << c->doublings
                                              : (size_t)c->stride * 16 + SLAB_LINE - 1;
}

static inline void *slab_at(const struct slab *s, handle h)
{
    const struct slab_chunk *c = &s->chunks[h >> SLAB_SLOT_BITS];
    return c->base + (size_t)(h & (SLAB_SLOTS - 1)) * c->stride;
}

#endif
