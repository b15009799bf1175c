/* A slab that grows in memory whose addresses the test chooses. */
#include <stdlib.h>
#include <string.h>

#include "slab.h"

#define ROOM ((size_t)192 << 20)

struct growth {
    int64_t chunks, largest, held; /* bytes of the largest chunk; of what is not given back */
    int64_t wishes, misplaced, repeated; /* misplaced: not on a multiple, or not wholly behind what is taken */
    int64_t least_share; /* by how much the class exceeded any chunk above the smallest when that was taken */
};

struct room {
    unsigned char *from, *to;
    uintptr_t last_wish;
    size_t gap;
    struct growth *out;
};

static void *take(void *context, size_t size)
{
    struct room *room = context;
    if (size < SLAB_CHUNK_BYTES)
        return malloc(size); /* chunk numbers */
    unsigned char *block = room->to;
    room->to += size + room->gap;
    room->out->held += (int64_t)size;
    room->out->chunks++;
    int64_t before = room->out->held - (int64_t)size, share = before / (int64_t)size;
    if (size > SLAB_CHUNK_BYTES && (!room->out->least_share || share < room->out->least_share))
        room->out->least_share = share;
    if ((int64_t)size > room->out->largest)
        room->out->largest = (int64_t)size;
    return block;
}

static void give(void *context, void *block, size_t size)
{
    struct room *room = context;
    if (size < SLAB_CHUNK_BYTES)
        free(block);
    else
        room->out->held -= (int64_t)size;
}

static void huge(void *context, void *at)
{
    struct room *room = context;
    uintptr_t place = (uintptr_t)at;
    room->out->wishes++;
    room->out->misplaced += place % ALLOCATOR_HUGE != 0 || place < (uintptr_t)room->from ||
                            place + ALLOCATOR_HUGE > (uintptr_t)room->to;
    room->out->repeated += place <= room->last_wish;
    room->last_wish = place;
}

/* Takes `objects` of `bytes`, writes each, reads each again, gives all back. False: one was not what was written. */
bool slab_growth(uint32_t bytes, uint32_t objects, size_t gap, bool asks, struct growth *out)
{
    *out = (struct growth){0};
    unsigned char *block = malloc(ROOM);
    handle *handles = malloc(objects * sizeof *handles);
    struct room room = {block, block, 0, gap, out};
    struct allocator a = {take, give, &room, 0, asks ? huge : NULL};
    struct slab s;
    slab_open(&s, &a);
    int class = slab_new_class(&s, bytes);
    for (uint32_t k = 0; k < objects; k++) {
        handles[k] = slab_take(&s, class);
        memcpy(slab_at(&s, handles[k]), &k, sizeof k);
    }
    bool right = (uintptr_t)slab_at(&s, handles[0]) % SLAB_LINE == 0;
    for (uint32_t k = 0; k < objects; k++)
        right = right && memcmp(slab_at(&s, handles[k]), &k, sizeof k) == 0;
    for (uint32_t k = 0; k < objects; k++)
        slab_give(&s, handles[k]);
    right = right && s.class[class].bytes <= (size_t)SLAB_CHUNK_BYTES << SLAB_MOST_DOUBLINGS; /* one is kept */
    slab_close(&s);
    right = right && a.held == 0;
    free(handles);
    free(block);
    return right;
}
