/* What of a call is let in; embedding_store/admission.py. */
#include <string.h>

#include "call.h"
#include "places.h"

bool call_other(const struct call *c, const struct row *row, int64_t i, const unsigned char *id)
{
    uint16_t length = c->flush->id_lengths[i];
    return length && (row->check != c->flush->checks[i] || row->digest != mix_digest(id, length, c->table->salt));
}

/* Whether the key is of another id than the flush's. A row without id is nobody's yet; a stub has check bits, no id. */
static bool taken(const struct call *c, const struct row *row, const struct row_extra *extra, enum standing standing,
                  int64_t i, const unsigned char *id)
{
    const struct flush *f = c->flush;
    uint16_t length = f->id_lengths[i];
    if (!length)
        return false;
    if (standing == STANDING_STUB)
        return row->check && row->check != f->checks[i];
    uint16_t stored = extra_id_length(extra);
    if (standing != STANDING_ROW || !stored)
        return false;
    return row->check != f->checks[i] || stored != length || memcmp(extra->bytes, id, length) != 0;
}

/* Remembers where key i is. False: it came before. */
static bool place_key(struct call *c, int64_t i)
{
    const any_u64 *keys = c->flush->keys;
    uint32_t at = mix_place(keys[i], c->table->salt) & c->places_mask;
    while (c->places[at]) {
        if (keys[c->places[at] - 1] == keys[i])
            return false;
        at = (at + 1) & c->places_mask;
    }
    c->places[at] = (uint32_t)i + 1;
    return true;
}

int64_t call_index(const struct call *c, uint64_t key)
{
    uint32_t at = mix_place(key, c->table->salt) & c->places_mask;
    while (c->places[at]) {
        if (c->flush->keys[c->places[at] - 1] == key)
            return (int64_t)c->places[at] - 1;
        at = (at + 1) & c->places_mask;
    }
    return -1;
}

void call_refuse(struct call *c, int64_t i)
{
    int64_t count = c->flush->counts[i] > 1 ? c->flush->counts[i] : 1;
    if (__builtin_add_overflow(c->counts_out->refused, count, &c->counts_out->refused))
        c->counts_out->refused = INT64_MAX; /* counts without own events may be any */
}

/* What each key has. Returns whether something may have to be left out, besides what is forgotten. */
static bool find_keys(struct call *c)
{
    const struct table *t = c->table;
    const struct flush *f = c->flush;
    const unsigned char *id = f->ids;
    int64_t remembered = c->clock - c->spec->remember_events;
    bool odd = false;
    for (int64_t from = 0; from < c->n; from += TABLE_BLOCK) {
        handle found[TABLE_BLOCK];
        int n = access_block(t, c->n, f->keys, from, found);
        access_prefetch_headers(t, n, found, !c->later);
        access_prefetch_extras(t, n, found, false);
        for (int k = 0; k < n; k++) {
            int64_t i = from + k;
            struct plan *p = &c->plans[i];
            *p = (struct plan){.old = found[k]};
            if (found[k] && is_known(t, found[k])) {
                p->before = STANDING_ROW;
                p->flags |= PLAN_NAMED_BEFORE | PLAN_KNOWN;
                if (!c->later && call_other(c, row_at(t, found[k]), i, id)) {
                    p->flags |= PLAN_TAKEN;
                    odd = true;
                }
            } else if (found[k]) {
                const struct row *row = row_at(t, found[k]);
                const struct row_extra *extra = extra_of(t, row);
                p->before = (uint8_t)standing_of(t, found[k]);
                if (p->before == STANDING_ROW && extra_id_length(extra))
                    p->flags |= PLAN_NAMED_BEFORE;
                if (taken(c, row, extra, p->before, i, id))
                    p->flags |= PLAN_TAKEN;
                const struct fence *fence = extra_fence(extra);
                /* a mark keeps its fence until it is dropped; a row outlives its own */
                if (fence && (p->before == STANDING_FORGOTTEN || fence->clock > remembered))
                    p->flags |= PLAN_FENCED;
                odd |= (p->flags & (PLAN_TAKEN | PLAN_FENCED)) != 0;
            }
            id += f->id_lengths[i];
        }
    }
    return odd;
}

static const struct fence *fence_of(const struct call *c, const struct plan *p)
{
    return extra_fence(extra_of(c->table, row_at(c->table, p->old)));
}

/* Whether an event of key i is let in as far as an earlier forget goes. */
static bool after_fence(const struct call *c, int64_t i, const struct place *event)
{
    const struct plan *p = &c->plans[i];
    return !(p->flags & PLAN_FENCED) || place_later(event, &fence_of(c, p)->place);
}

/* … and as far as a forget of this call does. */
static bool after_forget(const struct call *c, int64_t i, const struct place *event)
{
    return !(c->plans[i].flags & PLAN_WIPED) ||
           place_outlives(event, &c->flush->forget_places[c->forget_of[i] - 1]);
}

static bool let_in(const struct call *c, int64_t i, struct place event)
{
    return !(c->plans[i].flags & PLAN_TAKEN) && after_fence(c, i, &event) && after_forget(c, i, &event);
}

static bool forget_keys(struct call *c)
{
    const struct flush *f = c->flush;
    if (!f->head.forgets)
        return true;
    if (!(c->forget_of = call_take(c, (size_t)c->n, sizeof *c->forget_of, true)))
        return false;
    for (uint32_t k = 0; k < f->head.forgets; k++) {
        struct plan *p = &c->plans[f->forget_rows[k]];
        const struct row *row = p->old ? row_at(c->table, p->old) : NULL;
        bool known = p->flags & PLAN_NAMED_BEFORE || (p->before == STANDING_STUB && row->check);
        if (f->forget_checks && known && row->check != f->forget_checks[k]) {
            c->counts_out->refused++;
            continue;
        }
        p->flags |= PLAN_WIPED;
        c->forget_of[f->forget_rows[k]] = k + 1;
    }
    return true;
}

/* Counts and positives without those that are not let in. */
static bool recount(struct call *c)
{
    const struct flush *f = c->flush;
    int64_t *counts = call_take(c, (size_t)c->n, sizeof *counts, false);
    float *positives = call_take(c, (size_t)c->n, sizeof *positives, false);
    double *sums = call_take(c, (size_t)c->n, sizeof *sums, true);
    if (!counts || !positives || !sums)
        return false;
    int64_t fenced = 0;
    for (int64_t i = 0; i < c->n; i++) {
        uint16_t flags = c->plans[i].flags;
        counts[i] = flags & PLAN_TAKEN ? 0 : f->counts[i];
        positives[i] = flags & PLAN_TAKEN ? 0.0f : f->positives[i];
        if (flags & PLAN_TAKEN)
            call_refuse(c, i);
        if (flags & PLAN_FENCED && f->own_rows) {
            fenced += counts[i]; /* as many as there are own events: no overflow */
            counts[i] = 0;
        }
        if (flags & PLAN_WIPED) {
            counts[i] = 0;
            positives[i] = 0.0f;
        }
    }
    for (uint32_t e = 0; f->own_rows && e < f->head.own; e++) {
        int64_t i = f->own_rows[e];
        uint16_t flags = c->plans[i].flags;
        if (flags & PLAN_TAKEN || !(flags & (PLAN_FENCED | PLAN_WIPED)) || !after_fence(c, i, &f->own_places[e]))
            continue;
        fenced -= (flags & PLAN_FENCED) != 0;
        if (!after_forget(c, i, &f->own_places[e]))
            continue;
        counts[i]++;
        sums[i] += (double)f->own_positives[e];
    }
    c->counts_out->late += f->own_rows ? fenced : 0;
    for (int64_t i = 0; f->own_rows && i < c->n; i++)
        if (c->plans[i].flags & (PLAN_FENCED | PLAN_WIPED))
            positives[i] = (float)sums[i];
    c->counts = counts;
    c->positives = positives;
    return true;
}

/* The first key whose own events can only be judged by places that were not sent; n: none. */
static int64_t unplaced(const struct call *c)
{
    int64_t i = 0;
    while (i < c->n) {
        uint16_t flags = c->plans[i].flags;
        if (flags & (PLAN_FENCED | PLAN_WIPED) && !(flags & PLAN_TAKEN) && c->flush->counts[i] > 0)
            break;
        i++;
    }
    return i;
}

static bool leave_out(struct call *c)
{
    const struct flush *f = c->flush;
    if (f->head.appends) {
        if (!(c->kept_appends = call_take(c, f->head.appends, 1, false)))
            return false;
        for (uint32_t a = 0; a < f->head.appends; a++)
            c->kept_appends[a] = let_in(c, f->append_rows[a], place_of_entry(&f->appends[a]));
    }
    if (f->head.values) {
        if (!(c->kept_values = call_take(c, f->head.values, 1, false)))
            return false;
        for (uint32_t v = 0; v < f->head.values; v++)
            c->kept_values[v] = let_in(c, f->value_rows[v], f->value_places[v]);
    }
    return recount(c);
}

bool screen(struct call *c, struct fault *fault)
{
    uint32_t size = 4;
    while (size < 2 * c->n)
        size *= 2;
    c->places_mask = size - 1;
    c->places = call_take(c, size, sizeof *c->places, true);
    c->plans = call_take(c, (size_t)c->n + 1, sizeof *c->plans, false);
    if (!c->places || !c->plans)
        return false;
    for (int64_t i = 0; i < c->n; i++)
        if (!place_key(c, i))
            return fault_set(fault, FAULT_BAD, "key %llu comes twice; sum counts and gradients per key first",
                             (unsigned long long)c->flush->keys[i]);
    c->later = !c->table->bodies && !c->flush->head.forgets;
    bool odd = find_keys(c);
    if (!odd && !c->flush->head.forgets)
        return true;
    if (!forget_keys(c))
        return false;
    int64_t asked = c->flush->head.flags & FLUSH_UNPLACED ? unplaced(c) : c->n;
    if (asked < c->n)
        return fault_set(fault, FAULT_PLACES, "key %llu was forgotten: send the call with the places of own events",
                         (unsigned long long)c->flush->keys[asked]);
    return leave_out(c);
}
