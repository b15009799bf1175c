/* What becomes of every key, and all the memory that takes; embedding_store/merge.py decides alike. */
#include <string.h>

#include "call.h"
#include "places.h"

#define PLAN_AHEAD 8 /* gradients are looked at a row's length apart, further than processors fetch by themselves */

void *call_take(struct call *c, size_t count, size_t size, bool zero)
{
    if (!count || c->blocks_used == CALL_BLOCKS)
        return NULL;
    void *block = allocator_take(c->table->allocator, count * size);
    if (!block)
        return NULL;
    if (zero)
        memset(block, 0, count * size);
    c->blocks[c->blocks_used].block = block;
    c->blocks[c->blocks_used++].size = count * size;
    return block;
}

/* Counting sort of the appends that are let in, by key; the order in which they came stays. */
static bool group_appends(struct call *c)
{
    const struct flush *f = c->flush;
    uint32_t m = f->head.appends;
    c->append_bounds = call_take(c, (size_t)c->n + 2, sizeof *c->append_bounds, true);
    c->append_order = call_take(c, (size_t)m + 1, sizeof *c->append_order, false);
    c->append_spare = call_take(c, (size_t)m + 1, sizeof *c->append_spare, false);
    c->merged = call_take(c, c->spec->length, sizeof *c->merged, false);
    if (!c->append_bounds || !c->append_order || !c->append_spare || !c->merged)
        return false;
    uint32_t *bounds = c->append_bounds + 1; /* one ahead while counting */
    for (uint32_t a = 0; a < m; a++)
        if (!c->kept_appends || c->kept_appends[a])
            bounds[f->append_rows[a] + 1]++;
    for (int64_t i = 0; i < c->n; i++)
        bounds[i + 1] += bounds[i];
    for (uint32_t a = 0; a < m; a++)
        if (!c->kept_appends || c->kept_appends[a])
            c->append_order[bounds[f->append_rows[a]]++] = a;
    return true;
}

/* Whether value a comes after value b: later, or at the same place larger by its bytes. */
static bool value_after(const struct place *a, const unsigned char *a_bytes, uint32_t a_size, const struct place *b,
                        const unsigned char *b_bytes, uint32_t b_size)
{
    if (place_later(a, b))
        return true;
    if (place_later(b, a))
        return false;
    uint32_t both = a_size < b_size ? a_size : b_size;
    int order = both ? memcmp(a_bytes, b_bytes, both) : 0;
    return order ? order > 0 : a_size > b_size;
}

/* The newest value of each key among those that are let in. */
static bool choose_values(struct call *c)
{
    const struct flush *f = c->flush;
    c->newest = call_take(c, (size_t)c->n + 1, sizeof *c->newest, true);
    c->value_at = call_take(c, (size_t)f->head.values + 1, sizeof *c->value_at, false);
    if (!c->newest || !c->value_at)
        return false;
    uint64_t at = 0;
    for (uint32_t v = 0; v < f->head.values; v++) {
        c->value_at[v] = at;
        at += f->value_lengths[v];
        if (c->kept_values && !c->kept_values[v])
            continue;
        uint32_t *newest = &c->newest[f->value_rows[v]], w = *newest - 1;
        if (!*newest || value_after(&f->value_places[v], f->values + c->value_at[v], f->value_lengths[v],
                                    &f->value_places[w], f->values + c->value_at[w], f->value_lengths[w]))
            *newest = v + 1;
    }
    return true;
}

static const struct row_body *stored_body(const struct call *c, const struct plan *p)
{
    static const struct row_body nothing;
    return p->before == STANDING_ROW && !(p->flags & PLAN_WIPED) ? body_of(row_at(c->table, p->old)) : &nothing;
}

/* Whether key i's newest value of the call replaces what is stored. */
static bool value_wins(const struct call *c, int64_t i)
{
    if (!c->newest || !c->newest[i])
        return false;
    const struct flush *f = c->flush;
    const struct row_body *body = stored_body(c, &c->plans[i]);
    uint32_t v = c->newest[i] - 1;
    struct place stored = body_place(body);
    return value_after(&f->value_places[v], f->values + c->value_at[v], f->value_lengths[v], &stored,
                       body->size ? body->bytes + sizeof stored : NULL, body->size);
}

static int64_t appended(const struct call *c, int64_t i)
{
    return c->append_bounds ? (int64_t)c->append_bounds[i + 1] - c->append_bounds[i] : 0;
}

static bool moves(const any_f32 *rows, int64_t i, uint32_t dim)
{
    return rows && optimizer_moves(rows + (size_t)i * dim, dim);
}

/* Sets what key i becomes, and the flags of it. */
static void decide(struct call *c, int64_t i)
{
    const struct flush *f = c->flush;
    struct plan *p = &c->plans[i];
    int64_t count = c->counts[i];
    bool wiped = p->flags & PLAN_WIPED;
    bool stays = p->before == STANDING_ROW && !wiped;
    bool own = count > 0 || appended(c, i) || (c->newest && c->newest[i]);
    bool mark = wiped || p->before == STANDING_EVICTED || p->before == STANDING_FORGOTTEN;
    bool admitted = stays;
    if (!admitted && own) {
        int64_t before = p->before == STANDING_STUB && !wiped ? row_at(c->table, p->old)->count : 0;
        admitted = before >= c->spec->admit_after || count >= c->spec->admit_after - before;
    }
    if (!c->spec->admit_after)
        admitted |= !mark;
    if (wiped || !admitted)
        p->flags |= PLAN_SHUT;
    bool moved = false;
    if (!(p->flags & PLAN_TAKEN))
        moved = moves(f->gradients, i, c->table->dim) || moves(f->state, i, c->table->state_dim);
    if (moved && p->flags & PLAN_SHUT) {
        c->counts_out->late += mark && !wiped && !own;
        moved = false;
    }
    if (value_wins(c, i))
        p->flags |= PLAN_VALUE;
    bool touched = count > 0 || moved || appended(c, i) || p->flags & PLAN_VALUE;
    if (touched)
        p->after = admitted ? STANDING_ROW : STANDING_STUB;
    else
        p->after = wiped ? STANDING_FORGOTTEN : p->before;
    if (touched || wiped)
        p->flags |= PLAN_WRITTEN;
    if ((count > 0 || p->flags & PLAN_VALUE) && !(stays && p->flags & PLAN_NAMED_BEFORE))
        p->flags |= PLAN_CHECKED;
}

/* The fence that a written key has afterwards. False: none. */
static bool fence_after(const struct call *c, int64_t i, struct fence *fence)
{
    const struct plan *p = &c->plans[i];
    bool fenced = p->flags & PLAN_FENCED;
    if (fenced)
        *fence = *extra_fence(extra_of(c->table, row_at(c->table, p->old)));
    if (!(p->flags & PLAN_WIPED))
        return fenced;
    const struct place *tombstone = &c->flush->forget_places[c->forget_of[i] - 1];
    if (!fenced || place_later(tombstone, &fence->place))
        fence->place = *tombstone;
    fence->clock = c->clock;
    return true;
}

/* Reserves id and fence where they differ from what is stored. *known: whether a row is of the known class afterwards. */
static bool plan_extra(struct call *c, int64_t i, const unsigned char *id, bool *known)
{
    struct plan *p = &c->plans[i];
    uint16_t length = c->flush->id_lengths[i];
    bool named = p->flags & PLAN_CHECKED && p->after == STANDING_ROW && length;
    *known = p->flags & PLAN_KNOWN;
    if (!named && !(p->flags & PLAN_WIPED) && *known)
        return true; /* most: neither row nor extra is read */
    struct row_extra *stored = p->old ? extra_of(c->table, row_at(c->table, p->old)) : NULL;
    bool loses_fence = extra_fence(stored) && !(p->flags & PLAN_FENCED);
    if (!named && !(p->flags & PLAN_WIPED) && !loses_fence)
        return true;
    p->flags |= PLAN_EXTRA;
    if (!named) {
        bool keeps = p->before == STANDING_ROW && p->after == STANDING_ROW && !(p->flags & PLAN_WIPED);
        length = keeps ? extra_id_length(stored) : 0;
        id = keeps && stored ? stored->bytes : NULL;
    }
    struct fence fence;
    bool fenced = fence_after(c, i, &fence);
    *known = class_for(c->table, length, fenced) == c->table->known_class;
    if (!length && !fenced)
        return true;
    p->extra = access_new_extra(c->table, id, length, fenced ? &fence : NULL);
    return p->extra != 0;
}

static bool plan_body(struct call *c, int64_t i)
{
    const struct plan *p = &c->plans[i];
    bool keeps = p->before == STANDING_ROW && (!p->made || p->flags & PLAN_MOVED);
    const struct row_body *now = keeps ? body_of(row_at(c->table, p->old)) : NULL;
    uint64_t bytes, most;
    if (c->spec->kind == KIND_SEQUENCE) {
        uint64_t size = stored_body(c, p)->size + (uint64_t)appended(c, i);
        most = (uint64_t)c->spec->length * sizeof(struct entry);
        bytes = (size < c->spec->length ? size : c->spec->length) * sizeof(struct entry);
    } else {
        if (!(p->flags & PLAN_VALUE))
            return true;
        most = sizeof(struct place) + c->spec->length;
        bytes = sizeof(struct place) + c->flush->value_lengths[c->newest[i] - 1];
    }
    if (!bytes || (now && now->capacity >= bytes))
        return true;
    uint64_t capacity = now && 2 * (uint64_t)now->capacity > bytes ? 2 * (uint64_t)now->capacity : (bytes + 15) / 16 * 16;
    if (capacity > most)
        capacity = most < bytes ? bytes : most;
    c->bodies[i].bytes = allocator_take(c->table->allocator, capacity);
    c->bodies[i].capacity = (uint32_t)capacity;
    return c->bodies[i].bytes != NULL;
}

static bool reserve(struct call *c, int64_t i, const unsigned char *id)
{
    struct table *t = c->table;
    struct plan *p = &c->plans[i];
    bool bare = p->after != STANDING_ROW, known;
    if (!plan_extra(c, i, id, &known))
        return false;
    int class = bare ? t->bare_class : known ? t->known_class : t->row_class;
    if (!p->old || class_of(t, p->old) != class) {
        uint64_t key = c->flush->keys[i];
        if (!(p->made = access_new(t, key, class)))
            return false;
        if (!bare && p->before == STANDING_ROW && !(p->flags & PLAN_WIPED))
            p->flags |= PLAN_MOVED;
        if (p->before == STANDING_MISSING) {
            if (!index_insert(&t->index, mix_place(key, t->salt), p->made))
                return false;
            p->flags |= PLAN_INSERTED;
        }
    }
    if (p->before != p->after) {
        c->entered[p->after]++;
        c->left[p->before]++;
    }
    c->written++;
    return !t->bodies || bare || plan_body(c, i);
}

bool plan(struct call *c)
{
    const struct flush *f = c->flush;
    const struct table *t = c->table;
    if (c->n && t->bodies && !(c->bodies = call_take(c, (size_t)c->n, sizeof *c->bodies, true)))
        return false;
    if (f->head.appends && !group_appends(c))
        return false;
    if (f->head.values && !choose_values(c))
        return false;
    const unsigned char *id = f->ids;
    for (int64_t from = 0; from < c->n; from += TABLE_BLOCK) {
        int n = block_of(c->n, from);
        for (int k = 0; k < n; k++)
            if (!c->plans[from + k].old)
                index_prefetch_count(&t->index, mix_place(f->keys[from + k], t->salt));
        for (int k = 0; k < n; k++) {
            if (f->gradients && from + k + PLAN_AHEAD < c->n)
                __builtin_prefetch(f->gradients + (size_t)(from + k + PLAN_AHEAD) * t->dim);
            decide(c, from + k);
            if (c->plans[from + k].flags & PLAN_WRITTEN && !reserve(c, from + k, id))
                return false;
            id += f->id_lengths[from + k];
        }
    }
    return true;
}

void plan_undo(struct call *c)
{
    struct table *t = c->table;
    for (int64_t i = 0; c->plans && i < c->n; i++) {
        const struct plan *p = &c->plans[i];
        if (p->flags & PLAN_INSERTED)
            access_drop(t, p->made);
        else if (p->made)
            access_release(t, p->made);
        if (p->extra)
            slab_give(&t->slab, p->extra);
        if (c->bodies)
            allocator_give(t->allocator, c->bodies[i].bytes, c->bodies[i].capacity);
    }
}
