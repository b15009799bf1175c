/* How table.c, apply.c and check.c get at rows. Nobody else includes it. */
#ifndef TOW_ACCESS_H
#define TOW_ACCESS_H

#include "mix.h"
#include "table.h"

#define ACCESS_LINE 64 /* bytes of a cache line */

static inline struct row *row_at(const struct table *t, handle h)
{
    return slab_at(&t->slab, h);
}

/* Bytes of a row up to and with so many of its values. */
static inline size_t row_bytes(size_t values)
{
    return sizeof(struct row) + values * sizeof(float);
}

static inline const struct row_id *id_of(const struct table *t, const struct row *row)
{
    return row->id ? slab_at(&t->slab, row->id) : NULL;
}

/* How many of n keys the block that begins at `from` has. */
static inline int block_of(int64_t n, int64_t from)
{
    return (int)(n - from < TABLE_BLOCK ? n - from : TABLE_BLOCK);
}

/* The handle of a key's row, 0: none. O(1) expected. */
handle access_find(const struct table *t, uint64_t key);

/* Handles of the block of keys from `from` on, 0 where there is no row; `bytes` of their rows are then on the way into
 * the cache. Returns the block's length. O(1) a key expected. Fetching the next block's slots ahead was tried, and gained
 * nothing.
 */
int access_block(const struct table *t, int64_t n, const uint64_t *keys, int64_t from, size_t bytes, handle *found);

/* Begins to fetch the ids of n rows, whose headers are read for it. */
void access_prefetch_ids(const struct table *t, int n, const handle *handles);

/* state_dim values of a new row. */
void access_initial_state(const struct table *t, float *state);

/* Gives back a row that is in the index and not in the order, and its id. */
void access_drop(struct table *t, handle h);

#endif
