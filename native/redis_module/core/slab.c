#include "slab.h"

#include <string.h>

void slab_open(struct slab *s, struct allocator *allocator)
{
    memset(s, 0, sizeof *s);
    s->allocator = allocator;
}

void slab_close(struct slab *s)
{
    for (uint32_t k = 1; k < s->length; k++) {
        struct slab_chunk *c = &s->chunks[k];
        if (c->base)
            allocator_give(s->allocator, c->base - c->pad, slab_chunk_bytes(c));
    }
    allocator_give(s->allocator, s->chunks, s->capacity * sizeof *s->chunks);
    slab_open(s, s->allocator);
}

static uint32_t stride_of(uint32_t bytes)
{
    uint32_t stride = (bytes + SLAB_LINE - 1) / SLAB_LINE * SLAB_LINE;
    if ((stride - bytes) * 16 > bytes)
        stride = (bytes + 15) / 16 * 16;
    return stride ? stride : 16;
}

int slab_new_class(struct slab *s, uint32_t bytes)
{
    if (s->classes == SLAB_CLASSES)
        return -1;
    s->class[s->classes].stride = stride_of(bytes);
    return (int)s->classes++;
}

int slab_class_of(struct slab *s, uint32_t bytes)
{
    uint32_t stride = stride_of(bytes);
    for (uint32_t k = 0; k < s->classes; k++)
        if (s->class[k].stride == stride)
            return (int)k;
    return slab_new_class(s, bytes);
}

static void join_open(struct slab *s, uint32_t k)
{
    struct slab_chunk *c = &s->chunks[k];
    struct slab_class *class = &s->class[c->class];
    c->prev = 0;
    c->next = class->open;
    if (class->open)
        s->chunks[class->open].prev = k;
    class->open = k;
}

static void leave_open(struct slab *s, uint32_t k)
{
    struct slab_chunk *c = &s->chunks[k];
    if (c->prev)
        s->chunks[c->prev].next = c->next;
    else
        s->class[c->class].open = c->next;
    if (c->next)
        s->chunks[c->next].prev = c->prev;
}

/* The number of a chunk entry to use, 0: no memory. */
static uint32_t chunk_number(struct slab *s)
{
    if (s->free)
        return s->free;
    if (s->length == s->capacity) {
        uint32_t capacity = s->capacity ? 2 * s->capacity : 8;
        if (capacity > SLAB_CHUNKS)
            return 0;
        struct slab_chunk *chunks = allocator_take(s->allocator, capacity * sizeof *chunks);
        if (!chunks)
            return 0;
        if (s->length)
            memcpy(chunks, s->chunks, s->length * sizeof *chunks);
        else
            memset(chunks, 0, sizeof *chunks);
        allocator_give(s->allocator, s->chunks, s->capacity * sizeof *chunks);
        s->chunks = chunks;
        s->capacity = capacity;
        s->length += s->length == 0; /* chunk 0 */
    }
    return s->length;
}

/* As large as a small part of the class, and as its slots can be told apart. */
static uint8_t doublings_of(const struct slab_class *class)
{
    uint8_t doublings = 0;
    for (size_t bytes = 2 * SLAB_CHUNK_BYTES; class->stride <= SLAB_CHUNK_BYTES / 16 && doublings < SLAB_MOST_DOUBLINGS &&
                                              bytes <= class->bytes / SLAB_CHUNK_SHARE &&
                                              bytes / class->stride <= SLAB_SLOTS;
         bytes *= 2)
        doublings++;
    return doublings;
}

/* Lengthens the run by a block, or begins another. What lies before the block is mostly in use: where a chunk of the run was
 * given back meanwhile, a huge page brings back pages that the allocator had given to the system, one such page at most. */
static void lengthen_run(const struct allocator *a, struct slab_run *run, const void *block, size_t bytes)
{
    uintptr_t at = (uintptr_t)block;
    if (!a->huge)
        return;
    if (at < run->to || at - run->to > SLAB_RUN_GAP)
        run->from = (at + ALLOCATOR_HUGE - 1) / ALLOCATOR_HUGE * ALLOCATOR_HUGE;
    for (; run->from + ALLOCATOR_HUGE <= at; run->from += ALLOCATOR_HUGE)
        a->huge(a->context, (void *)run->from);
    run->to = at + bytes;
}

static uint32_t new_chunk(struct slab *s, int class)
{
    uint32_t k = chunk_number(s);
    if (!k)
        return 0;
    struct slab_class *of = &s->class[class];
    struct slab_chunk made = {.stride = of->stride, .free = SLAB_NOTHING, .class = (uint8_t)class,
                              .doublings = doublings_of(of)};
    size_t bytes = slab_chunk_bytes(&made);
    unsigned char *block = allocator_take(s->allocator, bytes);
    if (!block)
        return 0;
    struct slab_chunk *c = &s->chunks[k];
    if (k == s->free)
        s->free = c->next;
    else
        s->length++;
    size_t slots = (bytes - (SLAB_LINE - 1)) / made.stride; /* however the block is aligned */
    made.slots = (uint16_t)(slots < SLAB_SLOTS ? slots : SLAB_SLOTS);
    made.pad = (uint8_t)((SLAB_LINE - ((uintptr_t)block & (SLAB_LINE - 1))) & (SLAB_LINE - 1));
    made.base = block + made.pad;
    *c = made;
    of->bytes += bytes;
    join_open(s, k);
    lengthen_run(s->allocator, &of->run, block, bytes);
    return k;
}

handle slab_take(struct slab *s, int class)
{
    uint32_t k = s->class[class].open;
    if (!k && !(k = new_chunk(s, class)))
        return 0;
    struct slab_chunk *c = &s->chunks[k];
    uint16_t slot = c->free;
    if (slot == SLAB_NOTHING)
        slot = c->fresh++;
    else
        memcpy(&c->free, c->base + (size_t)slot * c->stride, sizeof c->free);
    if (++c->used == c->slots)
        leave_open(s, k);
    s->objects++;
    return k << SLAB_SLOT_BITS | slot;
}

void slab_give(struct slab *s, handle h)
{
    uint32_t k = h >> SLAB_SLOT_BITS;
    struct slab_chunk *c = &s->chunks[k];
    uint16_t slot = (uint16_t)(h & (SLAB_SLOTS - 1));
    memcpy(c->base + (size_t)slot * c->stride, &c->free, sizeof c->free);
    c->free = slot;
    s->objects--;
    if (c->used-- == c->slots)
        join_open(s, k);
    if (c->used || (!c->prev && !c->next))
        return;
    leave_open(s, k);
    s->class[c->class].bytes -= slab_chunk_bytes(c);
    allocator_give(s->allocator, c->base - c->pad, slab_chunk_bytes(c));
    *c = (struct slab_chunk){.next = s->free};
    s->free = k;
}
