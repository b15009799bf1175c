#include "access.h"

#include <string.h>

/* The handle of a key whose place has `h` as first candidate, 0: none. */
static handle settle(const struct table *t, uint64_t key, uint32_t place, handle h, uint32_t at)
{
    while (h && row_at(t, h)->key != key)
        h = index_next(&t->index, place, &at);
    return h;
}

handle access_find(const struct table *t, uint64_t key)
{
    uint32_t place = mix_place(key, t->salt), at;
    handle h = index_first(&t->index, place, &at);
    return settle(t, key, place, h, at);
}

void access_block(const struct table *t, int n, const any_u64 *keys, handle *found)
{
    uint32_t places[TABLE_BLOCK], at[TABLE_BLOCK];
    for (int i = 0; i < n; i++) {
        places[i] = mix_place(keys[i], t->salt);
        index_prefetch(&t->index, places[i]);
    }
    for (int i = 0; i < n; i++) {
        found[i] = index_first(&t->index, places[i], &at[i]);
        if (found[i])
            __builtin_prefetch(row_at(t, found[i]));
    }
    for (int i = 0; i < n; i++)
        found[i] = settle(t, keys[i], places[i], found[i], at[i]);
}

void access_digest(const struct table *t, struct row *row)
{
    if (t->limited)
        return;
    const struct row_extra *extra = extra_of(t, row);
    uint16_t length = extra_id_length(extra);
    row->digest = length && !extra_fence(extra) ? mix_digest(extra->bytes, length, t->salt) : 0;
}

void access_prefetch_extras(const struct table *t, int n, const handle *handles, bool all)
{
    for (int k = 0; k < n; k++)
        if (handles[k] && row_at(t, handles[k])->extra && (all || !is_digested(t, handles[k])))
            __builtin_prefetch(slab_at(&t->slab, row_at(t, handles[k])->extra));
}

handle access_new(struct table *t, uint64_t key, bool bare)
{
    handle h = slab_take(&t->slab, bare ? t->bare_class : t->row_class);
    if (!h)
        return 0;
    struct row *row = row_at(t, h);
    memset(row, 0, sizeof *row);
    if (!bare && t->bodies)
        *body_of(row) = (struct row_body){0};
    row->key = key;
    return h;
}

handle access_new_extra(struct table *t, const unsigned char *id, uint16_t length, const struct fence *fence)
{
    size_t bytes = sizeof(struct row_extra) + length + (fence ? sizeof *fence : 0);
    handle h = slab_take(&t->slab, t->extra_classes[(bytes + 15) / 16]);
    if (!h)
        return 0;
    struct row_extra *extra = slab_at(&t->slab, h);
    extra->head = length;
    if (length)
        memcpy(extra->bytes, id, length);
    if (fence) {
        extra->head |= EXTRA_FENCED;
        memcpy(extra->bytes + length, fence, sizeof *fence);
    }
    return h;
}

void access_initial_state(const struct table *t, float *state)
{
    int32_t kind = t->spec->optimizer.kind;
    bool sums = kind == OPTIMIZER_ADAGRAD || kind == OPTIMIZER_ROWWISE_ADAGRAD;
    float initial = sums ? t->spec->optimizer.initial_accumulator : 0.0f;
    for (uint32_t j = 0; j < t->state_dim; j++)
        state[j] = initial;
}

void access_begin(const struct table *t, struct row *row)
{
    if (t->bodies) {
        struct row_body *body = body_of(row); /* keeps its bytes, for what comes */
        static const struct place none = {PLACE_NONE, 0, 0};
        body->size = 0;
        if (body->bytes && t->spec->kind == KIND_RECORD)
            memcpy(body->bytes, &none, sizeof none);
        return;
    }
    initial_fill(&t->initial, row->key, t->dim, row->values);
    access_initial_state(t, row->values + t->dim);
}

void access_release(struct table *t, handle h)
{
    struct row *row = row_at(t, h);
    if (row->extra)
        slab_give(&t->slab, row->extra);
    if (t->bodies && is_row(t, h)) {
        t->body_bytes -= body_of(row)->capacity;
        allocator_give(t->allocator, body_of(row)->bytes, body_of(row)->capacity);
    }
    slab_give(&t->slab, h);
}

void access_drop(struct table *t, handle h)
{
    index_erase(&t->index, mix_place(row_at(t, h)->key, t->salt), h);
    access_release(t, h);
}
