/* Where memory comes from, and how much of it is held.
 *
 * Function pointers, so that the server's own allocator can be given: its memory is accounted, limited and
 * defragmented, malloc's is not. Sizes are told at release, so the account is exact without asking the allocator.
 * No realloc: growing arrays are copied, and the old one stays until the new one is there.
 */
#ifndef TOW_ALLOCATOR_H
#define TOW_ALLOCATOR_H

#include <stddef.h>

struct allocator {
    void *(*take)(void *context, size_t size);            /* NULL: none left. Not necessarily aligned beyond 16 */
    void (*give)(void *context, void *block, size_t size); /* block is not NULL */
    void *context;
    size_t held; /* bytes */
    /* Asks for ALLOCATOR_HUGE bytes, on a multiple of it, to be put on one page. A wish, of no effect on what the memory
     * holds, who it belongs to, or the account; it may lie in part in others' memory. NULL: nobody to ask.
     */
    void (*huge)(void *context, void *at);
};

#define ALLOCATOR_HUGE ((size_t)2 << 20)

static inline void *allocator_take(struct allocator *a, size_t size)
{
    void *block = a->take(a->context, size);
    if (block)
        a->held += size;
    return block;
}

static inline void allocator_give(struct allocator *a, void *block, size_t size)
{
    if (!block)
        return;
    a->held -= size;
    a->give(a->context, block, size);
}

#endif
