/* Keys in the order of (score, bytes of the key): a doubly linked list by handle.
 *
 * Scores never fall from call to call, so keys join at the end. The links are in the objects, 8 bytes together; a score is a
 * field of the object. Ties, keys that joined at one score, go by the bytes of their keys, because that is how sorted sets
 * order them and all backends must let go of the same keys: whoever joins is sorted first, and order_join walks back
 * over keys of the same score, but over ORDER_WALK at most. Beyond, which takes thousands of keys in one millisecond, keys
 * go in the order in which they came; on replicas too.
 */
#ifndef TOW_ORDER_H
#define TOW_ORDER_H

#include "slab.h"

#define ORDER_WALK 4096

struct order_links {
    handle prev, next; /* 0: none */
};

struct order {
    const struct slab *slab;
    size_t links; /* where an object has its order_links */
    size_t score; /* where it has its score, an int64_t; its key is at 0 */
    handle first, last;
    uint64_t length;
};

static inline struct order_links *order_links(const struct order *o, handle h)
{
    return (struct order_links *)((unsigned char *)slab_at(o->slab, h) + o->links);
}

static inline int64_t order_score(const struct order *o, handle h)
{
    return *(const int64_t *)((const unsigned char *)slab_at(o->slab, h) + o->score);
}

static inline uint64_t order_key(const struct order *o, handle h)
{
    return *(const uint64_t *)slab_at(o->slab, h);
}

/* Takes h, which is in the list, out of it. O(1). */
void order_remove(struct order *o, handle h);

/* At the end, whatever its score: for loading a list that was saved in order. O(1). */
void order_append(struct order *o, handle h);

/* n handles whose objects have one score, none below it in the list, sorted by order_sort. O(n + ORDER_WALK). */
void order_join(struct order *o, int64_t n, const handle *handles);

/* A handle, and its key with the bytes in the order in which keys are compared. */
struct order_item {
    uint64_t key;
    uint64_t handle;
};

/* Sorts n items by key; `spare` is of the same length. Radix: O(n) passes over the bytes in which keys differ. */
void order_sort(int64_t n, struct order_item *items, struct order_item *spare);

#endif
