/* Which keys a shard lets go of after a call; embedding_store/eviction.py. */
#include <string.h>

#include "call.h"

static int64_t most_of(const struct call *c, enum standing standing)
{
    return c->spec->evict_batch + c->entered[standing];
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How many of the first `most` rows are older than the time to live. */
static int64_t expired_rows(const struct call *c, int64_t most)
{
    const struct order *o = &c->table->lists[LIST_UPDATES];
    int64_t n = 0;
    if (c->spec->ttl_ms)
        for (handle h = o->first; h && n < most && order_score(o, h) <= c->now_ms - c->spec->ttl_ms;
             h = order_links(o, h)->next)
            n++;
    return n;
}

static int64_t rows_over(const struct call *c, int64_t rows)
{
    return c->spec->max_rows ? larger(0, rows - c->spec->max_rows) : 0;
}

bool limits_reserve(struct call *c)
{
    struct table *t = c->table;
    int64_t marks = 0;
    if (t->limited) {
        int64_t most = most_of(c, STANDING_ROW);
        int64_t rows = (int64_t)t->lists[LIST_UPDATES].length + c->entered[STANDING_ROW] - c->left[STANDING_ROW];
        /* some of the expired are the call's own, and stay: more than enough is reserved */
        marks = smaller(most, larger(rows_over(c, rows), expired_rows(c, most)));
    }
    if (!feed_reserve(c->feed, c->written + marks, &c->changed))
        return false;
    if (marks) {
        if (!(c->marks = call_take(c, (size_t)marks, sizeof *c->marks, false)))
            return false;
        for (; c->marks_reserved < marks; c->marks_reserved++)
            if (!(c->marks[c->marks_reserved] = access_new(t, 0, t->bare_class)))
                return false;
    }
    c->joins_length = (size_t)(c->written + marks + most_of(c, STANDING_STUB));
    c->joins = call_take(c, 2 * c->joins_length, sizeof *c->joins, false);
    c->joins_spare = call_take(c, c->joins_length, sizeof *c->joins_spare, false);
    return c->joins && c->joins_spare;
}

void limits_release(struct call *c)
{
    while (c->marks_used < c->marks_reserved)
        access_release(c->table, c->marks[c->marks_used++]);
    feed_release(c->feed, &c->changed);
}

/* Keys that are on their way into a list. */
struct joining {
    struct order_item *items;
    int64_t n;
};

static void add(const struct call *c, struct joining *joining, handle h)
{
    joining->items[joining->n++] =
        (struct order_item){__builtin_bswap64(row_at(c->table, h)->key), h};
}

static void join(struct call *c, struct joining *joining, enum table_list list)
{
    order_sort(joining->n, joining->items, c->joins_spare);
    handle *handles = (handle *)(void *)c->joins_spare;
    for (int64_t k = 0; k < joining->n; k++)
        handles[k] = (handle)joining->items[k].handle;
    order_join(&c->table->lists[list], joining->n, handles);
    joining->n = 0;
}

static handle object_of(const struct plan *p)
{
    return p->made ? p->made : p->old;
}

/* The call's own keys of a standing. */
static void join_own(struct call *c, enum standing standing, enum table_list list)
{
    struct joining joining = {c->joins, 0};
    for (int64_t i = 0; i < c->n; i++)
        if (c->plans[i].flags & PLAN_WRITTEN && c->plans[i].after == standing)
            add(c, &joining, object_of(&c->plans[i]));
    join(c, &joining, list);
}

/* Marks that are too many or too old, but none of this call. */
static void drop_marks(struct call *c, enum standing standing, enum table_list list, int64_t limit)
{
    struct table *t = c->table;
    struct order *o = &t->lists[list];
    int64_t own = 0;
    for (int64_t i = 0; standing == STANDING_FORGOTTEN && i < c->n && c->flush->head.forgets; i++)
        own += c->plans[i].flags & PLAN_WRITTEN && c->plans[i].after == standing;
    int64_t over = (int64_t)o->length + own - limit, most = most_of(c, standing);
    for (int64_t n = 0; n < most && o->first; n++) {
        handle h = o->first;
        if (n >= over && order_score(o, h) > c->clock - c->spec->remember_events)
            break;
        order_remove(o, h);
        access_drop(t, h);
        t->bare--;
    }
}

/* Whether an object's fence is to be heeded: those that the call has written have no other. */
static bool fenced(const struct call *c, const struct row *row, int64_t own)
{
    const struct fence *fence = extra_fence(extra_of(c->table, row));
    return fence && (own >= 0 || fence->clock > c->clock - c->spec->remember_events);
}

/* Leaves of an extra the fence alone. */
static void keep_fence(const struct call *c, handle extra)
{
    struct row_extra *e = slab_at(&c->table->slab, extra);
    struct fence fence = *extra_fence(e);
    e->head = EXTRA_FENCED;
    memcpy(e->bytes, &fence, sizeof fence);
}

/* The plan of a key if this call has written it, −1. */
static int64_t own_plan(const struct call *c, uint64_t key)
{
    int64_t i = call_index(c, key);
    return i >= 0 && c->plans[i].flags & PLAN_WRITTEN ? i : -1;
}

/* Turns a row, which is in no list any more, into a mark. */
static handle mark_row(struct call *c, handle h)
{
    struct table *t = c->table;
    struct row *row = row_at(t, h);
    int64_t own = own_plan(c, row->key);
    handle m = c->marks[c->marks_used++];
    struct row *mark = row_at(t, m);
    mark->key = row->key;
    mark->clock = c->clock;
    mark->updated_ms = c->now_ms;
    bool keeps = fenced(c, row, own);
    if (keeps) {
        keep_fence(c, row->extra);
        mark->extra = row->extra;
        row->extra = 0;
    }
    if (own >= 0)
        c->plans[own].after = keeps ? STANDING_FORGOTTEN : STANDING_EVICTED;
    else
        c->changed.keys[c->changed.count++] = row->key;
    index_replace(&t->index, mix_place(row->key, t->salt), m);
    access_release(t, h);
    t->bare++;
    return m;
}

/* Rows above the limit and past their time to live. */
static void evict_rows(struct call *c, struct joining *evicted, struct joining *forgotten)
{
    struct table *t = c->table;
    struct order *o = &t->lists[LIST_UPDATES];
    int64_t most = most_of(c, STANDING_ROW), due = expired_rows(c, most);
    int64_t n = smaller(most, larger(rows_over(c, (int64_t)o->length), due));
    for (int64_t k = 0; k < n; k++) {
        handle h = o->first;
        order_remove(o, h);
        handle m = mark_row(c, h);
        add(c, row_at(t, m)->extra ? forgotten : evicted, m);
    }
    c->counts_out->expired += smaller(due, n);
    c->counts_out->evicted += n - smaller(due, n);
}

/* Keys that are counted and not admitted, above the limit. */
static void drop_stubs(struct call *c, struct joining *forgotten)
{
    struct table *t = c->table;
    struct order *o = &t->lists[LIST_STUBS];
    int64_t n = smaller(most_of(c, STANDING_STUB), (int64_t)o->length - c->spec->max_stubs);
    for (int64_t k = 0; k < n; k++) {
        handle h = o->first;
        struct row *stub = row_at(t, h);
        order_remove(o, h);
        if (!fenced(c, stub, own_plan(c, stub->key))) {
            access_drop(t, h);
            t->bare--;
            continue;
        }
        struct row mark = {.key = stub->key, .clock = c->clock, .updated_ms = c->now_ms, .extra = stub->extra};
        *stub = mark;
        keep_fence(c, stub->extra);
        add(c, forgotten, h);
    }
}

static void fill_changed(struct call *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        const struct plan *p = &c->plans[i];
        if (p->flags & PLAN_WRITTEN && (p->after == STANDING_ROW || p->before == STANDING_ROW))
            c->changed.keys[c->changed.count++] = c->flush->keys[i];
    }
}

void limits_keep(struct call *c)
{
    const struct spec *s = c->spec;
    drop_marks(c, STANDING_FORGOTTEN, LIST_FORGOTTEN, s->max_forgotten);
    if (c->table->limited) {
        drop_marks(c, STANDING_EVICTED, LIST_EVICTED, s->max_evicted);
        join_own(c, STANDING_ROW, LIST_UPDATES);
    }
    if (s->admit_after)
        join_own(c, STANDING_STUB, LIST_STUBS);
    struct joining evicted = {c->joins, 0}, forgotten = {c->joins + c->joins_length, 0};
    for (int64_t i = 0; c->flush->head.forgets && i < c->n; i++)
        if (c->plans[i].flags & PLAN_WRITTEN && c->plans[i].after == STANDING_FORGOTTEN)
            add(c, &forgotten, object_of(&c->plans[i]));
    if (c->table->limited)
        evict_rows(c, &evicted, &forgotten);
    if (s->admit_after)
        drop_stubs(c, &forgotten);
    join(c, &evicted, LIST_EVICTED);
    join(c, &forgotten, LIST_FORGOTTEN);
    fill_changed(c);
}
