/* From blocks to a shard. Bytes may come from anybody who may restore a key: nothing in them is believed. */
#include <inttypes.h>
#include <string.h>

#include "checksum.h"
#include "mix.h"
#include "saved.h"
#include "sequence.h"

#define PAIRS 64
#define MAX_MS (INT64_C(1) << 53)

/* What is left of a block or a record. */
struct bytes {
    const unsigned char *at;
    size_t left;
};

static const void *next(struct bytes *b, size_t n)
{
    if (n > b->left)
        return NULL;
    const unsigned char *here = b->at;
    b->at += n;
    b->left -= n;
    return here;
}

static bool copy(struct bytes *b, void *out, size_t n)
{
    const void *here = next(b, n);
    if (here)
        memcpy(out, here, n);
    return here;
}

void saved_load_begin(struct saved_loader *l, struct shard *shard, uint64_t salt, struct allocator *allocator)
{
    *l = (struct saved_loader){.shard = shard, .allocator = allocator, .salt = salt, .progress = SAVED_MORE};
}

void saved_load_abandon(struct saved_loader *l)
{
    if (l->opened && l->progress != SAVED_DONE)
        shard_close(l->shard);
    l->opened = false;
    l->progress = SAVED_WRONG;
}

/* The spec, which must be whole in the first block, opens the shard. */
struct pairs {
    size_t count;
    const char *names[PAIRS], *values[PAIRS];
    size_t name_lengths[PAIRS], value_lengths[PAIRS];
};

static bool load_pair(struct pairs *p, struct bytes record, struct fault *fault)
{
    uint32_t length;
    if (!copy(&record, &length, sizeof length) || length > record.left)
        return fault_set(fault, FAULT_BAD, "a saved pair is cut off after %zu bytes", record.left);
    if (p->count == PAIRS)
        return fault_set(fault, FAULT_BAD, "a saved declaration of more than %d pairs", PAIRS);
    p->name_lengths[p->count] = length;
    p->names[p->count] = next(&record, length);
    p->value_lengths[p->count] = record.left;
    p->values[p->count++] = (const char *)record.at;
    return true;
}

static bool open_shard(struct saved_loader *l, const struct pairs *p, struct fault *fault)
{
    struct spec spec;
    if (!spec_parse(&spec, p->count, p->names, p->name_lengths, p->values, p->value_lengths, l->allocator, fault))
        return false;
    l->opened = shard_open(l->shard, &spec, l->salt, l->allocator, fault);
    spec_close(&spec, l->allocator);
    return l->opened;
}

static bool load_meta(struct saved_loader *l, struct bytes record, struct fault *fault)
{
    struct shard_meta *m = &l->shard->meta;
    if (record.left != sizeof *m)
        return fault_set(fault, FAULT_BAD, "saved numbers of a shard have %zu bytes, expected %zu", record.left,
                         sizeof *m);
    memcpy(m, record.at, sizeof *m);
    /* counts of what happened are told and nothing else: whatever they are, the shard can live with it */
    const int64_t numbers[] = {m->generation, m->clock, m->event_time_ms, m->produced_ms, m->now_ms, m->feed};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (numbers[k] < 0)
            return fault_set(fault, FAULT_BAD, "saved number %zu of a shard is %" PRId64 "; it can't be negative", k,
                             numbers[k]);
    if (m->clock >= MAX_MS || m->now_ms >= MAX_MS)
        return fault_set(fault, FAULT_BAD, "saved clock %" PRId64 " and time %" PRId64 "; both are below %" PRId64,
                         m->clock, m->now_ms, MAX_MS);
    return true;
}

static bool load_seek(struct saved_loader *l, struct bytes record, struct fault *fault)
{
    if (record.left >= sizeof l->shard->last_seek)
        return fault_set(fault, FAULT_BAD, "a saved seek of %zu bytes; at most %zu are kept", record.left,
                         sizeof l->shard->last_seek - 1);
    if (memchr(record.at, 0, record.left))
        return fault_set(fault, FAULT_BAD, "a saved seek of %zu bytes with a 0 in it", record.left);
    memcpy(l->shard->last_seek, record.at, record.left);
    l->shard->last_seek[record.left] = 0;
    return true;
}

/* Whether a source comes after the last one. */
static bool source_rises(const struct offsets *o, const unsigned char *source, size_t length)
{
    if (!o->count)
        return true;
    const struct offset *last = &o->list[o->count - 1];
    int order = memcmp(last->source, source, last->length < length ? last->length : length);
    return order < 0 || (order == 0 && last->length < length);
}

static bool load_offset(struct saved_loader *l, struct bytes record, struct fault *fault)
{
    int64_t offset;
    if (!copy(&record, &offset, sizeof offset) || offset < 0)
        return fault_set(fault, FAULT_BAD, "saved offset %" PRIu64 " is cut off or negative", l->offsets);
    if (record.left < 1 || record.left > FLUSH_MAX_SOURCE)
        return fault_set(fault, FAULT_BAD, "saved source %" PRIu64 " has %zu bytes; 1 to %u are allowed", l->offsets,
                         record.left, FLUSH_MAX_SOURCE);
    if (!source_rises(&l->shard->offsets, record.at, record.left))
        return fault_set(fault, FAULT_BAD, "saved source %" PRIu64 " does not come after the one before", l->offsets);
    if (!offsets_set(&l->shard->offsets, (const char *)record.at, record.left, offset))
        return fault_set(fault, FAULT_MEMORY, "no memory for saved source %" PRIu64 " of %zu bytes", l->offsets,
                         record.left);
    l->offsets++;
    return true;
}

static bool wrong_object(const struct saved_loader *l, const struct object *o, const char *what, int64_t value,
                         struct fault *fault)
{
    return fault_set(fault, FAULT_BAD, "saved object %" PRIu64 ", key %" PRIu64 ": %s %" PRId64, l->objects, o->key,
                     what, value);
}

/* By what its list is in order: it is not saved, as it follows from the rest. */
static int64_t score_of(const struct spec *spec, const struct object *o)
{
    if (o->standing == STANDING_ROW && !spec->ttl_ms && !spec->max_rows)
        return 0;
    return o->standing == STANDING_ROW || o->standing == STANDING_STUB ? o->record.updated_ms : o->record.clock;
}

static bool check_standing(const struct saved_loader *l, const struct object *o, struct fault *fault)
{
    const struct row_record *r = &o->record;
    if (o->standing < STANDING_ROW || o->standing >= STANDINGS)
        return wrong_object(l, o, "no standing has the number", o->standing, fault);
    if (o->standing < l->standing)
        return wrong_object(l, o, "it does not come in the order of standings, it has", o->standing, fault);
    if (o->standing == l->standing && o->score < l->score)
        return wrong_object(l, o, "its score is below the one before, it is", o->score, fault);
    if (o->standing == STANDING_FORGOTTEN ? !o->fenced : o->standing == STANDING_EVICTED && o->fenced)
        return wrong_object(l, o, "its fence does not go with standing", o->standing, fault);
    if (o->standing != STANDING_ROW && (r->count > 0) != (o->standing == STANDING_STUB))
        return wrong_object(l, o, "its standing does not go with a count of", r->count, fault);
    if (o->standing != STANDING_ROW && r->id_length)
        return wrong_object(l, o, "it has no row, but an id of bytes", r->id_length, fault);
    return true;
}

static bool check_numbers(const struct saved_loader *l, const struct object *o, struct fault *fault)
{
    const struct row_record *r = &o->record;
    int64_t clock = l->shard->meta.clock;
    if (r->clock < 0 || r->clock > clock || r->last_seen < 0 || r->last_seen > clock)
        return wrong_object(l, o, "its clocks lie outside of 0 and the shard's,", clock, fault);
    if (r->count < 0)
        return wrong_object(l, o, "its count is", r->count, fault);
    if (r->updated_ms < 0 || r->updated_ms >= MAX_MS)
        return wrong_object(l, o, "it was updated at", r->updated_ms, fault);
    if (!o->fenced)
        return true;
    if (o->fence.clock < 0 || o->fence.clock > clock)
        return wrong_object(l, o, "the clock of its fence is", o->fence.clock, fault);
    if (o->fence.place.time_ms != PLACE_NONE && (o->fence.place.time_ms < 0 || o->fence.place.place < 0))
        return wrong_object(l, o, "the time of its fence is", o->fence.place.time_ms, fault);
    return true;
}

static bool entries_rise(const struct entry *entries, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (entry_after(&entries[i - 1], &entries[i]))
            return false;
    return true;
}

/* The rest of a row's record, which must be exactly what its table and header say. */
static bool find_body(const struct saved_loader *l, struct object *o, struct bytes *rest, struct fault *fault)
{
    const struct spec *spec = &l->shard->spec;
    bool vectors = spec->kind == KIND_EMBEDDING || spec->kind == KIND_DENSE;
    if (o->record.entries > (o->standing == STANDING_ROW ? spec->length : 0))
        return wrong_object(l, o, "it is longer than the table allows,", o->record.entries, fault);
    o->id = next(rest, o->record.id_length);
    if (!o->id || o->record.id_length > ROW_MAX_ID)
        return wrong_object(l, o, "its id is cut off or too long, of bytes", o->record.id_length, fault);
    bool whole = true;
    if (o->standing == STANDING_ROW && vectors) {
        size_t values = spec->dim + optimizer_state_dim(spec->optimizer.kind, spec->dim);
        whole = (o->values = next(rest, values * sizeof(float)));
    } else if (o->standing == STANDING_ROW && spec->kind == KIND_SEQUENCE) {
        whole = (o->entries = next(rest, o->record.entries * sizeof(struct entry)));
        if (whole && !entries_rise(o->entries, o->record.entries))
            return wrong_object(l, o, "its entries are not in the order of time,", o->record.entries, fault);
    } else if (o->standing == STANDING_ROW) {
        whole = copy(rest, &o->place, sizeof o->place) && (o->value = next(rest, o->record.entries));
    }
    if (!whole || rest->left)
        return wrong_object(l, o, "its bytes are not those of a row of this table; more than them there are",
                            (int64_t)rest->left, fault);
    return true;
}

static bool load_object(struct saved_loader *l, const struct saved_record *head, struct bytes record,
                        struct fault *fault)
{
    struct object o = {.standing = head->standing, .fenced = head->flags & SAVED_FENCED};
    if (head->flags & ~SAVED_FENCED)
        return fault_set(fault, FAULT_BAD, "saved object %" PRIu64 " has flags %u; known are %u", l->objects,
                         head->flags, SAVED_FENCED);
    if (!copy(&record, &o.key, sizeof o.key) || !copy(&record, &o.record, sizeof o.record) ||
        (o.fenced && !copy(&record, &o.fence, sizeof o.fence)))
        return fault_set(fault, FAULT_BAD, "saved object %" PRIu64 " is cut off after %u bytes", l->objects,
                         head->size);
    o.score = score_of(&l->shard->spec, &o);
    if (!check_standing(l, &o, fault) || !check_numbers(l, &o, fault) || !find_body(l, &o, &record, fault) ||
        !table_load_object(&l->shard->table, &o, fault))
        return false;
    l->objects++;
    l->standing = o.standing;
    l->score = o.score;
    return true;
}

static bool load_total(struct saved_loader *l, struct bytes record, const struct bytes *block, struct fault *fault)
{
    uint64_t total[2];
    if (!copy(&record, total, sizeof total) || record.left || block->left)
        return fault_set(fault, FAULT_BAD, "the end of a save has %zu bytes after it", record.left + block->left);
    if (total[0] != l->offsets || total[1] != l->objects)
        return fault_set(fault, FAULT_BAD, "a save of %" PRIu64 " offsets and %" PRIu64 " objects ends after %" PRIu64
                                           " and %" PRIu64, total[0], total[1], l->offsets, l->objects);
    if (!shard_loaded(l->shard, fault))
        return false;
    l->progress = SAVED_DONE;
    return true;
}

/* Types rise; META and SEEK come once, TOTAL ends all. Nothing but PAIR comes before META. */
static bool check_type(const struct saved_loader *l, uint8_t type, struct fault *fault)
{
    bool repeats = type == SAVED_PAIR || type == SAVED_OFFSET || type == SAVED_OBJECT;
    bool good = type >= SAVED_PAIR && type <= SAVED_TOTAL && (repeats ? type >= l->type : type > l->type) &&
                (type <= SAVED_META || l->opened) && (type != SAVED_PAIR || l->blocks == 0);
    return good || fault_set(fault, FAULT_BAD, "a saved record of type %u after one of type %d", type, (int)l->type);
}

static bool load_record(struct saved_loader *l, struct pairs *pairs, const struct saved_record *head,
                        struct bytes record, const struct bytes *block, struct fault *fault)
{
    if (!check_type(l, head->type, fault))
        return false;
    if (head->unused || (head->type != SAVED_OBJECT && (head->standing || head->flags)))
        return fault_set(fault, FAULT_BAD, "a saved record of type %u has %u, %u, %u where there should be 0",
                         head->type, head->standing, head->flags, head->unused);
    l->type = head->type;
    switch (l->type) {
    case SAVED_PAIR:
        return load_pair(pairs, record, fault);
    case SAVED_META:
        return open_shard(l, pairs, fault) && load_meta(l, record, fault);
    case SAVED_SEEK:
        return load_seek(l, record, fault);
    case SAVED_OFFSET:
        return load_offset(l, record, fault);
    case SAVED_OBJECT:
        return load_object(l, head, record, fault);
    default:
        return load_total(l, record, block, fault);
    }
}

static bool check_block(const struct saved_loader *l, const struct saved_head *head, const void *records, size_t size,
                        struct fault *fault)
{
    if (memcmp(head->magic, "TOWS", sizeof head->magic) != 0)
        return fault_set(fault, FAULT_BAD, "block %" PRIu64 " is none of a shard: it does not begin with TOWS",
                         l->blocks);
    if (head->version > SAVED_VERSION || head->version < 1)
        return fault_set(fault, FAULT_BAD, "saved in format version %u; this module reads 1 to %u: load a newer module",
                         head->version, SAVED_VERSION);
    if (head->number != l->blocks)
        return fault_set(fault, FAULT_BAD, "saved block %" PRIu64 " comes where block %" PRIu64 " belongs",
                         head->number, l->blocks);
    if (head->size != size)
        return fault_set(fault, FAULT_BAD, "saved block %" PRIu64 " has %zu bytes, its head says %u", l->blocks, size,
                         head->size);
    uint64_t sum = checksum(records, size, mix(l->checksum ^ l->blocks));
    if (sum != head->checksum)
        return fault_set(fault, FAULT_BAD, "saved block %" PRIu64 " is corrupt: checksum %016" PRIx64
                                           ", expected %016" PRIx64, l->blocks, sum, head->checksum);
    return true;
}

static bool load_records(struct saved_loader *l, const struct saved_head *head, struct bytes block,
                         struct fault *fault)
{
    struct pairs pairs;
    pairs.count = 0;
    for (uint32_t i = 0; i < head->records; i++) {
        struct saved_record record;
        if (!copy(&block, &record, sizeof record) || record.size > block.left)
            return fault_set(fault, FAULT_BAD, "record %u of saved block %" PRIu64 " is cut off, %zu bytes are left", i,
                             l->blocks, block.left);
        struct bytes inside = {next(&block, record.size), record.size};
        if (!load_record(l, &pairs, &record, inside, &block, fault))
            return false;
    }
    if (block.left)
        return fault_set(fault, FAULT_BAD, "saved block %" PRIu64 " has %zu bytes after its %u records", l->blocks,
                         block.left, head->records);
    if (!l->opened)
        return fault_set(fault, FAULT_BAD, "the first of %u saved records are no declaration", head->records);
    return true;
}

enum saved_progress saved_load_block(struct saved_loader *l, const void *bytes, size_t n, struct fault *fault)
{
    struct saved_head head;
    struct bytes block = {bytes, n};
    if (l->progress != SAVED_MORE) {
        fault_set(fault, FAULT_BAD, "a block of %zu bytes after the end of a save of %" PRIu64, n, l->blocks);
        return SAVED_WRONG;
    }
    if (!copy(&block, &head, sizeof head)) {
        fault_set(fault, FAULT_BAD, "saved block %" PRIu64 " has %zu bytes; its head alone has %zu", l->blocks, n,
                  sizeof head);
        goto wrong;
    }
    if (!check_block(l, &head, block.at, block.left, fault) || !load_records(l, &head, block, fault))
        goto wrong;
    l->blocks++;
    l->checksum = head.checksum;
    return l->progress;
wrong:
    l->progress = SAVED_MORE; /* of a save that was DONE before its last bytes turned out wrong too */
    saved_load_abandon(l);
    return SAVED_WRONG;
}

size_t saved_block_size(const void *bytes, size_t n)
{
    struct saved_head head;
    struct bytes block = {bytes, n};
    if (!copy(&block, &head, sizeof head) || head.size > block.left)
        return 0;
    return sizeof head + head.size;
}

bool saved_read(struct shard *shard, uint64_t salt, struct allocator *allocator,
                const void *(*read)(void *context, size_t *n), void *context, struct fault *fault)
{
    struct saved_loader l;
    enum saved_progress progress = SAVED_MORE;
    saved_load_begin(&l, shard, salt, allocator);
    while (progress == SAVED_MORE) {
        size_t n = 0;
        const void *block = read(context, &n);
        if (!block) {
            saved_load_abandon(&l);
            return fault_set(fault, FAULT_BAD, "a save ends after %" PRIu64 " blocks, before its end", l.blocks);
        }
        progress = saved_load_block(&l, block, n, fault);
    }
    return progress == SAVED_DONE;
}

struct copying {
    struct saved_loader loader;
    struct fault *fault;
};

static bool take_block(void *context, const void *bytes, size_t n)
{
    struct copying *c = context;
    return saved_load_block(&c->loader, bytes, n, c->fault) != SAVED_WRONG;
}

bool saved_copy(struct shard *to, const struct shard *from, uint64_t salt, struct allocator *allocator,
                struct fault *fault)
{
    struct copying c = {.fault = fault};
    saved_load_begin(&c.loader, to, salt, allocator);
    return saved_write(from, take_block, &c) && c.loader.progress == SAVED_DONE;
}
