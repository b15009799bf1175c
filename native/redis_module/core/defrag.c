/* Units of work, numbered, so that a cursor can name where to go on: chunks of the slab with the bodies of their rows,
 * then segments of the index, then what there is one of.
 */
#include "defrag.h"

#include <string.h>

#include "access.h"

struct mover {
    void *(*move)(void *context, void *block, size_t size);
    void *context;
};

/* Where the block is from now on. */
static void *moved(const struct mover *m, void *block, size_t size)
{
    void *there = block ? m->move(m->context, block, size) : NULL;
    return there ? there : block;
}

/* Objects must begin on a cache line, and the new block may lie otherwise than the old one. */
static void move_chunk(const struct mover *m, struct slab_chunk *c)
{
    unsigned char *block = moved(m, c->base - c->pad, slab_chunk_bytes(c));
    uint8_t pad = (uint8_t)((SLAB_LINE - ((uintptr_t)block & (SLAB_LINE - 1))) & (SLAB_LINE - 1));
    if (pad != c->pad)
        memmove(block + pad, block + c->pad, (size_t)c->slots * c->stride);
    c->base = block + pad;
    c->pad = pad;
}

static void move_bodies(const struct mover *m, struct table *t, uint32_t chunk)
{
    const struct slab_chunk *c = &t->slab.chunks[chunk];
    for (uint32_t slot = 0; slot < c->fresh; slot++) {
        handle h = chunk << SLAB_SLOT_BITS | slot;
        if (access_find(t, row_at(t, h)->key) != h)
            continue; /* a released slot */
        struct row_body *body = body_of(row_at(t, h));
        body->bytes = moved(m, body->bytes, body->capacity);
    }
}

static void move_chunk_unit(const struct mover *m, struct table *t, uint32_t chunk)
{
    struct slab_chunk *c = &t->slab.chunks[chunk];
    if (!c->base)
        return;
    move_chunk(m, c);
    if (t->bodies && has_rows(t, c->class))
        move_bodies(m, t, chunk);
}

/* A segment of depth d stands at every entry that agrees in d bits; it is moved at the lowest. */
static void move_segment(const struct mover *m, struct index *x, size_t entry)
{
    size_t step = (size_t)1 << *index_segment_depth(x->directory[entry]), length = (size_t)1 << x->depth;
    if (entry >= step)
        return;
    struct index_segment *segment = moved(m, x->directory[entry], sizeof *segment);
    for (size_t k = entry; k < length; k += step)
        x->directory[k] = segment;
}

static void move_rest(const struct mover *m, struct shard *s)
{
    struct slab *slab = &s->table.slab;
    struct index *x = &s->table.index;
    slab->chunks = moved(m, slab->chunks, slab->capacity * sizeof *slab->chunks);
    x->directory = moved(m, x->directory, ((size_t)1 << x->depth) * sizeof *x->directory);
    x->recent = moved(m, x->recent, index_recent_bytes(x));
    s->feed.ring = moved(m, s->feed.ring, FEED_ENTRIES * sizeof *s->feed.ring);
    for (uint32_t k = 0; k < s->feed.length; k++) {
        struct feed_entry *entry = &s->feed.ring[(s->feed.first + k) % FEED_ENTRIES];
        entry->keys = moved(m, entry->keys, (size_t)entry->capacity * sizeof *entry->keys);
    }
    struct offsets *o = &s->offsets;
    o->list = moved(m, o->list, o->capacity * sizeof *o->list);
    for (size_t k = 0; k < o->count; k++)
        o->list[k].source = moved(m, o->list[k].source, o->list[k].length);
    s->sums.sums = moved(m, s->sums.sums, ((size_t)s->sums.capacity + 1) * sizeof *s->sums.sums);
    s->spec.declaration = moved(m, s->spec.declaration, s->spec.declaration_size + 1);
}

bool shard_defrag(struct shard *s, void *(*move)(void *context, void *block, size_t size), void *context,
                  uint64_t *cursor, bool (*stop)(void *context))
{
    struct mover m = {move, context};
    struct table *t = &s->table;
    for (;;) {
        /* the index may grow between two calls: what it had not yet is offered next time */
        uint64_t unit = *cursor, chunks = t->slab.length, segments = (uint64_t)1 << t->index.depth;
        if (unit < chunks) {
            if (unit)
                move_chunk_unit(&m, t, (uint32_t)unit);
        } else if (unit < chunks + segments) {
            move_segment(&m, &t->index, (size_t)(unit - chunks));
        } else {
            move_rest(&m, s);
            *cursor = 0;
            return false;
        }
        *cursor = unit + 1;
        if (stop(context))
            return true;
    }
}
