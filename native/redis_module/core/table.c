#include "table.h"

#include <stddef.h>
#include <string.h>

#include "access.h"

static struct order list_by(const struct table *t, size_t score)
{
    return (struct order){.slab = &t->slab, .links = offsetof(struct row, links), .score = score};
}

bool table_open(struct table *t, const struct spec *spec, uint64_t salt, struct allocator *allocator)
{
    memset(t, 0, sizeof *t);
    t->allocator = allocator;
    t->spec = spec;
    t->salt = salt;
    t->bodies = spec->kind == KIND_SEQUENCE || spec->kind == KIND_RECORD;
    t->limited = spec->ttl_ms || spec->max_rows;
    t->initial = initial_of(spec->seed, spec->initial_std);
    t->dim = t->bodies ? 0 : spec->dim;
    t->state_dim = t->bodies ? 0 : optimizer_state_dim(spec->optimizer.kind, spec->dim);
    t->values = t->bodies ? sizeof(struct row_body) / sizeof(float) : t->dim + t->state_dim;
    slab_open(&t->slab, allocator);
    t->row_class = slab_new_class(&t->slab, (uint32_t)row_bytes(t->values));
    t->known_class = slab_new_class(&t->slab, (uint32_t)row_bytes(t->values));
    t->bare_class = slab_new_class(&t->slab, sizeof(struct row));
    for (size_t k = 1; k < sizeof t->extra_classes / sizeof *t->extra_classes; k++)
        t->extra_classes[k] = slab_class_of(&t->slab, (uint32_t)(16 * k));
    t->lists[LIST_UPDATES] = list_by(t, offsetof(struct row, updated_ms));
    t->lists[LIST_STUBS] = list_by(t, offsetof(struct row, updated_ms));
    t->lists[LIST_EVICTED] = list_by(t, offsetof(struct row, clock));
    t->lists[LIST_FORGOTTEN] = list_by(t, offsetof(struct row, clock));
    return index_open(&t->index, allocator);
}

/* Bodies are allocations of their own. */
static void close_bodies(struct table *t)
{
    const struct index *x = &t->index;
    for (size_t k = 0; k < (size_t)1 << x->depth; k++) {
        struct index_segment *segment = x->directory[k];
        if (k > (size_t)((1u << *index_segment_depth(segment)) - 1))
            continue;
        for (uint32_t s = 0; s < INDEX_BUCKETS * INDEX_SLOTS; s++) {
            handle h = segment->buckets[s / INDEX_SLOTS].handles[s % INDEX_SLOTS];
            if (h && is_row(t, h))
                allocator_give(t->allocator, body_of(row_at(t, h))->bytes, body_of(row_at(t, h))->capacity);
        }
    }
}

void table_close(struct table *t)
{
    if (t->bodies && t->index.directory)
        close_bodies(t);
    index_close(&t->index);
    slab_close(&t->slab);
    memset(t->lists, 0, sizeof t->lists);
    t->bare = 0;
    t->body_bytes = 0;
}
