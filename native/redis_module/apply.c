/* table_apply: first what can fail, then what can't. */
#include <string.h>

#include "access.h"

_Static_assert(TABLE_BLOCK <= ROW_BLOCK, "row_halved takes a block");

static enum table_status check_batch(const struct table *t, const struct table_batch *b, int64_t *wrong)
{
    *wrong = -1;
    if (b->n < 0 || b->n > TABLE_MAX_BATCH || b->ids_size < 0 || (b->ids_size && !b->ids) || b->clock < t->clock)
        return TABLE_BAD_BATCH;
    if (b->n == 0)
        return b->ids_size ? TABLE_BAD_BATCH : TABLE_OK;
    if (!b->keys || !b->counts || !b->positives || !b->checks || !b->id_bounds || b->id_bounds[0] != 0 ||
        b->id_bounds[b->n] != b->ids_size)
        return TABLE_BAD_BATCH;
    for (int64_t i = 0; i < b->n; i++) {
        /* bounds one by one from 0 on: a difference of two checked ones can't overflow */
        if (b->id_bounds[i + 1] < b->id_bounds[i] || b->id_bounds[i + 1] > b->ids_size ||
            b->id_bounds[i + 1] - b->id_bounds[i] > ROW_MAX_ID || b->counts[i] < 0) {
            *wrong = i;
            return TABLE_BAD_BATCH;
        }
    }
    return TABLE_OK;
}

static uint16_t id_length(const struct table_batch *b, int64_t i)
{
    return (uint16_t)(b->id_bounds[i + 1] - b->id_bounds[i]);
}

/* Whether the row is of another id than the batch's. A row without id is nobody's yet. */
static bool taken(const struct table *t, const struct row *row, const struct table_batch *b, int64_t i)
{
    uint16_t length = id_length(b, i);
    const struct row_id *id = length ? id_of(t, row) : NULL;
    return id && (row->check != b->checks[i] || id->length != length ||
                  memcmp(id->bytes, b->ids + b->id_bounds[i], length) != 0);
}

/* What a call has reserved for a key. */
struct plan {
    handle row; /* 0: nothing to do */
    handle id;  /* the row's new id, 0: none */
    bool created;
};

static handle new_row(struct table *t, uint64_t key)
{
    handle h = slab_take(&t->slab, t->row_class);
    if (!h)
        return 0;
    if (!index_insert(&t->index, mix_place(key, t->spec.salt), h)) {
        slab_give(&t->slab, h);
        return 0;
    }
    struct row *row = row_at(t, h);
    memset(row, 0, sizeof *row);
    row->key = key;
    initial_fill(&t->initial, key, t->spec.dim, row->values);
    access_initial_state(t, row->values + t->spec.dim);
    return h;
}

static handle new_id(struct table *t, const unsigned char *bytes, uint16_t length)
{
    handle h = slab_take(&t->slab, t->id_classes[(sizeof(struct row_id) + length + 15) / 16]);
    if (h) {
        struct row_id *id = slab_at(&t->slab, h);
        id->length = length;
        memcpy(id->bytes, bytes, length);
    }
    return h;
}

/* Rows that are not in the order are those of this call. */
static bool in_order(const struct table *t, handle h)
{
    return row_at(t, h)->links.prev || t->order.first == h;
}

/* Reserves rows and ids of a block. False: no memory; what is in `plans` is then still to be released. */
static bool plan_block(struct table *t, const struct table_batch *b, int64_t from, struct plan *plans,
                       struct table_reply *reply)
{
    handle handles[TABLE_BLOCK];
    size_t dim = t->spec.dim;
    int n = access_block(t, b->n, b->keys, from, sizeof(struct row), handles);
    if (b->id_bounds[from + n] > b->id_bounds[from])
        access_prefetch_ids(t, n, handles);
    for (int k = 0; k < n; k++)
        if (!handles[k])
            index_prefetch_count(&t->index, mix_place(b->keys[from + k], t->spec.salt));
    for (int k = 0; k < n; k++) {
        int64_t i = from + k;
        bool moves = b->gradients && optimizer_moves(b->gradients + (size_t)i * dim, t->spec.dim);
        /* a key of this block may have come to be since */
        handle h = handles[k] ? handles[k] : access_find(t, b->keys[i]);
        if (h && taken(t, row_at(t, h), b, i)) {
            reply->refused += b->counts[i] > 1 ? b->counts[i] : 1;
            continue;
        }
        if (!b->counts[i] && !moves)
            continue;
        if (!h) {
            if (!(h = new_row(t, b->keys[i])))
                return false;
            plans[i].created = true;
            reply->created++;
        }
        plans[i].row = h;
        uint16_t length = id_length(b, i);
        if (b->counts[i] && length && !row_at(t, h)->id &&
            !(plans[i].id = new_id(t, b->ids + b->id_bounds[i], length)))
            return false;
    }
    return true;
}

static void release_plans(struct table *t, int64_t n, const struct plan *plans)
{
    for (int64_t i = 0; i < n; i++) {
        if (plans[i].id)
            slab_give(&t->slab, plans[i].id);
        if (plans[i].created)
            access_drop(t, plans[i].row);
    }
}

/* Carries out the plan of a key; nothing here can fail. */
static void carry_out(struct table *t, const struct table_batch *b, int64_t i, const struct plan *plan, double faded,
                      float *clipped, struct table_reply *reply)
{
    struct row *row = row_at(t, plan->row);
    if (plan->id && row->id)
        slab_give(&t->slab, plan->id); /* a key that comes twice */
    else if (plan->id)
        row->id = plan->id;
    if (b->counts[i]) {
        if (!row->id || plan->id == row->id)
            row->check = b->checks[i];
        row_observe(row, b->counts[i], b->positives[i], b->clock, t->spec.gap_rate, faded);
    }
    if (b->gradients)
        optimizer_step(&t->spec.optimizer, b->rate, row->values, b->gradients + (size_t)i * t->spec.dim, t->spec.dim,
                       clipped);
    row->clock = b->clock;
    row->updated_ms = b->now_ms;
    if (in_order(t, plan->row))
        order_renew(&t->order, plan->row);
    else
        order_append(&t->order, plan->row);
    reply->touched++;
}

static void carry_out_block(struct table *t, const struct table_batch *b, int64_t from, int n,
                            const struct plan *plans, struct table_reply *reply)
{
    float clipped[ROW_MAX_DIM];
    size_t bytes = row_bytes(t->values);
    for (int k = 0; k < n; k++)
        if (plans[k].row) {
            const char *row = (const char *)row_at(t, plans[k].row);
            for (size_t at = 0; at < bytes; at += ACCESS_LINE)
                __builtin_prefetch(row + at, 1);
        }
    double faded[TABLE_BLOCK] = {0};
    for (int k = 0; k < n; k++)
        if (plans[k].row) {
            faded[k] = (double)(b->clock - row_at(t, plans[k].row)->last_seen) / t->spec.half_life;
            struct order_links links = row_at(t, plans[k].row)->links;
            if (links.prev)
                __builtin_prefetch(order_links(&t->order, links.prev), 1);
            if (links.next)
                __builtin_prefetch(order_links(&t->order, links.next), 1);
        }
    row_halved(n, faded);
    for (int k = 0; k < n; k++)
        if (plans[k].row)
            carry_out(t, b, from + k, &plans[k], faded[k], clipped, reply);
}

enum table_status table_apply(struct table *t, const struct table_batch *b, struct table_reply *reply)
{
    *reply = (struct table_reply){0};
    enum table_status status = check_batch(t, b, &reply->wrong);
    if (status != TABLE_OK)
        return status;
    size_t size = (size_t)b->n * sizeof(struct plan);
    struct plan *plans = size ? allocator_take(t->allocator, size) : NULL;
    if (size && !plans) {
        status = TABLE_NO_MEMORY;
        goto done;
    }
    if (size)
        memset(plans, 0, size);
    for (int64_t from = 0; from < b->n; from += TABLE_BLOCK) {
        if (!plan_block(t, b, from, plans, reply)) {
            release_plans(t, b->n, plans);
            *reply = (struct table_reply){.wrong = -1};
            status = TABLE_NO_MEMORY;
            goto done;
        }
    }
    for (int64_t from = 0; from < b->n; from += TABLE_BLOCK)
        carry_out_block(t, b, from, block_of(b->n, from), plans + from, reply);
    t->clock = b->clock;
done:
    allocator_give(t->allocator, plans, size);
    return status;
}
