/* From a shard to blocks. */
#include <string.h>

#include "checksum.h"
#include "mix.h"
#include "saved.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they are in memory");

struct writer {
    bool (*write)(void *context, const void *bytes, size_t n);
    void *context;
    struct saved_head head; /* of the block in the making */
    bool good;
    uint64_t offsets, objects;
    size_t values; /* floats of a row */
    unsigned char *block; /* SAVED_BLOCK bytes */
};

static void flush(struct writer *w)
{
    struct saved_head *head = &w->head;
    if (!w->good || !head->records)
        return;
    head->checksum = checksum(w->block + sizeof *head, head->size, mix(head->checksum ^ head->number));
    memcpy(w->block, head, sizeof *head);
    w->good = w->write(w->context, w->block, sizeof *head + head->size);
    head->number++;
    head->size = head->records = 0;
}

/* Room for a record of so many bytes, its own head included. */
static unsigned char *room(struct writer *w, size_t bytes)
{
    if (sizeof w->head + w->head.size + bytes > SAVED_BLOCK)
        flush(w);
    unsigned char *at = w->block + sizeof w->head + w->head.size;
    w->head.size += (uint32_t)bytes;
    w->head.records++;
    return at;
}

/* A record of two parts. */
static void put(struct writer *w, enum saved_type type, const void *first, size_t first_size, const void *second,
                size_t second_size)
{
    struct saved_record record = {.size = (uint32_t)(first_size + second_size), .type = (uint8_t)type};
    unsigned char *at = room(w, sizeof record + record.size);
    memcpy(at, &record, sizeof record);
    at += sizeof record;
    if (first_size)
        memcpy(at, first, first_size);
    if (second_size)
        memcpy(at + first_size, second, second_size);
}

static void put_pair(void *context, const char *name, const char *value, size_t length)
{
    unsigned char named[4 + 64];
    uint32_t size = (uint32_t)strlen(name); /* of a field, below 64 */
    memcpy(named, &size, 4);
    memcpy(named + 4, name, size);
    put(context, SAVED_PAIR, named, 4 + size, value, length);
}

static size_t values_of(const struct shard *s)
{
    return s->spec.dim ? s->spec.dim + optimizer_state_dim(s->spec.optimizer.kind, s->spec.dim) : 0;
}

static unsigned char *append(unsigned char *at, const void *bytes, size_t n)
{
    if (n)
        memcpy(at, bytes, n);
    return at + n;
}

/* An object with so many values as its record, into `out`, SAVED_RECORD bytes; returns how many it took. */
static size_t object_record(const struct object *o, size_t values, unsigned char *out)
{
    struct saved_record record = {.type = SAVED_OBJECT, .standing = (uint8_t)o->standing,
                                  .flags = o->fenced ? SAVED_FENCED : 0};
    unsigned char *at = out + sizeof record;
    at = append(at, &o->key, sizeof o->key);
    at = append(at, &o->record, sizeof o->record);
    if (o->fenced)
        at = append(at, &o->fence, sizeof o->fence);
    at = append(at, o->id, o->record.id_length);
    if (o->values)
        at = append(at, o->values, values * sizeof(float));
    if (o->entries)
        at = append(at, o->entries, o->record.entries * sizeof(struct entry));
    if (o->value) {
        at = append(at, &o->place, sizeof o->place);
        at = append(at, o->value, o->record.entries);
    }
    record.size = (uint32_t)(at - out - (ptrdiff_t)sizeof record);
    memcpy(out, &record, sizeof record);
    return sizeof record + record.size;
}

static bool put_object(void *context, const struct object *object)
{
    struct writer *w = context;
    /* written where it is to be, so there must be room for the largest */
    if (sizeof w->head + w->head.size + SAVED_RECORD > SAVED_BLOCK)
        flush(w);
    unsigned char *at = w->block + sizeof w->head + w->head.size;
    w->head.size += (uint32_t)object_record(object, w->values, at);
    w->head.records++;
    w->objects++;
    return w->good;
}

bool saved_write(const struct shard *s, bool (*write)(void *context, const void *bytes, size_t n), void *context)
{
    unsigned char block[SAVED_BLOCK]; /* on the stack: a save that needs memory fails when it is wanted most */
    struct writer w = {.write = write, .context = context, .good = true, .block = block,
                       .values = values_of(s),
                       .head = {.magic = {'T', 'O', 'W', 'S'}, .version = SAVED_VERSION}};
    spec_each(&s->spec, put_pair, &w);
    put(&w, SAVED_META, &s->meta, sizeof s->meta, NULL, 0);
    put(&w, SAVED_SEEK, s->last_seek, strlen(s->last_seek), NULL, 0);
    for (size_t i = 0; i < s->offsets.count && w.good; i++) {
        const struct offset *o = &s->offsets.list[i];
        put(&w, SAVED_OFFSET, &o->next, sizeof o->next, o->source, o->length);
        w.offsets++;
    }
    if (w.good && !table_each_saved(&s->table, put_object, &w))
        return false;
    uint64_t total[2] = {w.offsets, w.objects};
    put(&w, SAVED_TOTAL, total, sizeof total, NULL, 0);
    flush(&w);
    return w.good;
}

struct digest {
    uint64_t sums[2];
    size_t values; /* floats of a row */
    unsigned char *record;
};

static void add(struct digest *d, const void *bytes, size_t n)
{
    /* sums: rows of a table without limits have no order */
    d->sums[0] += checksum(bytes, n, 1);
    d->sums[1] += checksum(bytes, n, 2);
}

static bool add_object(void *context, const struct object *object)
{
    struct digest *d = context;
    add(d, d->record, object_record(object, d->values, d->record));
    return true;
}

static void add_pair(void *context, const char *name, const char *value, size_t length)
{
    struct digest *d = context;
    uint64_t pair[2] = {checksum(name, strlen(name), 3), checksum(value, length, 4)};
    add(d, pair, sizeof pair);
}

void saved_digest(const struct shard *s, uint64_t digest[2])
{
    unsigned char record[SAVED_RECORD];
    struct digest d = {.record = record, .values = values_of(s)};
    spec_each(&s->spec, add_pair, &d);
    add(&d, &s->meta, sizeof s->meta);
    add(&d, s->last_seek, strlen(s->last_seek));
    for (size_t i = 0; i < s->offsets.count; i++) {
        const struct offset *o = &s->offsets.list[i];
        uint64_t pair[2] = {checksum(o->source, o->length, 5), (uint64_t)o->next};
        add(&d, pair, sizeof pair);
    }
    table_each_saved(&s->table, add_object, &d);
    digest[0] = d.sums[0];
    digest[1] = d.sums[1];
}
