#include "access.h"

/* The handle of a key whose place has `h` as first candidate, 0: none. */
static handle settle(const struct table *t, uint64_t key, uint32_t place, handle h, uint32_t at)
{
    while (h && row_at(t, h)->key != key)
        h = index_next(&t->index, place, &at);
    return h;
}

handle access_find(const struct table *t, uint64_t key)
{
    uint32_t place = mix_place(key, t->spec.salt), at;
    handle h = index_first(&t->index, place, &at);
    return settle(t, key, place, h, at);
}

int access_block(const struct table *t, int64_t n, const uint64_t *keys, int64_t from, size_t bytes, handle *found)
{
    uint32_t places[TABLE_BLOCK], at[TABLE_BLOCK];
    int block = block_of(n, from);
    keys += from;
    for (int i = 0; i < block; i++) {
        places[i] = mix_place(keys[i], t->spec.salt);
        index_prefetch(&t->index, places[i]);
    }
    for (int i = 0; i < block; i++) {
        found[i] = index_first(&t->index, places[i], &at[i]);
        if (found[i]) {
            const char *row = (const char *)row_at(t, found[i]);
            for (size_t b = 0; b < bytes; b += ACCESS_LINE)
                __builtin_prefetch(row + b);
        }
    }
    for (int i = 0; i < block; i++)
        found[i] = settle(t, keys[i], places[i], found[i], at[i]);
    return block;
}

void access_prefetch_ids(const struct table *t, int n, const handle *handles)
{
    for (int k = 0; k < n; k++)
        if (handles[k] && row_at(t, handles[k])->id)
            __builtin_prefetch(slab_at(&t->slab, row_at(t, handles[k])->id));
}

void access_initial_state(const struct table *t, float *state)
{
    float initial = t->spec.optimizer.kind == OPTIMIZER_ADAM ? 0.0f : t->spec.optimizer.initial_accumulator;
    for (uint32_t j = 0; j < t->state_dim; j++)
        state[j] = initial;
}

void access_drop(struct table *t, handle h)
{
    struct row *row = row_at(t, h);
    index_erase(&t->index, mix_place(row->key, t->spec.salt), h);
    if (row->id)
        slab_give(&t->slab, row->id);
    slab_give(&t->slab, h);
}
