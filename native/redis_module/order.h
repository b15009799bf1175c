/* Objects of a slab from the least to the most recently updated: a doubly linked list by handle.
 *
 * Eviction takes from the front; the feed and an incremental export walk from the back. The links are in the objects,
 * 8 bytes together. A list by position, because a number per row would cost as much and could not be walked.
 * Everything here is O(1).
 */
#ifndef TOW_ORDER_H
#define TOW_ORDER_H

#include "slab.h"

struct order_links {
    handle prev, next; /* 0: none */
};

struct order {
    const struct slab *slab;
    size_t links; /* where an object has its order_links */
    handle first, last;
    uint64_t length;
};

static inline struct order_links *order_links(const struct order *o, handle h)
{
    return (struct order_links *)((unsigned char *)slab_at(o->slab, h) + o->links);
}

void order_append(struct order *o, handle h);
void order_remove(struct order *o, handle h);

/* To the back; h is in the list. */
static inline void order_renew(struct order *o, handle h)
{
    if (o->last == h)
        return;
    order_remove(o, h);
    order_append(o, h);
}

#endif
