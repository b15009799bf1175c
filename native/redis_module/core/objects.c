#include "objects.h"

#include <string.h>

#include "access.h"
#include "shard.h"

static struct object object_of(const struct table *t, handle h)
{
    struct row *row = row_at(t, h);
    const struct row_extra *extra = extra_of(t, row);
    const struct fence *fence = extra_fence(extra);
    struct object o = {.key = row->key, .standing = standing_of(t, h), .fenced = fence != NULL};
    o.record = (struct row_record){row->clock,      row->count, row->updated_ms, row->last_seen, row->gap,
                                   row->popularity, row->check, 0,               extra_id_length(extra)};
    o.id = extra ? extra->bytes : NULL;
    if (fence)
        o.fence = *fence;
    if (o.standing != STANDING_ROW || t->limited)
        o.score = o.standing == STANDING_ROW || o.standing == STANDING_STUB ? row->updated_ms : row->clock;
    if (o.standing != STANDING_ROW)
        return o;
    if (!t->bodies) {
        o.values = row->values;
        return o;
    }
    const struct row_body *body = body_of(row);
    o.record.entries = (uint16_t)body->size;
    if (t->spec->kind == KIND_SEQUENCE) {
        o.entries = (const struct entry *)(const void *)body->bytes;
    } else {
        o.place = body_place(body);
        static const unsigned char nothing[1];
        o.value = body->bytes ? body->bytes + sizeof o.place : nothing;
    }
    return o;
}

static bool each_of_list(const struct table *t, const struct order *list,
                         bool (*visit)(void *context, const struct object *object), void *context)
{
    for (handle h = list->first; h; h = order_links(list, h)->next) {
        struct object object = object_of(t, h);
        if (!visit(context, &object))
            return false;
    }
    return true;
}

static bool each_of_class(const struct table *t, int class,
                          bool (*visit)(void *context, const struct object *object), void *context)
{
    for (uint32_t chunk = 1; chunk < t->slab.length; chunk++) {
        const struct slab_chunk *c = &t->slab.chunks[chunk];
        if (!c->base || c->class != class)
            continue;
        for (uint32_t slot = 0; slot < c->fresh; slot++) {
            handle h = chunk << SLAB_SLOT_BITS | slot;
            if (access_find(t, row_at(t, h)->key) != h)
                continue; /* a released slot */
            struct object object = object_of(t, h);
            if (!visit(context, &object))
                return false;
        }
    }
    return true;
}

/* Class by class, so that what is loaded comes in the same order when it is saved again. */
static bool each_row(const struct table *t, bool (*visit)(void *context, const struct object *object), void *context)
{
    return each_of_class(t, t->row_class, visit, context) && each_of_class(t, t->known_class, visit, context);
}

bool table_each_saved(const struct table *t, bool (*visit)(void *context, const struct object *object), void *context)
{
    if (!(t->limited ? each_of_list(t, &t->lists[LIST_UPDATES], visit, context) : each_row(t, visit, context)))
        return false;
    return each_of_list(t, &t->lists[LIST_STUBS], visit, context) &&
           each_of_list(t, &t->lists[LIST_EVICTED], visit, context) &&
           each_of_list(t, &t->lists[LIST_FORGOTTEN], visit, context);
}

/* The bytes of a sequence or record. False: no memory. */
static bool load_body(struct table *t, struct row *row, const struct object *o)
{
    bool sequence = t->spec->kind == KIND_SEQUENCE;
    size_t size = o->record.entries;
    size_t bytes = sequence ? size * sizeof(struct entry) : sizeof(struct place) + size;
    if (!bytes)
        return true;
    unsigned char *block = allocator_take(t->allocator, bytes);
    if (!block)
        return false;
    if (sequence) {
        memcpy(block, o->entries, bytes);
    } else {
        memcpy(block, &o->place, sizeof o->place);
        if (size)
            memcpy(block + sizeof o->place, o->value, size);
    }
    *body_of(row) = (struct row_body){block, (uint32_t)size, (uint32_t)bytes};
    t->body_bytes += bytes;
    return true;
}

bool table_load_object(struct table *t, const struct object *o, struct fault *fault)
{
    struct order *list = list_of(t, o->standing);
    bool bare = o->standing != STANDING_ROW;
    if (o->standing == STANDING_MISSING || (o->standing == STANDING_STUB && o->record.count <= 0) ||
        (o->standing == STANDING_FORGOTTEN) != (bare && o->record.count <= 0 && o->fenced))
        return fault_set(fault, FAULT_BAD, "key %llu can't have standing %d with %lld own events",
                         (unsigned long long)o->key, (int)o->standing, (long long)o->record.count);
    if (access_find(t, o->key))
        return fault_set(fault, FAULT_BAD, "key %llu is saved twice", (unsigned long long)o->key);
    fault_set(fault, FAULT_MEMORY, "no memory for key %llu", (unsigned long long)o->key);
    uint16_t id_length = bare ? 0 : o->record.id_length;
    handle h = access_new(t, o->key, bare ? t->bare_class : class_for(t, id_length, o->fenced));
    if (!h)
        return false;
    struct row *row = row_at(t, h);
    if ((id_length || o->fenced) &&
        !(row->extra = access_new_extra(t, o->id, id_length, o->fenced ? &o->fence : NULL)))
        goto failed;
    row->clock = o->record.clock;
    row->count = o->record.count;
    row->updated_ms = o->record.updated_ms;
    row->last_seen = o->record.last_seen;
    row->gap = o->record.gap;
    row->popularity = o->record.popularity;
    row->check = o->record.check;
    if (!bare && t->bodies && !load_body(t, row, o))
        goto failed;
    if (!bare && !t->bodies)
        memcpy(row->values, o->values, t->values * sizeof(float));
    if (!index_insert(&t->index, mix_place(o->key, t->salt), h))
        goto failed;
    t->bare += bare;
    if (list)
        order_append(list, h);
    else
        access_digest(t, h);
    return true;
failed:
    access_release(t, h);
    return false;
}
