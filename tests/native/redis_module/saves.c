/* Saves, loads, damages, copies and moves the shard that stdin describes; ends with 1 and a sentence where something is
 * wrong. stdin: u32 pairs, 2·pairs strings, u32 calls, calls strings; a string is u32 length and bytes.
 *
 * saves <seed> <flips>: flips, how many single bytes of the save are changed, 0: every one of them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "counting.h"
#include "defrag.h"
#include "mix.h"
#include "saved.h"

#define BLOCKS 64

struct save {
    unsigned char *blocks[BLOCKS];
    size_t sizes[BLOCKS];
    int count, next;
};

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state += MIX_GOLDEN;
    return mix(state) % below;
}

static void fail(const char *sentence, const char *detail)
{
    fprintf(stderr, "%s: %s\n", sentence, detail);
    exit(1);
}

static unsigned char *read_string(size_t *size)
{
    uint32_t n;
    if (fread(&n, 4, 1, stdin) != 1)
        fail("stdin", "ends");
    unsigned char *bytes = malloc((size_t)n + 1);
    if (n && fread(bytes, n, 1, stdin) != 1)
        fail("stdin", "ends in a string");
    *size = n;
    return bytes;
}

static void open_from_stdin(struct shard *s, struct allocator *a)
{
    uint32_t pairs, calls;
    char *words[256];
    size_t sizes[256], size;
    const char *names[128], *values[128];
    size_t name_sizes[128], value_sizes[128];
    struct fault fault;
    struct spec spec;
    if (fread(&pairs, 4, 1, stdin) != 1 || pairs > 128)
        fail("stdin", "no pairs");
    for (uint32_t i = 0; i < 2 * pairs; i++)
        words[i] = (char *)read_string(&sizes[i]);
    for (uint32_t i = 0; i < pairs; i++) {
        names[i] = words[2 * i];
        name_sizes[i] = sizes[2 * i];
        values[i] = words[2 * i + 1];
        value_sizes[i] = sizes[2 * i + 1];
    }
    if (!spec_parse(&spec, pairs, names, name_sizes, values, value_sizes, a, &fault) ||
        !shard_open(s, &spec, 1, a, &fault))
        fail("spec", fault.text);
    spec_close(&spec, a);
    for (uint32_t i = 0; i < 2 * pairs; i++)
        free(words[i]);
    if (!shard_seek(s, "t:0", 3, -1, 0, "begins", 6, &fault) || !shard_seek(s, "another:7", 9, -1, 5, "too", 3, &fault))
        fail("seek", fault.text);
    if (fread(&calls, 4, 1, stdin) != 1)
        fail("stdin", "no calls");
    for (uint32_t i = 0; i < calls; i++) {
        struct flush flush;
        enum shard_outcome outcome;
        unsigned char *blob = read_string(&size);
        if (!flush_parse(&flush, blob, size, s->table.dim, s->table.state_dim, &fault) ||
            !shard_apply(s, &flush, &outcome, &fault))
            fail("call", fault.text);
        if (outcome != SHARD_APPLIED)
            fail("call", "not applied");
        free(blob);
    }
}

static bool keep(void *context, const void *bytes, size_t n)
{
    struct save *save = context;
    if (save->count == BLOCKS || n > SAVED_BLOCK)
        fail("save", "too many blocks, or one too large");
    save->blocks[save->count] = malloc(n); /* exactly: reading past it is seen */
    memcpy(save->blocks[save->count], bytes, n);
    save->sizes[save->count++] = n;
    return true;
}

static const void *give_next(void *context, size_t *n)
{
    struct save *save = context;
    if (save->next == save->count)
        return NULL;
    *n = save->sizes[save->next];
    return save->blocks[save->next++];
}

static void release(struct save *save)
{
    for (int i = 0; i < save->count; i++)
        free(save->blocks[i]);
    *save = (struct save){0};
}

static bool same(const struct save *a, const struct save *b)
{
    if (a->count != b->count)
        return false;
    for (int i = 0; i < a->count; i++)
        if (a->sizes[i] != b->sizes[i] || memcmp(a->blocks[i], b->blocks[i], a->sizes[i]) != 0)
            return false;
    return true;
}

/* Loads; what comes of it is told, and nothing is held afterwards. */
static bool loads(struct save *save, int64_t left, struct fault *fault)
{
    struct allocator a;
    struct counting c;
    struct shard s;
    counting_open(&a, &c);
    c.left = left;
    save->next = 0;
    bool good = saved_read(&s, 2, &a, give_next, save, fault);
    if (good) {
        const char *wrong = shard_check(&s);
        if (wrong)
            fail("a loaded shard", wrong);
        shard_close(&s);
    }
    if (a.held || c.held)
        fail("memory is held after a load", good ? "a good one" : fault->text);
    return good;
}

static void expect_refused(struct save *save, const char *what)
{
    struct fault fault;
    if (loads(save, -1, &fault))
        fail("a damaged save was loaded", what);
    if (strncmp(fault.text, "TOWBAD ", 7) != 0)
        fail("another refusal than TOWBAD", fault.text);
}

static void flip_bytes(struct save *save, uint64_t flips)
{
    uint64_t all = 0;
    for (int i = 0; i < save->count; i++)
        all += save->sizes[i];
    for (uint64_t k = 0; k < (flips ? flips : all); k++) {
        uint64_t at = flips ? draw(all) : k;
        int i = 0;
        while (at >= save->sizes[i])
            at -= save->sizes[i++];
        unsigned char bit = (unsigned char)(1u << draw(8));
        save->blocks[i][at] ^= bit;
        expect_refused(save, "a bit was changed");
        save->blocks[i][at] ^= bit;
    }
}

static void cut(struct save *save, uint64_t cuts)
{
    struct save whole = *save;
    for (int i = 0; i < whole.count; i++) {
        save->count = i;
        expect_refused(save, "blocks are missing at the end");
        save->count = i + 1;
        for (uint64_t k = 0; k < (cuts ? cuts : whole.sizes[i]); k++) {
            size_t size = cuts ? draw(whole.sizes[i]) : k;
            save->blocks[i] = malloc(size + !size);
            memcpy(save->blocks[i], whole.blocks[i], size);
            save->sizes[i] = size;
            expect_refused(save, "a block is cut");
            free(save->blocks[i]);
        }
        *save = whole;
    }
    for (int i = 0; i + 1 < whole.count; i++) {
        save->blocks[i] = whole.blocks[i + 1];
        save->sizes[i] = whole.sizes[i + 1];
        save->blocks[i + 1] = whole.blocks[i];
        save->sizes[i + 1] = whole.sizes[i];
        expect_refused(save, "blocks are swapped");
        *save = whole;
        for (int j = i; j + 1 < whole.count; j++) {
            save->blocks[j] = whole.blocks[j + 1];
            save->sizes[j] = whole.sizes[j + 1];
        }
        save->count--;
        expect_refused(save, "a block is missing");
        *save = whole;
    }
    save->blocks[save->count] = whole.blocks[0];
    save->sizes[save->count++] = whole.sizes[0];
    struct fault fault;
    if (!loads(save, -1, &fault))
        fail("what follows a save hinders it", fault.text);
    *save = whole;
}

static void seal(struct save *save)
{
    uint64_t before = 0;
    for (int i = 0; i < save->count; i++) {
        struct saved_head head;
        memcpy(&head, save->blocks[i], sizeof head);
        head.checksum = checksum(save->blocks[i] + sizeof head, save->sizes[i] - sizeof head,
                                 mix(before ^ (uint64_t)i));
        memcpy(save->blocks[i], &head, sizeof head);
        before = head.checksum;
    }
}

/* Bytes changed by somebody who knows the checksum: loaded or refused, but never a crash. */
static void forge(struct save *save, int times)
{
    int loaded = 0;
    for (int k = 0; k < times; k++) {
        int i = (int)draw((uint64_t)save->count), n = 1 + (int)draw(3);
        unsigned char was[3];
        size_t at[3];
        for (int j = 0; j < n; j++) {
            at[j] = draw(save->sizes[i]);
            was[j] = save->blocks[i][at[j]];
            save->blocks[i][at[j]] = draw(2) ? (unsigned char)draw(256) : (unsigned char)(was[j] ^ 1u << draw(8));
        }
        struct fault fault;
        seal(save);
        loaded += loads(save, -1, &fault);
        while (n-- > 0)
            save->blocks[i][at[n]] = was[n];
    }
    seal(save);
    printf("%d of %d forged saves were loaded\n", loaded, times);
}

static void newer(struct save *save)
{
    uint32_t version = SAVED_VERSION + 1;
    memcpy(save->blocks[0] + 4, &version, 4);
    struct fault fault;
    if (loads(save, -1, &fault) || !strstr(fault.text, "format version 2; this module reads 1 to 1"))
        fail("a newer version", fault.text);
    version = SAVED_VERSION;
    memcpy(save->blocks[0] + 4, &version, 4);
}

static void without_memory(struct save *save)
{
    struct fault fault;
    int64_t left = 0;
    for (; !loads(save, left, &fault); left += 1 + left / 16)
        if (strncmp(fault.text, "OOM ", 4) != 0)
            fail("another refusal than OOM", fault.text);
    printf("loads with %" PRId64 " or fewer allocations\n", left);
}

/* What a server's defragmentation does: another block, the same bytes, the old one gone. */
struct moving {
    struct allocator *allocator;
    int moves, until_stop;
};

static void *move(void *context, void *block, size_t size)
{
    struct moving *m = context;
    if (draw(4) == 0)
        return NULL;
    void *there = allocator_take(m->allocator, size);
    memcpy(there, block, size);
    allocator_give(m->allocator, block, size);
    m->moves++;
    return there;
}

static bool stop(void *context)
{
    struct moving *m = context;
    return m->until_stop-- <= 0;
}

static void move_around(struct shard *s, const struct save *before)
{
    struct moving m = {.allocator = s->allocator};
    uint64_t cursor = 0, digest[2], again[2];
    saved_digest(s, digest);
    for (int pass = 0; pass < 3; pass++)
        do {
            m.until_stop = (int)draw(3);
            const char *wrong = shard_check(s);
            if (wrong)
                fail("while it is moved", wrong);
        } while (shard_defrag(s, move, &m, &cursor, stop));
    struct save after = {0};
    saved_write(s, keep, &after);
    saved_digest(s, again);
    if (!same(before, &after) || memcmp(digest, again, sizeof digest) != 0)
        fail("moved", "it is not the same any more");
    release(&after);
    printf("%d blocks were moved\n", m.moves);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        fail("usage", "saves <seed> <flips>");
    state = strtoull(argv[1], NULL, 10);
    uint64_t flips = strtoull(argv[2], NULL, 10), digests[3][2];
    struct allocator a, b;
    struct counting c, d;
    struct shard s, loaded, copied;
    struct save first = {0}, second = {0};
    struct fault fault;
    counting_open(&a, &c);
    counting_open(&b, &d);
    open_from_stdin(&s, &a);
    saved_write(&s, keep, &first);
    if (!saved_read(&loaded, 77, &b, give_next, &first, &fault) || !saved_copy(&copied, &loaded, 78, &b, &fault))
        fail("load", fault.text);
    const char *wrong = shard_check(&loaded);
    if (wrong)
        fail("loaded", wrong);
    if (memcmp(&s.meta, &loaded.meta, sizeof s.meta) != 0 || strcmp(s.last_seek, loaded.last_seek) != 0)
        fail("loaded", "other numbers");
    saved_write(&copied, keep, &second);
    saved_digest(&s, digests[0]);
    saved_digest(&loaded, digests[1]);
    saved_digest(&copied, digests[2]);
    if (memcmp(digests[0], digests[1], 16) != 0 || memcmp(digests[0], digests[2], 16) != 0)
        fail("digests", "differ");
    if (!same(&first, &second))
        fail("a copy", "is not saved as the original");
    release(&second);
    shard_close(&loaded);
    shard_close(&copied);
    if (b.held || d.held)
        fail("memory", "is held by closed shards");
    printf("%d blocks, %" PRIu64 " and %" PRIu64 "\n", first.count, digests[0][0], digests[0][1]);
    flip_bytes(&first, flips);
    cut(&first, flips ? 20 : 0);
    newer(&first);
    without_memory(&first);
    forge(&first, flips ? 200 : 3000);
    move_around(&s, &first);
    release(&first);
    shard_close(&s);
    if (a.held || c.held)
        fail("memory", "is held by the closed shard");
    return 0;
}
