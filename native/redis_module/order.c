#include "order.h"

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
