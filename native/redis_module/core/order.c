#include "order.h"

#include <string.h>

void order_append(struct order *o, handle h)
{
    *order_links(o, h) = (struct order_links){o->last, 0};
    if (o->last)
        order_links(o, o->last)->next = h;
    else
        o->first = h;
    o->last = h;
    o->length++;
}

void order_remove(struct order *o, handle h)
{
    struct order_links links = *order_links(o, h);
    if (links.prev)
        order_links(o, links.prev)->next = links.next;
    else
        o->first = links.next;
    if (links.next)
        order_links(o, links.next)->prev = links.prev;
    else
        o->last = links.prev;
    o->length--;
}

static void insert_after(struct order *o, handle before, handle h)
{
    handle next = before ? order_links(o, before)->next : o->first;
    *order_links(o, h) = (struct order_links){before, next};
    if (before)
        order_links(o, before)->next = h;
    else
        o->first = h;
    if (next)
        order_links(o, next)->prev = h;
    else
        o->last = h;
    o->length++;
}

void order_join(struct order *o, int64_t n, const handle *handles)
{
    handle at = o->last;
    int64_t walked = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        uint64_t key = __builtin_bswap64(order_key(o, handles[i]));
        int64_t score = order_score(o, handles[i]);
        while (at && walked < ORDER_WALK && order_score(o, at) == score &&
               __builtin_bswap64(order_key(o, at)) > key) {
            at = order_links(o, at)->prev;
            walked++;
        }
        insert_after(o, at, handles[i]);
    }
}

void order_sort(int64_t n, struct order_item *items, struct order_item *spare)
{
    uint64_t any = 0, all = ~UINT64_C(0);
    for (int64_t i = 0; i < n; i++) {
        any |= items[i].key;
        all &= items[i].key;
    }
    struct order_item *from = items, *to = spare;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!((any ^ all) >> shift & 0xFF))
            continue;
        int64_t counts[257] = {0};
        for (int64_t i = 0; i < n; i++)
            counts[(from[i].key >> shift & 0xFF) + 1]++;
        for (int b = 0; b < 256; b++)
            counts[b + 1] += counts[b];
        for (int64_t i = 0; i < n; i++)
            to[counts[from[i].key >> shift & 0xFF]++] = from[i];
        struct order_item *swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, (size_t)n * sizeof *items);
}
