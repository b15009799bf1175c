#include "table.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "mix.h"

#define LINE 64

_Static_assert(TABLE_BLOCK <= ROW_BLOCK, "row_halved takes a block");

static struct row *row_at(const struct table *t, handle h)
{
    return slab_at(&t->slab, h);
}

/* Bytes of a row up to and with so many of its values. */
static size_t row_bytes(size_t values)
{
    return sizeof(struct row) + values * sizeof(float);
}

/* The handle of a key whose place has `h` as first candidate, 0: none. */
static handle settle(const struct table *t, uint64_t key, uint32_t place, handle h, uint32_t at)
{
    while (h && row_at(t, h)->key != key)
        h = index_next(&t->index, place, &at);
    return h;
}

static handle find(const struct table *t, uint64_t key)
{
    uint32_t place = mix_place(key, t->spec.salt), at;
    handle h = index_first(&t->index, place, &at);
    return settle(t, key, place, h, at);
}

/* How many of n keys the block that begins at `from` has. */
static int block_of(int64_t n, int64_t from)
{
    return (int)(n - from < TABLE_BLOCK ? n - from : TABLE_BLOCK);
}

/* Handles of the block of keys from `from` on, 0 where there is no row; `bytes` of their rows are then on the way into the
 * cache. Returns the block's length. Fetching the next block's slots ahead as well was tried, and gained nothing.
 */
static int find_block(const struct table *t, int64_t n, const uint64_t *keys, int64_t from, size_t bytes, handle *found)
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
            for (size_t b = 0; b < bytes; b += LINE)
                __builtin_prefetch(row + b);
        }
    }
    for (int i = 0; i < block; i++)
        found[i] = settle(t, keys[i], places[i], found[i], at[i]);
    return block;
}

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

static const struct row_id *id_of(const struct table *t, const struct row *row)
{
    return row->id ? slab_at(&t->slab, row->id) : NULL;
}

static void prefetch_ids(const struct table *t, int n, const handle *handles)
{
    for (int k = 0; k < n; k++)
        if (handles[k] && row_at(t, handles[k])->id)
            __builtin_prefetch(slab_at(&t->slab, row_at(t, handles[k])->id));
}

static struct row_record record_of(const struct table *t, const struct row *row)
{
    const struct row_id *id = id_of(t, row);
    return (struct row_record){row->clock,      row->count, row->updated_ms, row->last_seen, row->gap,
                               row->popularity, row->check, 0,               id ? id->length : 0};
}

static void fill_state(const struct table *t, float *state)
{
    float initial = t->spec.optimizer.kind == OPTIMIZER_ADAM ? 0.0f : t->spec.optimizer.initial_accumulator;
    for (uint32_t j = 0; j < t->state_dim; j++)
        state[j] = initial;
}

enum table_status table_lookup(const struct table *t, int64_t n, const uint64_t *keys, float *vectors, float *state,
                               uint8_t *found, struct row_record *records)
{
    if (n < 0 || n > TABLE_MAX_BATCH || (n && (!keys || !vectors)))
        return TABLE_BAD_BATCH;
    size_t dim = t->spec.dim, state_dim = t->state_dim, bytes = row_bytes(state ? t->values : dim);
    for (int64_t from = 0; from < n; from += TABLE_BLOCK) {
        handle handles[TABLE_BLOCK];
        int block = find_block(t, n, keys, from, bytes, handles);
        if (records)
            prefetch_ids(t, block, handles);
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
                fill_state(t, state + i * state_dim);
            if (found)
                found[i] = row != NULL;
            if (records)
                records[i] = row ? record_of(t, row) : (struct row_record){0};
        }
    }
    return TABLE_OK;
}

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
    fill_state(t, row->values + t->spec.dim);
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

static void drop_row(struct table *t, handle h)
{
    struct row *row = row_at(t, h);
    index_erase(&t->index, mix_place(row->key, t->spec.salt), h);
    if (row->id)
        slab_give(&t->slab, row->id);
    slab_give(&t->slab, h);
}

/* Reserves rows and ids of a block. False: no memory; what is in `plans` is then still to be released. */
static bool plan_block(struct table *t, const struct table_batch *b, int64_t from, struct plan *plans,
                       struct table_reply *reply)
{
    handle handles[TABLE_BLOCK];
    size_t dim = t->spec.dim;
    int n = find_block(t, b->n, b->keys, from, sizeof(struct row), handles);
    if (b->id_bounds[from + n] > b->id_bounds[from])
        prefetch_ids(t, n, handles);
    for (int k = 0; k < n; k++)
        if (!handles[k])
            index_prefetch_count(&t->index, mix_place(b->keys[from + k], t->spec.salt));
    for (int k = 0; k < n; k++) {
        int64_t i = from + k;
        bool moves = b->gradients && optimizer_moves(b->gradients + (size_t)i * dim, t->spec.dim);
        /* a key of this block may have come to be since */
        handle h = handles[k] ? handles[k] : find(t, b->keys[i]);
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
            drop_row(t, plans[i].row);
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
            for (size_t at = 0; at < bytes; at += LINE)
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

int64_t table_forget(struct table *t, int64_t n, const uint64_t *keys)
{
    int64_t forgotten = 0;
    for (int64_t i = 0; i < n; i++) {
        handle h = find(t, keys[i]);
        if (!h)
            continue;
        order_remove(&t->order, h);
        drop_row(t, h);
        forgotten++;
    }
    return forgotten;
}

const struct row_id *table_id(const struct table *t, uint64_t key)
{
    handle h = find(t, key);
    return h ? id_of(t, row_at(t, h)) : NULL;
}

int64_t table_oldest(const struct table *t, int64_t most, uint64_t *keys)
{
    int64_t n = 0;
    for (handle h = t->order.first; h && n < most; h = row_at(t, h)->links.next)
        keys[n++] = row_at(t, h)->key;
    return n;
}

static const char *check_order(const struct table *t)
{
    handle before = 0;
    uint64_t rows = 0, ids = 0;
    for (handle h = t->order.first; h; h = row_at(t, h)->links.next) {
        const struct row *row = row_at(t, h);
        if (row->links.prev != before)
            return "a row's link back is not the row before it";
        if (find(t, row->key) != h)
            return "a row of the order is not what the index finds under its key";
        if (++rows > t->index.used)
            return "the order has more rows than the index, or a ring";
        ids += row->id != 0;
        before = h;
    }
    if (before != t->order.last)
        return "the order does not end at its last row";
    if (rows != t->order.length || rows != t->index.used)
        return "order and index differ in how many rows there are";
    if (rows + ids != t->slab.objects)
        return "the slabs hold objects that are no row and no row's id";
    return NULL;
}

static const char *check_index(const struct table *t)
{
    uint64_t used = 0;
    const struct index *x = &t->index;
    for (size_t k = 0; k < (size_t)1 << x->depth; k++) {
        const struct index_segment *segment = x->directory[k];
        uint32_t low = (1u << segment->depth) - 1, n = 0;
        if (segment->depth > x->depth || segment != x->directory[k & low])
            return "the directory does not agree with a segment's depth";
        if (k > low)
            continue;
        for (uint32_t s = 0; s < INDEX_SLOTS; s++) {
            if (!segment->slots[s].handle)
                continue;
            if ((segment->slots[s].place & low) != k)
                return "a key is in a segment of other keys";
            n++;
        }
        if (n != segment->used || n > INDEX_FULL)
            return "a segment's count is not what it holds";
        used += n;
    }
    return used == x->used ? NULL : "the index's count is not what its segments hold";
}

const char *table_check(const struct table *t)
{
    const char *wrong = check_index(t);
    return wrong ? wrong : check_order(t);
}
