/* How the files of the core get at rows. Nobody else includes it. */
#ifndef TOW_ACCESS_H
#define TOW_ACCESS_H

#include <string.h>

#include "mix.h"
#include "table.h"

#define ACCESS_LINE 64 /* bytes of a cache line */

static inline struct row *row_at(const struct table *t, handle h)
{
    return slab_at(&t->slab, h);
}

/* Whether there are values behind the headers of a class. */
static inline bool has_rows(const struct table *t, int class)
{
    return class == t->row_class || class == t->known_class;
}

static inline int class_of(const struct table *t, handle h)
{
    return t->slab.chunks[h >> SLAB_SLOT_BITS].class;
}

static inline bool is_row(const struct table *t, handle h)
{
    return has_rows(t, class_of(t, h));
}

/* Whether nothing need be read of an object's extra: it is a row with an id that its digest stands for, and no fence. */
static inline bool is_known(const struct table *t, handle h)
{
    return class_of(t, h) == t->known_class;
}

/* Bytes of a row up to and with so many of its values. */
static inline size_t row_bytes(size_t values)
{
    return sizeof(struct row) + values * sizeof(float);
}

static inline struct row_extra *extra_of(const struct table *t, const struct row *row)
{
    return row->extra ? slab_at(&t->slab, row->extra) : NULL;
}

static inline struct row_body *body_of(struct row *row)
{
    return (struct row_body *)(void *)row->values;
}

/* Place of a record's value; PLACE_NONE where there is no value. */
static inline struct place body_place(const struct row_body *body)
{
    struct place place = {PLACE_NONE, 0, 0};
    if (body->bytes)
        memcpy(&place, body->bytes, sizeof place);
    return place;
}

static inline enum standing standing_of(const struct table *t, handle h)
{
    if (!h)
        return STANDING_MISSING;
    if (is_row(t, h))
        return STANDING_ROW;
    const struct row *bare = row_at(t, h);
    return bare->count > 0 ? STANDING_STUB : extra_fence(extra_of(t, bare)) ? STANDING_FORGOTTEN : STANDING_EVICTED;
}

/* The list that a key of a standing is in, NULL: none. */
static inline struct order *list_of(struct table *t, enum standing standing)
{
    switch (standing) {
    case STANDING_ROW:
        return t->limited ? &t->lists[LIST_UPDATES] : NULL;
    case STANDING_STUB:
        return &t->lists[LIST_STUBS];
    case STANDING_EVICTED:
        return &t->lists[LIST_EVICTED];
    case STANDING_FORGOTTEN:
        return &t->lists[LIST_FORGOTTEN];
    default:
        return NULL;
    }
}

/* How many of n keys the block that begins at `from` has. */
static inline int block_of(int64_t n, int64_t from)
{
    return (int)(n - from < TABLE_BLOCK ? n - from : TABLE_BLOCK);
}

/* Into the second cache: two blocks' rows and what is made of them don't fit the first. */
PREFETCHING void prefetch_lines(const void *at, size_t from, size_t to)
{
    for (size_t b = from; b < to; b += ACCESS_LINE)
        __builtin_prefetch((const char *)at + b, 0, 2);
}

/* The handle of what a key has, 0: nothing. O(1) expected. */
static inline handle access_find(const struct table *t, uint64_t key)
{
    return index_find(&t->index, mix_place(key, t->salt));
}

/* Handles of the block of n keys that begins at `from`, 0 where there is nothing. Returns the block's length; the slots of
 * the next block are then on their way. No row is read; what was found lately is not looked up in the index again. O(1) a
 * key expected.
 */
int access_block(const struct table *t, int64_t n, const any_u64 *keys, int64_t from, handle *found);

/* Begins to fetch the headers of n objects; of those alone that are not is_known, unless `all`. */
void access_prefetch_headers(const struct table *t, int n, const handle *handles, bool all);

/* Begins to fetch the extras of n objects, whose headers are read for it; of those alone that have to be read, unless
 * `all`.
 */
void access_prefetch_extras(const struct table *t, int n, const handle *handles, bool all);

/* The class of a row with an id of so many bytes, and a fence or not. */
static inline int class_for(const struct table *t, uint16_t id_length, bool fenced)
{
    return id_length && !fenced && !t->limited ? t->known_class : t->row_class;
}

/* Puts the digest into a row of the class that has one, whose extra is new. */
void access_digest(const struct table *t, handle h);

/* An object of a class: a header of zeros with its key, and values that are not set; not in the index. 0: no memory. O(1). */
handle access_new(struct table *t, uint64_t key, int class);

/* An extra of an id, and a fence unless NULL. 0: no memory. */
handle access_new_extra(struct table *t, const unsigned char *id, uint16_t length, const struct fence *fence);

/* Puts the initial vector and state, or an empty body, into a new row. O(dim). */
void access_begin(const struct table *t, struct row *row);

/* state_dim values of a new row. */
void access_initial_state(const struct table *t, float *state);

/* Gives back an object, its extra and its body; it is in no list, and no longer in the index. */
void access_release(struct table *t, handle h);

/* Gives back what is in the index, and in no list. */
void access_drop(struct table *t, handle h);

#endif
