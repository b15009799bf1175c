/* The keys of one shard in memory: what each has, and the lists by which some are let go of. Knows nothing of Redis and
 * nothing of streams: shard.c has offsets and clock, apply.c what a call does.
 *
 * Speed comes from overlapping cache misses, and from few. A batch goes in blocks of TABLE_BLOCK keys through two stages,
 * index slot and row, and each stage prefetches for the next: as many misses are under way at once as the processor can
 * have, where a key at a time would wait for two in a row. While the rows of a block are worked on, those of the next are
 * on their way. Each stage asks for a whole block at once: asked for between two rows' work, fewer were under way together,
 * and a lookup took a sixth longer. A row is looked at once in a call, while the translation of its address is at hand: rows
 * of a large table lie on as many pages.
 */
#ifndef TOW_TABLE_H
#define TOW_TABLE_H

#include "index.h"
#include "initial.h"
#include "row.h"
#include "spec.h"

#define TABLE_BLOCK 64

enum table_list { LIST_UPDATES, LIST_STUBS, LIST_EVICTED, LIST_FORGOTTEN, LISTS };

struct table {
    struct allocator *allocator;
    const struct spec *spec;
    uint64_t salt; /* of the index, a secret of this process; see mix_place */
    struct initial initial;
    uint32_t dim, state_dim;
    uint32_t values; /* floats of a row: dim + state_dim, or those of a row_body */
    bool bodies;     /* rows have a row_body */
    bool limited;    /* rows are in LIST_UPDATES */
    int row_class, known_class, bare_class; /* what a handle's class tells: a row; one whose id a digest stands for */
    int extra_classes[EXTRA_MAX_BYTES / 16 + 2]; /* by (bytes + 15) / 16 */
    struct slab slab;
    struct index index;
    struct order lists[LISTS];
    uint64_t bare; /* keys without a row */
    size_t body_bytes;
};

/* False: no memory; nothing is held then. The spec stays where it is for as long as the table. */
bool table_open(struct table *t, const struct spec *spec, uint64_t salt, struct allocator *allocator);

/* O(memory). */
void table_close(struct table *t);

/* Keys with a row. O(1). */
static inline uint64_t table_rows(const struct table *t)
{
    return t->index.used - t->bare;
}

/* NULL, or what is wrong with the structure. For tests: O(rows). */
const char *table_check(const struct table *t);

#endif
