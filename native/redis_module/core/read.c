/* Rows as replies: what shard.h lays out. Nothing here writes to the shard. */
#include <string.h>

#include "access.h"
#include "shard.h"

/* Whether rows have parts of different sizes. */
static bool is_ragged(const struct shard *s, uint32_t flags)
{
    return s->table.bodies || !(flags & ROWS_NO_IDS);
}

/* Bytes of a row behind the fixed columns: entries, or a value; and its id. */
static size_t tail_of(const struct shard *s, const struct row *row, uint32_t flags)
{
    size_t size = flags & ROWS_NO_IDS ? 0 : extra_id_length(extra_of(&s->table, row));
    if (s->table.bodies) {
        size_t unit = s->spec.kind == KIND_SEQUENCE ? sizeof(struct entry) : 1;
        size += unit * ((const struct row_body *)(const void *)row->values)->size;
    }
    return size;
}

static size_t fixed_size(const struct shard *s, int64_t n, uint32_t flags)
{
    size_t row = sizeof(struct row_record) + s->table.dim * sizeof(float) + 1;
    if (flags & ROWS_KEYS)
        row += sizeof(uint64_t);
    if (flags & ROWS_STATE)
        row += s->table.state_dim * sizeof(float);
    if (s->spec.kind == KIND_RECORD)
        row += sizeof(struct place);
    return sizeof(struct rows_head) + (size_t)n * row;
}

size_t shard_rows_size(const struct shard *s, int64_t n, const any_u64 *keys, uint32_t flags, handle *handles)
{
    const struct table *t = &s->table;
    size_t tails = 0;
    for (int64_t from = 0; from < n && is_ragged(s, flags); from += TABLE_BLOCK) {
        int block = access_block(t, n, keys, from, handles + from);
        access_prefetch_headers(t, block, handles + from, true);
        if (!(flags & ROWS_NO_IDS))
            access_prefetch_extras(t, block, handles + from, true);
        for (int k = 0; k < block; k++)
            if (handles[from + k] && is_row(t, handles[from + k]))
                tails += tail_of(s, row_at(t, handles[from + k]), flags);
    }
    return fixed_size(s, n, flags) + tails;
}

static struct row_record record_of(const struct shard *s, const struct row *row, enum standing standing,
                                   uint32_t flags)
{
    if (standing != STANDING_ROW && standing != STANDING_STUB)
        return (struct row_record){0};
    struct row_record record = {row->clock,      row->count, row->updated_ms, row->last_seen, row->gap,
                                row->popularity, row->check, 0,               0};
    if (standing == STANDING_ROW) {
        if (!(flags & ROWS_NO_IDS))
            record.id_length = extra_id_length(extra_of(&s->table, row));
        if (s->table.bodies)
            record.entries = (uint16_t)((const struct row_body *)(const void *)row->values)->size;
    }
    return record;
}

/* Where the next value of each column goes. */
struct columns {
    unsigned char *keys, *records, *vectors, *state, *places, *entries, *standings, *values, *ids;
};

static struct columns columns_of(const struct shard *s, int64_t n, uint32_t flags, const handle *handles,
                                 unsigned char *out)
{
    const struct table *t = &s->table;
    size_t entries = 0, values = 0;
    for (int64_t i = 0; t->bodies && i < n; i++)
        if (handles[i] && is_row(t, handles[i])) {
            uint32_t size = body_of(row_at(t, handles[i]))->size;
            if (s->spec.kind == KIND_SEQUENCE)
                entries += size * sizeof(struct entry);
            else
                values += size;
        }
    struct columns c;
    size_t rows = (size_t)n;
    c.keys = out + sizeof(struct rows_head);
    c.records = c.keys + (flags & ROWS_KEYS ? rows * sizeof(uint64_t) : 0);
    c.vectors = c.records + rows * sizeof(struct row_record);
    c.state = c.vectors + rows * t->dim * sizeof(float);
    c.places = c.state + (flags & ROWS_STATE ? rows * t->state_dim * sizeof(float) : 0);
    c.entries = c.places + (s->spec.kind == KIND_RECORD ? rows * sizeof(struct place) : 0);
    c.standings = c.entries + entries;
    c.values = c.standings + rows;
    c.ids = c.values + values;
    return c;
}

static void put(unsigned char **at, const void *bytes, size_t size)
{
    if (size)
        memcpy(*at, bytes, size);
    *at += size;
}

static void put_vector(const struct shard *s, const struct row *row, bool decays, struct decay_missed *missed,
                       struct columns *c)
{
    uint32_t dim = s->table.dim;
    unsigned char *out = c->vectors;
    put(&c->vectors, row->values, dim * sizeof(float));
    if (!decays)
        return;
    int64_t start = row->clock / s->spec.step_events;
    if (start >= missed->stop)
        return;
    double factor, threshold;
    decay_missed_since(missed, start, &factor, &threshold);
    decay_shrink((float *)(void *)out, dim, factor, threshold);
}

static void put_missing(const struct shard *s, uint64_t key, uint32_t flags, struct columns *c)
{
    const struct table *t = &s->table;
    static const struct row_body nothing;
    if (!t->bodies) {
        initial_fill(&t->initial, key, t->dim, (float *)(void *)c->vectors);
        c->vectors += t->dim * sizeof(float);
        if (flags & ROWS_STATE) {
            access_initial_state(t, (float *)(void *)c->state);
            c->state += t->state_dim * sizeof(float);
        }
    } else if (s->spec.kind == KIND_RECORD) {
        struct place none = body_place(&nothing);
        put(&c->places, &none, sizeof none);
    }
}

static void put_row(const struct shard *s, struct row *row, uint32_t flags, struct decay_missed *missed,
                    struct columns *c)
{
    const struct table *t = &s->table;
    if (!t->bodies) {
        bool decays = !(flags & ROWS_STORED) && (s->spec.l1 > 0.0 || s->spec.l2 > 0.0);
        put_vector(s, row, decays, missed, c);
        if (flags & ROWS_STATE)
            put(&c->state, row->values + t->dim, t->state_dim * sizeof(float));
    } else {
        const struct row_body *body = body_of(row);
        if (s->spec.kind == KIND_SEQUENCE) {
            put(&c->entries, body->bytes, body->size * sizeof(struct entry));
        } else {
            struct place place = body_place(body);
            put(&c->places, &place, sizeof place);
            if (body->size)
                put(&c->values, body->bytes + sizeof place, body->size);
        }
    }
    const struct row_extra *extra = flags & ROWS_NO_IDS ? NULL : extra_of(t, row);
    if (extra)
        put(&c->ids, extra->bytes, extra_id_length(extra));
}

/* Begins to fetch `bytes` of each row of the block of n keys that begins at `from`, if there is one. Fills in its handles,
 * unless they are `found`.
 */
PREFETCHING void prefetch_block(const struct table *t, int64_t n, const any_u64 *keys, int64_t from, bool found,
                                handle *handles, size_t bytes)
{
    if (from >= n)
        return;
    int block = found ? block_of(n, from) : access_block(t, n, keys, from, handles + from);
    for (int k = 0; k < block; k++)
        if (handles[from + k] && is_row(t, handles[from + k]))
            prefetch_lines(row_at(t, handles[from + k]), 0, bytes);
}

void shard_rows_write(const struct shard *s, int64_t n, const any_u64 *keys, uint32_t flags, handle *handles,
                      unsigned char *out)
{
    const struct table *t = &s->table;
    struct columns c = columns_of(s, n, flags, handles, out);
    const unsigned char *tails = c.places;
    struct decay_missed missed;
    decay_missed_open(&missed, &s->sums, s->meta.clock / s->spec.step_events);
    size_t bytes = row_bytes(flags & ROWS_STATE || t->bodies ? t->values : t->dim);
    bool found = is_ragged(s, flags);
    prefetch_block(t, n, keys, 0, found, handles, bytes);
    for (int64_t from = 0; from < n; from += TABLE_BLOCK) {
        int block = block_of(n, from);
        prefetch_block(t, n, keys, from + TABLE_BLOCK, found, handles, bytes);
        for (int k = 0; k < block; k++) {
            handle h = handles[from + k];
            uint64_t key = keys[from + k];
            enum standing standing = standing_of(t, h);
            uint8_t byte = (uint8_t)standing;
            struct row *row = h ? row_at(t, h) : NULL;
            struct row_record record = record_of(s, row, standing, flags);
            if (flags & ROWS_KEYS)
                put(&c.keys, &key, sizeof key);
            put(&c.records, &record, sizeof record);
            put(&c.standings, &byte, 1);
            if (standing == STANDING_ROW)
                put_row(s, row, flags, &missed, &c);
            else
                put_missing(s, key, flags, &c);
        }
    }
    const struct shard_meta *m = &s->meta;
    size_t tail = (size_t)(c.ids - tails);
    struct rows_head head = {ROWS_VERSION, flags,        m->clock,          m->feed, m->event_time_ms, m->produced_ms,
                             (uint32_t)n,  t->dim, t->state_dim, 0,       tail};
    memcpy(out, &head, sizeof head);
}

/* Goes on in the chunks of a class from *at on, as shard_scan does; *at is 0 where there is no more. */
static int64_t scan_class(const struct table *t, int class, uint64_t *at, int64_t most, uint64_t *keys)
{
    uint64_t chunk = *at >> SLAB_SLOT_BITS, slot = *at & (SLAB_SLOTS - 1);
    int64_t n = 0;
    for (chunk = chunk ? chunk : 1; chunk < t->slab.length; chunk++, slot = 0) {
        const struct slab_chunk *c = &t->slab.chunks[chunk];
        if (!c->base || c->class != class)
            continue;
        for (; slot < c->fresh; slot++) {
            if (n == most) {
                *at = chunk << SLAB_SLOT_BITS | slot;
                return n;
            }
            handle h = (handle)(chunk << SLAB_SLOT_BITS | slot);
            uint64_t key = row_at(t, h)->key;
            /* a released slot holds an old key, or another number: the index knows nothing of it */
            if (access_find(t, key) == h)
                keys[n++] = key;
        }
    }
    *at = 0;
    return n;
}

#define SCAN_KNOWN (UINT64_C(1) << 32) /* of a cursor: in the chunks of the known class; below it is a handle */
_Static_assert(SCAN_MAX_CURSOR == (SCAN_KNOWN | UINT32_MAX), "a handle has 32 bits");

int64_t shard_scan(const struct shard *s, uint64_t *cursor, int64_t most, uint64_t *keys)
{
    const struct table *t = &s->table;
    uint64_t at = *cursor & ~SCAN_KNOWN;
    int64_t n = 0;
    /* while it lives a row moves into the known class and never out of it: who comes last there misses none */
    if (!(*cursor & SCAN_KNOWN)) {
        n = scan_class(t, t->row_class, &at, most, keys);
        *cursor = at;
        if (at)
            return n;
    }
    n += scan_class(t, t->known_class, &at, most - n, keys + n);
    *cursor = at ? at | SCAN_KNOWN : 0;
    return n;
}
