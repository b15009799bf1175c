#include "shard.h"

#include <stdio.h>
#include <string.h>

#include "apply.h"
#include "fits.h"
#include "objects.h"

#define MAX_CLOCK (INT64_C(1) << 53) /* clients keep clocks in float64 */

static bool no_memory(struct fault *fault, const char *what)
{
    return fault_set(fault, FAULT_MEMORY, "no memory for %s; shrink the tables, or raise the limit", what);
}

bool shard_open(struct shard *s, const struct spec *spec, uint64_t salt, struct allocator *allocator,
                struct fault *fault)
{
    memset(s, 0, sizeof *s);
    s->allocator = allocator;
    s->spec = *spec;
    s->spec.declaration = allocator_take(allocator, spec->declaration_size + 1);
    if (!s->spec.declaration)
        return no_memory(fault, "a shard");
    memcpy(s->spec.declaration, spec->declaration, spec->declaration_size);
    s->spec.declaration[spec->declaration_size] = 0;
    if (!table_open(&s->table, &s->spec, salt, allocator)) {
        allocator_give(allocator, s->spec.declaration, spec->declaration_size + 1);
        return no_memory(fault, "a shard");
    }
    offsets_open(&s->offsets, allocator);
    feed_open(&s->feed, allocator);
    decay_open(&s->sums, &s->spec.schedule, s->spec.l1, s->spec.l2, allocator);
    return true;
}

void shard_close(struct shard *s)
{
    decay_close(&s->sums);
    feed_close(&s->feed);
    offsets_close(&s->offsets);
    table_close(&s->table);
    allocator_give(s->allocator, s->spec.declaration, s->spec.declaration_size + 1);
    s->spec.declaration = NULL;
}

/* 1 if `condition` holds for the stored offset of every range's source; unset counts as −1. */
static bool every_range(const struct shard *s, const struct flush *f, bool (*condition)(int64_t, int64_t, int64_t))
{
    const char *source = f->sources;
    for (uint32_t r = 0; r < f->head.ranges; r++) {
        const struct offset *stored = offsets_find(&s->offsets, source, f->source_lengths[r]);
        if (!condition(stored ? stored->next : -1, f->starts[r], f->stops[r]))
            return false;
        source += f->source_lengths[r];
    }
    return true;
}

static bool has_all(int64_t stored, int64_t start, int64_t stop)
{
    (void)start;
    return stored >= stop;
}

static bool fits(int64_t stored, int64_t start, int64_t stop)
{
    (void)stop;
    return stored == start;
}

/* The wall clock of an update: the caller's; where keys go by age, the shard's, which never goes back. */
static int64_t stamp(const struct shard *s, int64_t now_ms)
{
    bool ages = s->spec.ttl_ms || s->spec.max_rows || s->spec.admit_after;
    return ages && s->meta.now_ms > now_ms ? s->meta.now_ms : now_ms;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Counters stand still at the end of their range; whoever gets there has sent numbers that nobody counted. */
static int64_t added(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b > 0 ? INT64_MAX : INT64_MIN) : sum;
}

static void advance(struct shard *s, const struct flush *f, bool changed, const struct apply_counts *counts)
{
    struct shard_meta *m = &s->meta;
    m->clock += f->head.events;
    m->event_time_ms = larger(m->event_time_ms, f->head.event_time_ms);
    m->produced_ms = larger(m->produced_ms, f->head.produced_ms);
    m->now_ms = larger(m->now_ms, f->head.now_ms);
    m->evicted = added(m->evicted, counts->evicted);
    m->expired = added(m->expired, counts->expired);
    m->forgotten = added(m->forgotten, counts->forgotten);
    m->late = added(m->late, counts->late);
    m->refused = added(m->refused, counts->refused);
    m->feed += changed;
    const char *source = f->sources;
    for (uint32_t r = 0; r < f->head.ranges; r++) {
        offsets_find(&s->offsets, source, f->source_lengths[r])->next = f->stops[r];
        source += f->source_lengths[r];
    }
}

bool shard_apply(struct shard *s, const struct flush *f, enum shard_outcome *outcome, struct fault *fault)
{
    if (!flush_fits(f, &s->spec, fault))
        return false;
    if (f->head.generation != s->meta.generation)
        return fault_set(fault, FAULT_GENERATION, "stored %lld given %lld", (long long)s->meta.generation,
                         (long long)f->head.generation);
    if (every_range(s, f, has_all)) {
        *outcome = SHARD_DUPLICATE;
        return true;
    }
    if (!every_range(s, f, fits)) {
        *outcome = SHARD_CONFLICT;
        return true;
    }
    if (f->head.events >= MAX_CLOCK - s->meta.clock)
        return fault_set(fault, FAULT_BAD,
                         "the clock is %lld: %lld events more don't fit 53 bits; send the number of usable events in the "
                         "ranges",
                         (long long)s->meta.clock, (long long)f->head.events);
    int64_t clock = s->meta.clock + f->head.events;
    if (!decay_reach(&s->sums, clock / s->spec.step_events))
        return no_memory(fault, "sums of decay");
    struct apply_counts counts;
    bool changed = false;
    if (!apply(&s->table, &s->feed, &s->sums, f, clock, stamp(s, f->head.now_ms), s->meta.feed, &changed, &counts,
               fault))
        return false;
    advance(s, f, changed, &counts);
    *outcome = SHARD_APPLIED;
    return true;
}

static void offset_text(char *out, size_t size, int64_t offset)
{
    if (offset < 0)
        snprintf(out, size, "unset");
    else
        snprintf(out, size, "%lld", (long long)offset);
}

/* Of a text that was cut somewhere, its last UTF-8 character, of which there may be a part only. */
static void drop_last(char *text)
{
    size_t end = strlen(text);
    while (end > 0 && ((unsigned char)text[end - 1] & 0xC0) == 0x80)
        end--;
    text[end - (end > 0)] = 0;
}

bool shard_seek(struct shard *s, const char *source, size_t length, int64_t expected, int64_t offset,
                const char *reason, size_t reason_length, struct fault *fault)
{
    const struct offset *stored = offsets_find(&s->offsets, source, length);
    int64_t old = stored ? stored->next : -1;
    if (old != expected) {
        char found[24], wanted[24];
        offset_text(found, sizeof found, old);
        offset_text(wanted, sizeof wanted, expected);
        return fault_set(fault, FAULT_SEEK, "offset of %.*s is %s, expected %s", (int)length, source, found, wanted);
    }
    if (!offsets_set(&s->offsets, source, length, offset))
        return no_memory(fault, "a source");
    s->meta.skipped = added(s->meta.skipped, old >= 0 ? larger(0, offset - old) : 0);
    s->meta.seeks = added(s->meta.seeks, 1);
    char from[24];
    offset_text(from, sizeof from, old);
    int whole = snprintf(s->last_seek, sizeof s->last_seek, "%.*s %s -> %lld: %.*s", (int)length, source, from,
                         (long long)offset, (int)reason_length, reason);
    if (whole >= SHARD_REASON)
        drop_last(s->last_seek);
    return true;
}

#define FEED_STRIDE_BITS 40
#define LAST_STRIDE (INT64_C(1) << 22)

int64_t shard_raise(struct shard *s, int64_t generation)
{
    struct shard_meta *m = &s->meta;
    if (generation <= m->generation)
        return m->generation;
    int64_t stride = generation < LAST_STRIDE ? generation : LAST_STRIDE;
    int64_t next = m->feed < INT64_MAX - 2 ? m->feed + 2 : INT64_MAX; /* a save may hold any number */
    m->feed = larger(next, stride << FEED_STRIDE_BITS);
    feed_close(&s->feed);
    return m->generation = generation;
}

int64_t shard_stubs(const struct shard *s)
{
    return (int64_t)s->table.lists[LIST_STUBS].length;
}

int64_t shard_remembered(const struct shard *s)
{
    return (int64_t)(s->table.lists[LIST_EVICTED].length + s->table.lists[LIST_FORGOTTEN].length);
}

int64_t shard_rows(const struct shard *s)
{
    return (int64_t)table_rows(&s->table);
}

int64_t shard_changes(const struct shard *s, int64_t since, uint64_t **keys, int64_t *capacity)
{
    *keys = NULL;
    *capacity = 0;
    if (!feed_reaches(&s->feed, since, s->meta.feed))
        return -1;
    int64_t n = feed_since(&s->feed, since, keys, capacity);
    return n < 0 ? -2 : n;
}

bool shard_loaded(struct shard *s, struct fault *fault)
{
    if (!decay_reach(&s->sums, s->meta.clock / s->spec.step_events))
        return no_memory(fault, "sums of decay");
    return true;
}

const char *shard_check(const struct shard *s)
{
    return table_check(&s->table);
}
