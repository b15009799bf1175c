#include "world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mix.h"
#include "saved.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

_Noreturn void found(const char *sentence)
{
    fprintf(stderr, "found: %s\n", sentence);
    abort();
}

uint64_t edge(struct decisions *d)
{
    static const uint64_t edges[] = {
        0, 1, 2, 3, 7, 8, 63, 64, 255, 256, 1000, 4096, 65535, 65536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, INT32_MAX,
        UINT32_MAX, (uint64_t)UINT32_MAX + 1, UINT64_C(1) << 53, INT64_MAX - 1, INT64_MAX, (uint64_t)INT64_MAX + 1,
        UINT64_MAX,
    };
    uint32_t choice = byte(d);
    return choice < COUNT(edges) * 8 ? edges[choice % COUNT(edges)] : word(d);
}

uint64_t world_key(uint32_t number)
{
    return mix(number % WORLD_KEYS + 1);
}

static const char *one_of(struct decisions *d, const char *const *texts, uint32_t count)
{
    return texts[below(d, count)];
}
#define ONE_OF(d, ...) \
    one_of(d, (const char *const[]){__VA_ARGS__}, COUNT(((const char *const[]){__VA_ARGS__})))

static bool open_spec(struct world *w, struct decisions *d, struct spec *spec)
{
    static const char *const kinds[] = {"embedding", "dense", "sequence", "record"};
    static const char *const optimizers[] = {"add", "sgd", "adagrad", "rowwise_adagrad", "adam"};
    uint32_t kind = below(d, 4);
    bool embedding = kind == 0, dense = kind == 1, vectors = embedding || dense;
    const char *pairs[][2] = {
        {"declaration", "{}"},
        {"kind", kinds[kind]},
        {"dim", vectors ? ONE_OF(d, "1", "3", "4", "8") : "0"},
        {"length", vectors ? "0" : ONE_OF(d, "1", "3", "20", "200")},
        {"seed", "7"},
        {"initial_std", ONE_OF(d, "0", "0.03")},
        {"gap_rate", ONE_OF(d, "0.05", "1")},
        {"popularity_half_life", ONE_OF(d, "1000", "1", "9223372036854775807")},
        {"step_events", ONE_OF(d, "1", "10", "1000")},
        {"clip_norm", ONE_OF(d, "0", "0.5")},
        {"optimizer", vectors ? optimizers[below(d, 5)] : "add"},
        {"learning_rate", ONE_OF(d, "0.05", "0", "1")},
        {"initial_accumulator", "0.1"},
        {"beta_1", "0.9"},
        {"beta_2", "0.999"},
        {"epsilon", "1e-7"},
        {"schedule", ONE_OF(d, "constant", "inverse_time", "cosine")},
        {"warmup_steps", ONE_OF(d, "0", "5")},
        {"decay", "0.01"},
        {"steps", ONE_OF(d, "20", "100")},
        {"floor", "0.1"},
        {"l1", ONE_OF(d, "0", "0.001")},
        {"l2", ONE_OF(d, "0", "0.01")},
        {"admit_after", embedding ? ONE_OF(d, "0", "1", "2", "5") : "0"},
        {"max_stubs", ONE_OF(d, "1000", "2", "0")},
        {"max_rows", dense ? "0" : ONE_OF(d, "0", "3", "20")},
        {"ttl_ms", dense ? "0" : ONE_OF(d, "0", "1", "5000")},
        {"remember_events", ONE_OF(d, "1000", "1", "9223372036854775807")},
        {"evict_batch", ONE_OF(d, "64", "1", "3")},
        {"max_evicted", ONE_OF(d, "1000", "2", "0")},
        {"max_forgotten", ONE_OF(d, "1000", "2", "0")},
    };
    const char *names[COUNT(pairs)], *values[COUNT(pairs)];
    size_t name_lengths[COUNT(pairs)], value_lengths[COUNT(pairs)];
    for (size_t i = 0; i < COUNT(pairs); i++) {
        names[i] = pairs[i][0];
        values[i] = pairs[i][1];
        name_lengths[i] = strlen(names[i]);
        value_lengths[i] = strlen(values[i]);
    }
    struct fault fault;
    return spec_parse(spec, COUNT(pairs), names, name_lengths, values, value_lengths, &w->allocator, &fault);
}

bool world_open(struct world *w, struct decisions *d)
{
    memset(w, 0, sizeof *w);
    counting_open(&w->allocator, &w->counting);
    struct spec spec;
    struct fault fault;
    if (!open_spec(w, d, &spec))
        return false;
    w->counting.left = allocations(d, 16, 8);
    bool open = shard_open(&w->shard, &spec, 0x1234567, &w->allocator, &fault);
    w->counting.left = -1;
    spec_close(&spec, &w->allocator);
    if (!open) {
        if (w->counting.held || w->allocator.held)
            found("a shard that could not be opened holds memory");
        return false;
    }
    bool vectors = w->shard.spec.kind == KIND_EMBEDDING || w->shard.spec.kind == KIND_DENSE;
    w->dim = w->shard.spec.dim;
    w->state_dim = vectors ? optimizer_state_dim(w->shard.spec.optimizer.kind, w->dim) : 0;
    return true;
}

void world_close(struct world *w)
{
    shard_close(&w->shard);
    if (w->counting.held || w->allocator.held)
        found("a closed shard holds memory");
}

/* Appends bytes to a call. */
static unsigned char *put(unsigned char *at, const void *from, size_t size)
{
    memcpy(at, from, size);
    return at + size;
}

static struct place place_of(struct world *w, struct decisions *d)
{
    w->time_ms += below(d, 4);
    int64_t time_ms = w->time_ms - below(d, 16);
    return (struct place){time_ms < 0 ? 0 : time_ms, byte(d), below(d, 3)};
}

size_t world_call(struct world *w, struct decisions *d, unsigned char *out)
{
    enum { MOST = 24, SIZE_OF_VALUE = 40 };
    int32_t kind = below(d, 32) == 31 ? (int32_t)below(d, KINDS) : w->shard.spec.kind; /* now and then of another table */
    struct flush_head head = {.version = FLUSH_VERSION, .generation = w->shard.meta.generation};
    head.keys = below(d, MOST + 1);
    uint32_t what = byte(d), first = byte(d), step = 1 + below(d, 3); /* keys first, first + step, … */
    bool vectors = kind == KIND_EMBEDDING || kind == KIND_DENSE;
    if (vectors && what & 1)
        head.flags |= FLUSH_GRADIENTS;
    if (head.flags && what & 2 && w->shard.spec.optimizer.kind != OPTIMIZER_ADAM)
        head.flags |= FLUSH_DELTAS;
    if (head.flags & FLUSH_DELTAS && w->state_dim)
        head.flags |= FLUSH_STATE;
    head.flags |= (what & 4 ? FLUSH_OWN : 0) | (what & 8 ? FLUSH_CHECKS : 0);
    if (!(what & 4) && below(d, 4))
        head.flags |= FLUSH_UNPLACED;
    head.dim = w->dim;
    head.state_dim = w->state_dim;

    uint64_t keys[MOST];
    int64_t counts[MOST], starts[2], stops[2];
    float positives[MOST];
    uint32_t checks[MOST];
    uint16_t lengths[MOST], source_lengths[2] = {3, 3};
    char ids[MOST * 16];
    for (uint32_t i = 0; i < head.keys; i++) {
        uint32_t number = first + i * step;
        keys[i] = world_key(number);
        counts[i] = what & 16 ? below(d, 4) : 0;
        head.events += counts[i];
        head.own += head.flags & FLUSH_OWN ? (uint32_t)counts[i] : 0;
        positives[i] = (float)(counts[i] ? below(d, 4) : 0) * .5f;
        checks[i] = number % WORLD_KEYS + (below(d, 32) == 31); /* now and then it is another id's key */
        lengths[i] = (uint16_t)snprintf(ids + head.ids_size, 16, "id-%u", checks[i]);
        if (what & 32)
            lengths[i] = 0;
        head.ids_size += lengths[i];
    }
    head.events += byte(d) << (what & 64 ? 8 : 0);
    head.ranges = 1 + below(d, 2);
    head.sources_size = head.ranges * 3;
    for (uint32_t i = 0; i < head.ranges; i++) {
        starts[i] = w->next[i];
        stops[i] = starts[i] + 1 + below(d, 8);
    }

    unsigned char *at = out + sizeof head;
    at = put(at, starts, head.ranges * sizeof *starts);
    at = put(at, stops, head.ranges * sizeof *stops);
    at = put(at, source_lengths, head.ranges * sizeof *source_lengths);
    at = put(at, "t:0t:1", head.sources_size);
    at = put(at, keys, head.keys * sizeof *keys);
    at = put(at, counts, head.keys * sizeof *counts);
    at = put(at, positives, head.keys * sizeof *positives);
    at = put(at, checks, head.keys * sizeof *checks);
    at = put(at, lengths, head.keys * sizeof *lengths);
    at = put(at, ids, head.ids_size);
    size_t values = (head.flags & FLUSH_GRADIENTS ? w->dim : 0) + (head.flags & FLUSH_STATE ? w->state_dim : 0);
    for (size_t i = 0; i < head.keys * values; i++) {
        float value = (float)(int8_t)byte(d) / 16;
        at = put(at, &value, sizeof value);
    }

    head.appends = kind == KIND_SEQUENCE && head.keys ? below(d, 64) : 0;
    for (uint32_t i = 0; i < head.appends; i++) {
        uint32_t row = below(d, head.keys);
        at = put(at, &row, sizeof row);
    }
    for (uint32_t i = 0; i < head.appends; i++) {
        struct place place = place_of(w, d);
        struct entry entry = {place.time_ms, place.place, world_key(byte(d)), place.partition, .5f};
        at = put(at, &entry, sizeof entry);
    }

    head.values = kind == KIND_RECORD && head.keys ? below(d, 16) : 0;
    uint32_t value_lengths[16];
    for (uint32_t i = 0; i < head.values; i++) {
        uint32_t row = below(d, head.keys);
        at = put(at, &row, sizeof row);
    }
    for (uint32_t i = 0; i < head.values; i++) {
        struct place place = place_of(w, d);
        at = put(at, &place, sizeof place);
        value_lengths[i] = below(d, w->shard.spec.length < SIZE_OF_VALUE ? w->shard.spec.length + 2 : SIZE_OF_VALUE);
        head.values_size += value_lengths[i];
    }
    at = put(at, value_lengths, head.values * sizeof *value_lengths);
    memset(at, (int)byte(d), head.values_size);
    at += head.values_size;

    if (head.flags & FLUSH_OWN) {
        for (uint32_t i = 0; i < head.keys; i++)
            for (int64_t k = 0; k < counts[i]; k++)
                at = put(at, &i, sizeof i);
        for (uint32_t i = 0; i < head.own; i++) {
            struct place place = place_of(w, d);
            at = put(at, &place, sizeof place);
        }
        for (uint32_t i = 0; i < head.own; i++) {
            float positive = (float)below(d, 2);
            at = put(at, &positive, sizeof positive);
        }
    }

    head.forgets = kind != KIND_DENSE && head.keys && what & 128 ? 1 + below(d, head.keys) : 0;
    for (uint32_t i = 0; i < head.forgets; i++)
        at = put(at, &i, sizeof i);
    for (uint32_t i = 0; i < head.forgets; i++) {
        struct place place = below(d, 4) ? place_of(w, d) : (struct place){PLACE_NONE, 0, 0};
        at = put(at, &place, sizeof place);
    }
    if (head.flags & FLUSH_CHECKS)
        at = put(at, checks, head.forgets * sizeof *checks);

    w->now_ms += byte(d) << below(d, 8);
    head.event_time_ms = head.produced_ms = w->time_ms;
    head.now_ms = w->now_ms;
    memcpy(out, &head, sizeof head);
    return (size_t)(at - out);
}

size_t damage(struct decisions *d, unsigned char *bytes, size_t size, size_t room)
{
    for (uint32_t times = 1 + below(d, 4); times && size; times--) {
        size_t at = (byte(d) | byte(d) << 8) % size;
        uint64_t value = edge(d);
        switch (below(d, 6)) {
        case 0:
            bytes[at] ^= (unsigned char)(1u << below(d, 8));
            break;
        case 1: /* a field of a head */
            at = (byte(d) * (size_t)4) % size;
            memcpy(bytes + at, &value, size - at < 4 ? size - at : 4);
            break;
        case 2:
            at = (byte(d) * (size_t)8) % size;
            memcpy(bytes + at, &value, size - at < 8 ? size - at : 8);
            break;
        case 3:
            memcpy(bytes + at, &value, size - at < 8 ? size - at : 8);
            break;
        case 4:
            size = at;
            break;
        default:
            for (uint32_t more = byte(d); more && size < room; more--)
                bytes[size++] = (unsigned char)byte(d);
        }
    }
    return size;
}

static void check(const struct world *w)
{
    const char *wrong = shard_check(&w->shard);
    if (wrong)
        found(wrong);
    if (w->allocator.held != (size_t)w->counting.held)
        found("the account of memory is wrong");
}

bool world_apply(struct world *w, struct decisions *d, const unsigned char *call, size_t size)
{
    uint32_t choice = byte(d), shift = choice & 7;
    bool short_of_memory = choice >> 3 == 1, look = short_of_memory || choice >> 7;
    unsigned char *copy = malloc(size + shift + 1); /* its end is the end of its memory: reading on is a find */
    if (!copy)
        abort();
    unsigned char *blob = copy + shift + 1;
    memcpy(blob, call, size);
    uint64_t before[2], after[2];
    if (look)
        saved_digest(&w->shard, before);
    struct flush flush;
    struct fault fault = {""};
    enum shard_outcome outcome = SHARD_CONFLICT;
    bool good = flush_parse(&flush, blob, size, w->dim, w->state_dim, &fault);
    if (good) {
        w->counting.left = short_of_memory ? (int64_t)below(d, 32) : -1;
        good = shard_apply(&w->shard, &flush, &outcome, &fault);
        w->counting.left = -1;
    }
    bool applied = good && outcome == SHARD_APPLIED;
    if (!good && (!*fault.text || !memchr(fault.text, 0, sizeof fault.text)))
        found("a refusal without a sentence");
    if (look && !applied) {
        saved_digest(&w->shard, after);
        if (memcmp(before, after, sizeof before) != 0)
            found("a call that was not applied has changed the shard");
    }
    free(copy);
    check(w);
    return applied;
}

static void seek(struct world *w, struct decisions *d)
{
    struct fault fault;
    int64_t expected = below(d, 2) ? w->next[0] : (int64_t)edge(d), offset = (int64_t)(edge(d) >> 3);
    w->counting.left = allocations(d, 8, 3);
    bool moved = shard_seek(&w->shard, "t:0", 3, expected, offset, "because", 7, &fault);
    w->counting.left = -1;
    if (moved && offsets_find(&w->shard.offsets, "t:0", 3)->next != offset)
        found("a seek that went elsewhere");
    check(w);
}

void world_live(struct world *w, struct decisions *d, int calls)
{
    static unsigned char call[WORLD_CALL + 1024];
    for (; calls && left(d); calls--) {
        for (int i = 0; i < 2; i++) { /* where a valid call goes on, whatever was done before */
            const struct offset *offset = offsets_find(&w->shard.offsets, i ? "t:1" : "t:0", 3);
            w->next[i] = offset ? offset->next : 0;
            if (w->next[i] > INT64_MAX - 8)
                return;
        }
        uint32_t choice = byte(d);
        if (choice < 16) {
            seek(w, d);
            continue;
        }
        if (choice < 20) {
            shard_raise(&w->shard, byte(d));
            continue;
        }
        size_t size = world_call(w, d, call);
        if (choice >= 160)
            size = damage(d, call, size, sizeof call);
        world_apply(w, d, call, size);
    }
}
