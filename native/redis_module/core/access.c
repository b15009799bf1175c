#include "access.h"

#include <string.h>

int access_block(const struct table *t, int64_t n, const any_u64 *keys, int64_t from, handle *found)
{
    int block = block_of(n, from), next = from + block < n ? block_of(n, from + block) : 0;
    if (from == 0)
        for (int i = 0; i < block; i++)
            index_prefetch_recent(&t->index, mix_place(keys[i], t->salt));
    keys += from;
    for (int i = 0; i < next; i++)
        index_prefetch_recent(&t->index, mix_place(keys[block + i], t->salt));
    for (int i = 0; i < block; i++)
        found[i] = index_find_recent(&t->index, mix_place(keys[i], t->salt));
    return block;
}

void access_prefetch_headers(const struct table *t, int n, const handle *handles, bool all)
{
    for (int k = 0; k < n; k++)
        if (handles[k] && (all || !is_known(t, handles[k])))
            __builtin_prefetch(row_at(t, handles[k]));
}

void access_digest(const struct table *t, handle h)
{
    if (!is_known(t, h))
        return;
    struct row *row = row_at(t, h);
    const struct row_extra *extra = extra_of(t, row);
    row->digest = mix_digest(extra->bytes, extra_id_length(extra), t->salt);
}

void access_prefetch_extras(const struct table *t, int n, const handle *handles, bool all)
{
    for (int k = 0; k < n; k++)
        if (handles[k] && (all || !is_known(t, handles[k])) && row_at(t, handles[k])->extra)
            __builtin_prefetch(slab_at(&t->slab, row_at(t, handles[k])->extra));
}

handle access_new(struct table *t, uint64_t key, int class)
{
    handle h = slab_take(&t->slab, class);
    if (!h)
        return 0;
    struct row *row = row_at(t, h);
    memset(row, 0, sizeof *row);
    if (class != t->bare_class && t->bodies)
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
    index_erase(&t->index, mix_place(row_at(t, h)->key, t->salt));
    access_release(t, h);
}
