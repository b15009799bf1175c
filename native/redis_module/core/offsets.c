#include "offsets.h"

#include <string.h>

void offsets_open(struct offsets *o, struct allocator *allocator)
{
    *o = (struct offsets){.allocator = allocator};
}

void offsets_close(struct offsets *o)
{
    for (size_t k = 0; k < o->count; k++)
        allocator_give(o->allocator, o->list[k].source, o->list[k].length);
    allocator_give(o->allocator, o->list, o->capacity * sizeof *o->list);
    offsets_open(o, o->allocator);
}

static int compare(const struct offset *a, const char *source, size_t length)
{
    int order = memcmp(a->source, source, a->length < length ? a->length : length);
    return order ? order : a->length < length ? -1 : a->length > length;
}

/* Where the source is, or belongs. */
static size_t place_of(const struct offsets *o, const char *source, size_t length)
{
    size_t low = 0, high = o->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(&o->list[middle], source, length) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct offset *offsets_find(const struct offsets *o, const char *source, size_t length)
{
    size_t k = place_of(o, source, length);
    return k < o->count && compare(&o->list[k], source, length) == 0 ? &o->list[k] : NULL;
}

static bool make_room(struct offsets *o)
{
    if (o->count < o->capacity)
        return true;
    size_t capacity = o->capacity ? 2 * o->capacity : 8;
    struct offset *list = allocator_take(o->allocator, capacity * sizeof *list);
    if (!list)
        return false;
    if (o->count)
        memcpy(list, o->list, o->count * sizeof *list);
    allocator_give(o->allocator, o->list, o->capacity * sizeof *list);
    o->list = list;
    o->capacity = capacity;
    return true;
}

bool offsets_set(struct offsets *o, const char *source, size_t length, int64_t next)
{
    struct offset *stored = offsets_find(o, source, length);
    if (stored) {
        stored->next = next;
        return true;
    }
    if (!make_room(o))
        return false;
    char *name = allocator_take(o->allocator, length);
    if (!name)
        return false;
    memcpy(name, source, length);
    size_t k = place_of(o, source, length);
    memmove(o->list + k + 1, o->list + k, (o->count - k) * sizeof *o->list);
    o->list[k] = (struct offset){name, (uint32_t)length, next};
    o->count++;
    return true;
}
