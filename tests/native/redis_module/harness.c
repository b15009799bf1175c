/* A shard with a counting allocator, for Python's ctypes. */
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "shard.h"

struct harness {
    struct shard shard;
    struct allocator allocator;
    struct counting counting;
    struct fault fault;
};

struct harness *harness_open(size_t count, const char *const *names, const size_t *name_lengths,
                             const char *const *values, const size_t *value_lengths, uint64_t salt, char *text)
{
    struct harness *h = calloc(1, sizeof *h);
    counting_open(&h->allocator, &h->counting);
    struct spec spec;
    bool opened = spec_parse(&spec, count, names, name_lengths, values, value_lengths, &h->allocator, &h->fault);
    if (opened) {
        opened = shard_open(&h->shard, &spec, salt, &h->allocator, &h->fault);
        spec_close(&spec, &h->allocator);
    }
    if (opened)
        return h;
    memcpy(text, h->fault.text, sizeof h->fault.text);
    free(h);
    return NULL;
}

/* Bytes that were not given back, and whether the two accounts differ. */
int64_t harness_close(struct harness *h)
{
    shard_close(&h->shard);
    int64_t held = h->counting.held ? h->counting.held : (int64_t)h->allocator.held;
    free(h);
    return held;
}

int harness_apply(struct harness *h, const void *blob, size_t size)
{
    struct flush flush;
    enum shard_outcome outcome;
    if (!flush_parse(&flush, blob, size, h->shard.table.dim, h->shard.table.state_dim, &h->fault))
        return -1;
    return shard_apply(&h->shard, &flush, &outcome, &h->fault) ? (int)outcome : -1;
}

const char *harness_fault(const struct harness *h)
{
    return h->fault.text;
}

struct counting *harness_counting(struct harness *h)
{
    return &h->counting;
}

const struct shard_meta *harness_meta(const struct harness *h)
{
    return &h->shard.meta;
}

int64_t harness_numbers(const struct harness *h, int which)
{
    switch (which) {
    case 0:
        return shard_rows(&h->shard);
    case 1:
        return shard_stubs(&h->shard);
    case 2:
        return shard_remembered(&h->shard);
    case 3:
        return (int64_t)h->allocator.held;
    default:
        return (int64_t)h->shard.table.index.splits;
    }
}

const char *harness_check(const struct harness *h)
{
    return shard_check(&h->shard);
}

bool harness_seek(struct harness *h, const char *source, int64_t expected, int64_t offset)
{
    return shard_seek(&h->shard, source, strlen(source), expected, offset, "test", 4, &h->fault);
}

/* Size of the rows reply, written if it fits. */
size_t harness_rows(const struct harness *h, int64_t n, const uint64_t *keys, uint32_t flags, void *out, size_t room)
{
    handle *handles = malloc((size_t)(n + 1) * sizeof *handles);
    size_t size = shard_rows_size(&h->shard, n, keys, flags, handles);
    if (size <= room)
        shard_rows_write(&h->shard, n, keys, flags, handles, out);
    free(handles);
    return size;
}

int64_t harness_scan(const struct harness *h, uint64_t *cursor, int64_t most, uint64_t *keys)
{
    return shard_scan(&h->shard, cursor, most, keys);
}

int64_t harness_changes(struct harness *h, int64_t since, uint64_t *keys, int64_t room)
{
    uint64_t *found;
    int64_t capacity, n = shard_changes(&h->shard, since, &found, &capacity);
    if (n > 0 && n <= room)
        memcpy(keys, found, (size_t)n * sizeof *keys);
    allocator_give(&h->allocator, found, (size_t)capacity * sizeof *found);
    return n;
}
