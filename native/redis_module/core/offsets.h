/* Next offset of each source. Sorted by name: the same order on every replica and in every save. */
#ifndef TOW_OFFSETS_H
#define TOW_OFFSETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "allocator.h"

struct offset {
    char *source; /* `length` bytes, no 0 at the end */
    uint32_t length;
    int64_t next;
};

struct offsets {
    struct allocator *allocator;
    struct offset *list;
    size_t count, capacity;
};

void offsets_open(struct offsets *o, struct allocator *allocator);
void offsets_close(struct offsets *o);

/* The stored offset, NULL: unset. O(log sources). */
struct offset *offsets_find(const struct offsets *o, const char *source, size_t length);

/* Sets it. False: no memory, nothing has changed. O(sources) for a new one. */
bool offsets_set(struct offsets *o, const char *source, size_t length, int64_t next);

#endif
