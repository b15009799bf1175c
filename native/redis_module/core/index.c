#include "index.h"

#include <string.h>

static struct index_segment *new_segment(struct index *x, uint32_t depth)
{
    struct index_segment *segment = allocator_take(x->allocator, sizeof *segment);
    if (segment) {
        memset(segment, 0, sizeof *segment);
        segment->depth = depth;
        x->segments++;
    }
    return segment;
}

bool index_open(struct index *x, struct allocator *allocator)
{
    *x = (struct index){.allocator = allocator};
    x->directory = allocator_take(allocator, sizeof *x->directory);
    if (!x->directory)
        return false;
    x->directory[0] = new_segment(x, 0);
    if (x->directory[0])
        return true;
    allocator_give(allocator, x->directory, sizeof *x->directory);
    x->directory = NULL;
    return false;
}

void index_close(struct index *x)
{
    if (!x->directory)
        return;
    size_t length = (size_t)1 << x->depth;
    for (size_t k = 0; k < length; k++) {
        /* a segment of depth d stands at every entry that agrees in d bits; it is freed at the lowest */
        struct index_segment *segment = x->directory[k];
        if (segment && k < (size_t)1 << segment->depth) {
            uint32_t depth = segment->depth;
            allocator_give(x->allocator, segment, sizeof *segment);
            for (size_t j = k; j < length; j += (size_t)1 << depth)
                x->directory[j] = NULL;
        }
    }
    allocator_give(x->allocator, x->directory, length * sizeof *x->directory);
    *x = (struct index){.allocator = x->allocator};
}

static void put(struct index_segment *segment, struct index_slot slot)
{
    uint32_t s = index_home(slot.place);
    while (segment->slots[s].handle)
        s = index_after(s);
    segment->slots[s] = slot;
    segment->used++;
}

static bool double_directory(struct index *x)
{
    size_t length = (size_t)1 << x->depth;
    size_t bytes = length * sizeof *x->directory;
    struct index_segment **directory = allocator_take(x->allocator, 2 * bytes);
    if (!directory)
        return false;
    memcpy(directory, x->directory, bytes);
    memcpy(directory + length, x->directory, bytes);
    allocator_give(x->allocator, x->directory, bytes);
    x->directory = directory;
    x->depth++;
    return true;
}

static bool split(struct index *x, uint64_t place)
{
    struct index_segment *low = index_segment(x, place);
    uint32_t depth = low->depth;
    if (depth == INDEX_MAX_DEPTH || (depth == x->depth && !double_directory(x)))
        return false;
    struct index_segment *high = new_segment(x, depth + 1);
    if (!high)
        return false;
    struct index_slot slots[INDEX_SLOTS];
    memcpy(slots, low->slots, sizeof slots);
    memset(low->slots, 0, sizeof low->slots);
    low->used = 0;
    low->depth = depth + 1;
    for (uint32_t s = 0; s < INDEX_SLOTS; s++)
        if (slots[s].handle)
            put(slots[s].place >> depth & 1 ? high : low, slots[s]);
    size_t bit = (size_t)1 << depth;
    for (size_t k = (place & (bit - 1)) | bit; k < (size_t)1 << x->depth; k += 2 * bit)
        x->directory[k] = high;
    x->splits++;
    return true;
}

bool index_insert(struct index *x, uint64_t place, handle h)
{
    while (index_segment(x, place)->used >= INDEX_FULL)
        if (!split(x, place))
            return false;
    put(index_segment(x, place), (struct index_slot){place, h});
    x->used++;
    return true;
}

/* Steps of probing from one slot to another. */
static uint32_t distance(uint32_t from, uint32_t to)
{
    return to >= from ? to - from : to + INDEX_SLOTS - from;
}

static struct index_slot *slot_of(const struct index *x, uint64_t place)
{
    struct index_slot *slots = index_segment(x, place)->slots;
    uint32_t s = index_home(place);
    while (slots[s].place != place || slots[s].handle == 0)
        s = index_after(s);
    return &slots[s];
}

void index_erase(struct index *x, uint64_t place)
{
    struct index_segment *segment = index_segment(x, place);
    struct index_slot *slots = segment->slots;
    uint32_t hole = (uint32_t)(slot_of(x, place) - slots);
    for (uint32_t s = index_after(hole); slots[s].handle; s = index_after(s)) {
        /* what began probing at or before the hole would no longer be found behind it */
        if (distance(index_home(slots[s].place), s) >= distance(hole, s)) {
            slots[hole] = slots[s];
            hole = s;
        }
    }
    slots[hole] = (struct index_slot){0, 0};
    segment->used--;
    x->used--;
}

void index_replace(struct index *x, uint64_t place, handle h)
{
    slot_of(x, place)->handle = h;
}
