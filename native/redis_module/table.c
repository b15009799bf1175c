#include "table.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "access.h"

static bool in_range(double x, double low, double high)
{
    return x >= low && x <= high; /* NaN is not */
}

static bool good_spec(const struct table_spec *s)
{
    const struct optimizer *o = &s->optimizer;
    return s->dim >= 1 && s->dim <= ROW_MAX_DIM && in_range(s->initial_std, 0, 10) && s->gap_rate > 0 &&
           s->gap_rate <= 1 && s->half_life >= 1 && isfinite(s->half_life) && o->kind >= 0 &&
           o->kind < OPTIMIZER_KINDS && in_range(o->initial_accumulator, 0, 3e38) && in_range(o->beta_1, 0, 1) &&
           in_range(o->beta_2, 0, 1) && in_range(o->epsilon, 0, 3e38) && in_range(o->clip_norm, 0, 1e15);
}

enum table_status table_open(struct table *t, const struct table_spec *spec, struct allocator *allocator)
{
    if (!good_spec(spec))
        return TABLE_BAD_SPEC;
    memset(t, 0, sizeof *t);
    t->allocator = allocator;
    t->spec = *spec;
    t->initial = initial_of(spec->seed, spec->initial_std);
    t->state_dim = optimizer_state_dim(spec->optimizer.kind, spec->dim);
    t->values = spec->dim + t->state_dim;
    slab_open(&t->slab, allocator);
    t->row_class = slab_class_of(&t->slab, (uint32_t)row_bytes(t->values));
    for (size_t k = 1; k < sizeof t->id_classes / sizeof *t->id_classes; k++)
        t->id_classes[k] = slab_class_of(&t->slab, (uint32_t)(16 * k));
    t->order = (struct order){.slab = &t->slab, .links = offsetof(struct row, links)};
    return index_open(&t->index, allocator) ? TABLE_OK : TABLE_NO_MEMORY;
}

void table_close(struct table *t)
{
    index_close(&t->index);
    slab_close(&t->slab);
    t->order.first = t->order.last = 0;
    t->order.length = 0;
}

static struct row_record record_of(const struct table *t, const struct row *row)
{
    const struct row_id *id = id_of(t, row);
    return (struct row_record){row->clock,      row->count, row->updated_ms, row->last_seen, row->gap,
                               row->popularity, row->check, 0,               id ? id->length : 0};
}

enum table_status table_lookup(const struct table *t, int64_t n, const uint64_t *keys, float *vectors, float *state,
                               uint8_t *found, struct row_record *records)
{
    if (n < 0 || n > TABLE_MAX_BATCH || (n && (!keys || !vectors)))
        return TABLE_BAD_BATCH;
    size_t dim = t->spec.dim, state_dim = t->state_dim, bytes = row_bytes(state ? t->values : dim);
    for (int64_t from = 0; from < n; from += TABLE_BLOCK) {
        handle handles[TABLE_BLOCK];
        int block = access_block(t, n, keys, from, bytes, handles);
        if (records)
            access_prefetch_ids(t, block, handles);
        for (int k = 0; k < block; k++) {
            size_t i = (size_t)(from + k);
            const struct row *row = handles[k] ? row_at(t, handles[k]) : NULL;
            if (row)
                memcpy(vectors + i * dim, row->values, dim * sizeof(float));
            else
                initial_fill(&t->initial, keys[i], t->spec.dim, vectors + i * dim);
            if (state && row)
                memcpy(state + i * state_dim, row->values + dim, state_dim * sizeof(float));
            else if (state)
                access_initial_state(t, state + i * state_dim);
            if (found)
                found[i] = row != NULL;
            if (records)
                records[i] = row ? record_of(t, row) : (struct row_record){0};
        }
    }
    return TABLE_OK;
}

int64_t table_forget(struct table *t, int64_t n, const uint64_t *keys)
{
    int64_t forgotten = 0;
    for (int64_t i = 0; i < n; i++) {
        handle h = access_find(t, keys[i]);
        if (!h)
            continue;
        order_remove(&t->order, h);
        access_drop(t, h);
        forgotten++;
    }
    return forgotten;
}

const struct row_id *table_id(const struct table *t, uint64_t key)
{
    handle h = access_find(t, key);
    return h ? id_of(t, row_at(t, h)) : NULL;
}

int64_t table_oldest(const struct table *t, int64_t most, uint64_t *keys)
{
    int64_t n = 0;
    for (handle h = t->order.first; h && n < most; h = row_at(t, h)->links.next)
        keys[n++] = row_at(t, h)->key;
    return n;
}

