/* Carrying plans out; nothing here can fail. */
#include <string.h>

#include "call.h"
#include "sequence.h"

/* Header and values of the object that key i has from now on, with what it keeps of the old one. */
static struct row *take_place(struct call *c, int64_t i)
{
    struct table *t = c->table;
    const struct plan *p = &c->plans[i];
    struct row *old = p->old ? row_at(t, p->old) : NULL;
    struct order *list = list_of(t, p->before);
    if (list)
        order_remove(list, p->old);
    t->bare += (p->after != STANDING_ROW) - (p->old && p->before != STANDING_ROW);
    if (!p->made) {
        if (p->flags & PLAN_WIPED) {
            uint64_t key = old->key;
            handle extra = old->extra;
            memset(old, 0, sizeof *old);
            old->key = key;
            old->extra = extra;
            if (p->after == STANDING_ROW)
                access_begin(t, old);
        }
        return old;
    }
    struct row *row = row_at(t, p->made);
    if (p->flags & PLAN_MOVED) {
        memcpy(row, old, row_bytes(t->values));
        if (t->bodies)
            *body_of(old) = (struct row_body){0};
    } else if (p->after == STANDING_ROW) {
        access_begin(t, row);
    }
    if (!old)
        return row;
    if (p->before == STANDING_STUB && !(p->flags & PLAN_WIPED)) {
        row->count = old->count;
        row->last_seen = old->last_seen;
        row->gap = old->gap;
        row->popularity = old->popularity;
        row->check = old->check;
    }
    row->extra = old->extra;
    old->extra = 0;
    index_replace(&t->index, mix_place(row->key, t->salt), p->made);
    access_release(t, p->old);
    return row;
}

static void decay_row(const struct call *c, struct decay_missed *missed, struct row *row)
{
    int64_t start = row->clock / c->spec->step_events;
    if (c->rate_step <= start)
        return;
    double factor, threshold;
    decay_missed_since(missed, start, &factor, &threshold);
    decay_shrink(row->values, c->table->dim, factor, threshold);
}

static void learn(const struct call *c, int64_t i, struct row *row, float *clipped)
{
    const struct flush *f = c->flush;
    size_t dim = c->table->dim, state_dim = c->table->state_dim;
    if (!f->gradients || c->plans[i].flags & (PLAN_SHUT | PLAN_TAKEN))
        return;
    if (!(f->head.flags & FLUSH_DELTAS)) {
        optimizer_step(&c->spec->optimizer, c->rate, row->values, f->gradients + (size_t)i * dim, (uint32_t)dim,
                       clipped);
        return;
    }
    optimizer_add(row->values, f->gradients + (size_t)i * dim, (uint32_t)dim);
    if (f->state)
        optimizer_add(row->values + dim, f->state + (size_t)i * state_dim, (uint32_t)state_dim);
}

/* Takes the reserved body in place of the old one, whose content the caller has. */
static struct row_body *new_body(struct call *c, int64_t i, struct row *row)
{
    struct row_body *body = body_of(row);
    if (c->bodies[i].bytes) {
        allocator_give(c->table->allocator, body->bytes, body->capacity);
        c->table->body_bytes += c->bodies[i].capacity;
        c->table->body_bytes -= body->capacity;
        body->bytes = c->bodies[i].bytes;
        body->capacity = c->bodies[i].capacity;
        c->bodies[i] = (struct row_body){0};
    }
    return body;
}

/* Appends that no stored entry comes after, as is the rule: behind the newest of those, of which only what leaves moves. */
static void append_newer(struct call *c, int64_t i, struct row *row, const uint32_t *order, uint32_t m, uint32_t size)
{
    const struct row_body *old = body_of(row);
    uint32_t kept = size > m ? size - m : 0;
    const unsigned char *newest = kept ? old->bytes + (old->size - kept) * sizeof(struct entry) : NULL;
    unsigned char *to = c->bodies[i].bytes ? c->bodies[i].bytes : old->bytes;
    if (kept && to != newest)
        memmove(to, newest, kept * sizeof(struct entry));
    struct row_body *body = new_body(c, i, row);
    struct entry *entries = (struct entry *)(void *)body->bytes;
    for (uint32_t k = kept; k < size; k++)
        entries[k] = c->flush->appends[order[m - size + k]];
    body->size = size;
}

static void append(struct call *c, int64_t i, struct row *row)
{
    uint32_t from = c->append_bounds[i], m = c->append_bounds[i + 1] - from;
    if (!m)
        return;
    const struct row_body *old = body_of(row);
    uint64_t both = (uint64_t)old->size + m;
    uint32_t size = both < c->spec->length ? (uint32_t)both : c->spec->length;
    const struct entry *stored = (const struct entry *)(const void *)old->bytes;
    const uint32_t *order = c->append_order + from;
    if (!old->size || !entry_after(&stored[old->size - 1], &c->flush->appends[order[0]])) {
        append_newer(c, i, row, order, m, size);
        return;
    }
    sequence_merge(stored, old->size, c->flush->appends, order, m, c->merged, size);
    struct row_body *body = new_body(c, i, row);
    memcpy(body->bytes, c->merged, size * sizeof *c->merged);
    body->size = size;
}

static void replace_value(struct call *c, int64_t i, struct row *row)
{
    uint32_t v = c->newest[i] - 1, size = c->flush->value_lengths[v];
    struct row_body *body = new_body(c, i, row);
    memcpy(body->bytes, &c->flush->value_places[v], sizeof(struct place));
    if (size)
        memcpy(body->bytes + sizeof(struct place), c->flush->values + c->value_at[v], size);
    body->size = size;
}

static void carry_key(struct call *c, int64_t i, struct decay_missed *missed, double faded, float *clipped)
{
    struct table *t = c->table;
    const struct plan *p = &c->plans[i];
    struct row *row = take_place(c, i);
    if (p->flags & PLAN_EXTRA) {
        if (row->extra)
            slab_give(&t->slab, row->extra);
        row->extra = p->extra;
        access_digest(t, p->made ? p->made : p->old);
    }
    if (c->counts[i] > 0)
        row_observe(row, c->counts[i], c->positives[i], c->clock, c->spec->gap_rate, faded);
    if (p->flags & PLAN_CHECKED)
        row->check = c->flush->checks[i];
    if (p->after == STANDING_ROW) {
        if (missed->sums->l1 > 0.0 || missed->sums->l2 > 0.0)
            if (p->before == STANDING_ROW && !(p->flags & PLAN_WIPED))
                decay_row(c, missed, row);
        learn(c, i, row, clipped);
        if (c->append_bounds)
            append(c, i, row);
        if (p->flags & PLAN_VALUE)
            replace_value(c, i, row);
    }
    row->clock = c->clock;
    row->updated_ms = c->now_ms;
}

static void sort_appends(struct call *c, uint32_t *spare)
{
    for (int64_t i = 0; i < c->n; i++) {
        uint32_t from = c->append_bounds[i];
        sequence_sort(c->flush->appends, c->append_order + from, c->append_bounds[i + 1] - from, spare);
    }
}

/* Begins to fetch the rows that the block of keys from `from` on will change. */
PREFETCHING void prefetch_block(const struct call *c, int64_t from, size_t bytes)
{
    for (int64_t i = from; i < c->n && i < from + TABLE_BLOCK; i++)
        if (c->plans[i].flags & PLAN_WRITTEN && c->plans[i].before == STANDING_ROW)
            prefetch_lines(row_at(c->table, c->plans[i].old), 0, bytes);
}

void carry_out(struct call *c, const struct decay_sums *sums)
{
    float clipped[ROW_MAX_DIM];
    struct decay_missed missed;
    decay_missed_open(&missed, sums, c->rate_step);
    const struct table *t = c->table;
    size_t bytes = row_bytes(t->values);
    const unsigned char *id = c->flush->ids;
    if (c->append_bounds)
        sort_appends(c, c->append_spare);
    prefetch_block(c, 0, bytes);
    for (int64_t from = 0; from < c->n; from += TABLE_BLOCK) {
        int n = block_of(c->n, from);
        double faded[TABLE_BLOCK] = {0};
        prefetch_block(c, from + TABLE_BLOCK, bytes); /* all at once: between computations few would be under way */
        for (int k = 0; k < n; k++) {
            struct plan *p = &c->plans[from + k];
            if (c->later && p->flags & PLAN_KNOWN && call_other(c, row_at(t, p->old), from + k, id)) {
                call_refuse(c, from + k);
                p->flags &= (uint16_t)~PLAN_WRITTEN; /* it stays as it is, and nothing was reserved for it */
            }
            id += c->flush->id_lengths[from + k];
            if (!(p->flags & PLAN_WRITTEN))
                continue;
            bool counted = (p->before == STANDING_ROW || p->before == STANDING_STUB) && !(p->flags & PLAN_WIPED);
            int64_t last_seen = counted ? row_at(t, p->old)->last_seen : 0;
            faded[k] = (double)(c->clock - last_seen) / (double)c->spec->popularity_half_life;
            if (t->limited && p->before == STANDING_ROW) {
                struct order_links links = row_at(t, p->old)->links;
                if (links.prev)
                    __builtin_prefetch(row_at(t, links.prev), 1);
                if (links.next)
                    __builtin_prefetch(row_at(t, links.next), 1);
            }
        }
        row_halved(n, faded);
        for (int k = 0; k < n; k++)
            if (c->plans[from + k].flags & PLAN_WRITTEN)
                carry_key(c, from + k, &missed, faded[k], clipped);
    }
}
