/* table_check: what always holds. */
#include "access.h"

static const char *check_order(const struct table *t)
{
    handle before = 0;
    uint64_t rows = 0, ids = 0;
    for (handle h = t->order.first; h; h = row_at(t, h)->links.next) {
        const struct row *row = row_at(t, h);
        if (row->links.prev != before)
            return "a row's link back is not the row before it";
        if (access_find(t, row->key) != h)
            return "a row of the order is not what the index finds under its key";
        if (++rows > t->index.used)
            return "the order has more rows than the index, or a ring";
        ids += row->id != 0;
        before = h;
    }
    if (before != t->order.last)
        return "the order does not end at its last row";
    if (rows != t->order.length || rows != t->index.used)
        return "order and index differ in how many rows there are";
    if (rows + ids != t->slab.objects)
        return "the slabs hold objects that are no row and no row's id";
    return NULL;
}

static const char *check_index(const struct table *t)
{
    uint64_t used = 0;
    const struct index *x = &t->index;
    for (size_t k = 0; k < (size_t)1 << x->depth; k++) {
        const struct index_segment *segment = x->directory[k];
        uint32_t low = (1u << segment->depth) - 1, n = 0;
        if (segment->depth > x->depth || segment != x->directory[k & low])
            return "the directory does not agree with a segment's depth";
        if (k > low)
            continue;
        for (uint32_t s = 0; s < INDEX_SLOTS; s++) {
            if (!segment->slots[s].handle)
                continue;
            if ((segment->slots[s].place & low) != k)
                return "a key is in a segment of other keys";
            n++;
        }
        if (n != segment->used || n > INDEX_FULL)
            return "a segment's count is not what it holds";
        used += n;
    }
    return used == x->used ? NULL : "the index's count is not what its segments hold";
}

const char *table_check(const struct table *t)
{
    const char *wrong = check_index(t);
    return wrong ? wrong : check_order(t);
}
