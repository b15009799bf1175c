#include "sequence.h"

#include <string.h>

static uint32_t weight_bits(const struct entry *e)
{
    uint32_t bits;
    memcpy(&bits, (const char *)e + offsetof(struct entry, weight), sizeof bits);
    return bits;
}

bool entry_after(const struct entry *a, const struct entry *b)
{
    if (a->time_ms != b->time_ms)
        return a->time_ms > b->time_ms;
    if (a->partition != b->partition)
        return a->partition > b->partition;
    if (a->place != b->place)
        return a->place > b->place;
    if (a->item != b->item)
        return a->item > b->item;
    return weight_bits(a) > weight_bits(b);
}

void sequence_sort(const struct entry *appends, uint32_t *order, uint32_t m, uint32_t *spare)
{
    bool rises = true;
    for (uint32_t k = 1; k < m && rises; k++)
        rises = !entry_after(&appends[order[k - 1]], &appends[order[k]]);
    /* merge sort from the bottom: one user with a whole batch must not cost m² */
    for (uint32_t width = 1; !rises && width < m; width *= 2) {
        for (uint32_t from = 0; from < m; from += 2 * width) {
            uint32_t middle = from + width < m ? from + width : m, end = middle + width < m ? middle + width : m;
            uint32_t a = from, b = middle;
            for (uint32_t k = from; k < end; k++) {
                bool second = a == middle || (b < end && entry_after(&appends[order[a]], &appends[order[b]]));
                spare[k] = second ? order[b++] : order[a++];
            }
        }
        memcpy(order, spare, m * sizeof *order);
    }
}

void sequence_merge(const struct entry *stored, uint32_t length, const struct entry *appends, const uint32_t *order,
                    uint32_t m, struct entry *out, uint32_t size)
{
    uint32_t a = length, b = m;
    for (uint32_t p = size; p > 0; p--) {
        bool appended = b && (!a || entry_after(&appends[order[b - 1]], &stored[a - 1]));
        out[p - 1] = appended ? appends[order[--b]] : stored[--a];
    }
}
