/* TOW.LOOKUP, TOW.SCAN and TOW.CHANGES: any arguments, against a live shard of every kind. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

#define MOST 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An array whose end is the end of its memory. */
static void *array(size_t count, size_t size)
{
    void *taken = malloc(count * size + !count);
    if (!taken)
        abort();
    return taken;
}

static void rows(struct world *w, struct decisions *d)
{
    uint32_t n = below(d, MOST), flags = below(d, 8), shift = below(d, 8);
    unsigned char *blob = array(n * 8 + shift, 1);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = below(d, 8) ? world_key(byte(d)) : word(d);
        memcpy(blob + shift + i * 8, &key, 8);
    }
    const any_u64 *keys = (const any_u64 *)(blob + shift);
    handle *handles = array(n, sizeof *handles);
    size_t bytes = shard_rows_size(&w->shard, n, keys, flags, handles);
    unsigned char *reply = array(bytes, 1);
    memset(reply, 0xA5, bytes);
    shard_rows_write(&w->shard, n, keys, flags, handles, reply);
    struct rows_head head;
    if (bytes < sizeof head)
        found("a reply shorter than its head");
    memcpy(&head, reply, sizeof head);
    if (head.version != ROWS_VERSION || head.n != n || head.tail_size > bytes)
        found("a reply whose head is wrong");
    free(reply);
    free(handles);
    free(blob);
}

static void scan(struct world *w, struct decisions *d)
{
    uint64_t cursor = edge(d);
    int64_t most = 1 + below(d, MOST);
    uint64_t *keys = array((size_t)most, sizeof *keys);
    int64_t n = shard_scan(&w->shard, &cursor, most, keys);
    if (n < 0 || n > most)
        found("a scan of more keys than asked for");
    int64_t all = 0, calls = 0;
    cursor = 0;
    do {
        all += shard_scan(&w->shard, &cursor, most, keys);
        if (calls++ > 10000)
            found("a scan that does not end");
    } while (cursor);
    if (all != shard_rows(&w->shard))
        found("a scan of another number of rows than there are");
    free(keys);
}

static void changes(struct world *w, struct decisions *d)
{
    int64_t since = below(d, 2) ? w->shard.meta.feed - below(d, 16) : (int64_t)edge(d), n = 0;
    uint64_t *keys = NULL;
    w->counting.left = allocations(d, 8, 2);
    int64_t changed = shard_changes(&w->shard, since, &keys, &n);
    w->counting.left = -1;
    for (int64_t i = 1; i < changed; i++)
        if (keys[i - 1] >= keys[i])
            found("changes that do not rise");
    if (changed > n || changed < -2)
        found("changes that are more than there is room for");
    if (changed >= 0)
        allocator_give(&w->allocator, keys, (size_t)n * sizeof *keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct decisions d = {data, data + size};
    if (!world_open(&w, &d))
        return 0;
    for (int turns = 0; turns < 8 && left(&d); turns++) {
        world_live(&w, &d, 4);
        rows(&w, &d);
        scan(&w, &d);
        changes(&w, &d);
    }
    world_close(&w);
    return 0;
}
