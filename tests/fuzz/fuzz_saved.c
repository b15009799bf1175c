/* What RDB files, RESTORE and replicas bring: saves damaged with and without right checksums, at every length.
 *
 * A wrong checksum ends the loader at once, so most damage is sealed anew: what is behind the checksum must bear it too.
 */
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "mix.h"
#include "saved.h"
#include "world.h"

#define ROOM (1 << 20)
#define MOST_BLOCKS 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct save {
    unsigned char bytes[ROOM];
    size_t size;
    size_t starts[MOST_BLOCKS + 1]; /* of blocks, and where the last one ends */
    uint32_t blocks, taken;         /* taken: by the loader */
    unsigned char *given;           /* a copy of the last block taken, whose end is the end of its memory */
};

static bool keep(void *context, const void *bytes, size_t n)
{
    struct save *s = context;
    if (s->blocks == MOST_BLOCKS || s->size + n > ROOM)
        return false;
    memcpy(s->bytes + s->size, bytes, n);
    s->starts[s->blocks++] = s->size;
    s->size += n;
    s->starts[s->blocks] = s->size;
    return true;
}

static const void *next(void *context, size_t *n)
{
    struct save *s = context;
    free(s->given);
    s->given = NULL;
    if (s->taken == s->blocks)
        return NULL;
    *n = s->starts[s->taken + 1] - s->starts[s->taken];
    s->given = malloc(*n + !*n);
    if (!s->given)
        abort();
    memcpy(s->given, s->bytes + s->starts[s->taken++], *n);
    return s->given;
}

static struct saved_head *head_of(struct save *s, uint32_t block)
{
    return (struct saved_head *)(s->bytes + s->starts[block]); /* only read and written by memcpy */
}

/* Right sizes, numbers and checksums, whatever the blocks hold. */
static void seal(struct save *s)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->blocks; i++) {
        struct saved_head head;
        size_t size = s->starts[i + 1] - s->starts[i];
        if (size < sizeof head)
            return;
        memcpy(&head, head_of(s, i), sizeof head);
        head.size = (uint32_t)(size - sizeof head);
        head.number = i;
        head.checksum = sum = checksum(s->bytes + s->starts[i] + sizeof head, head.size, mix(sum ^ i));
        memcpy(head_of(s, i), &head, sizeof head);
    }
}

/* The n-th record of the first block, and where it ends; false: there is none. */
static bool record_at(const struct save *s, uint32_t n, size_t *start, size_t *stop)
{
    size_t at = sizeof(struct saved_head), end = s->starts[1];
    for (;;) {
        struct saved_record record;
        if (at + sizeof record > end)
            return false;
        memcpy(&record, s->bytes + at, sizeof record);
        *start = at;
        *stop = at + sizeof record + record.size;
        if (*stop > end)
            return false;
        if (!n--)
            return true;
        at = *stop;
    }
}

/* Moves what follows the first block's byte `from` to `to`. */
static void shift(struct save *s, size_t from, size_t to)
{
    if (s->size - from + to > ROOM)
        return;
    memmove(s->bytes + to, s->bytes + from, s->size - from);
    s->size = s->size - from + to;
    for (uint32_t i = 1; i <= s->blocks; i++)
        s->starts[i] = s->starts[i] - from + to;
}

static void change_record(struct save *s, struct decisions *d)
{
    size_t start, stop;
    if (!record_at(s, byte(d), &start, &stop))
        return;
    uint64_t value = edge(d);
    size_t inside = sizeof(struct saved_record) + byte(d) % 160;
    int32_t change = below(d, 2) ? 1 : -1;
    struct saved_head head;
    memcpy(&head, s->bytes, sizeof head);
    switch (below(d, 6)) {
    case 0: /* missing */
        shift(s, stop, start);
        head.records--;
        break;
    case 1: { /* twice */
        size_t size = stop - start;
        if (s->size + size > ROOM)
            return;
        shift(s, stop, stop + size);
        memcpy(s->bytes + stop, s->bytes + start, size);
        head.records++;
        break;
    }
    case 2: { /* a byte longer or shorter */
        struct saved_record record;
        memcpy(&record, s->bytes + start, sizeof record);
        if (change < 0 && !record.size)
            return;
        record.size += (uint32_t)change;
        memcpy(s->bytes + start, &record, sizeof record);
        shift(s, stop, stop + (size_t)(int64_t)change);
        break;
    }
    case 3: /* of another type, standing or with other flags */
        s->bytes[start + 4 + below(d, 4)] = (unsigned char)byte(d);
        break;
    default: /* another number in it */
        if (start + inside < stop)
            memcpy(s->bytes + start + inside, &value, stop - start - inside < 8 ? stop - start - inside : 8);
    }
    memcpy(s->bytes, &head, sizeof head);
}

static void change_blocks(struct save *s, struct decisions *d)
{
    if (below(d, 2) && s->blocks < MOST_BLOCKS) {
        size_t first = s->starts[1];
        if (s->size + first <= ROOM) /* the first one comes again, at the end */
            keep(s, s->bytes, first);
    } else if (s->blocks > 1) {
        s->blocks--;
        s->size = s->starts[s->blocks];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w, loaded;
    static struct save save;
    struct decisions d = {data, data + size};
    if (!world_open(&w, &d))
        return 0;
    world_live(&w, &d, 1 + (int)below(&d, 8));
    save.size = save.blocks = save.taken = 0;
    if (!saved_write(&w.shard, keep, &save))
        found("a small shard that is a large save");
    uint32_t how = byte(&d);
    bool whole = how < 32;
    if (!whole) {
        for (uint32_t times = 1 + below(&d, 3); times; times--) {
            uint32_t what = below(&d, 8);
            if (what == 0)
                change_blocks(&save, &d);
            else if (what < 6)
                change_record(&save, &d);
            else {
                size_t last = save.starts[save.blocks - 1];
                size_t bytes = damage(&d, save.bytes + last, save.size - last, ROOM - last);
                save.size = save.starts[save.blocks] = last + bytes;
            }
        }
        if (how < 240)
            seal(&save);
    }

    memset(&loaded, 0, sizeof loaded);
    counting_open(&loaded.allocator, &loaded.counting);
    loaded.counting.left = allocations(&d, 6, 32);
    bool short_of_memory = loaded.counting.left >= 0;
    struct fault fault = {""};
    bool good = saved_read(&loaded.shard, 0x7654321, &loaded.allocator, next, &save, &fault);
    loaded.counting.left = -1;
    while (next(&save, &(size_t){0})) /* those that the loader did not want */
        ;
    if (!good) {
        if (loaded.allocator.held || loaded.counting.held)
            found("a save that was refused holds memory");
        if (!*fault.text || !memchr(fault.text, 0, sizeof fault.text))
            found("a refusal without a sentence");
        if (whole && !short_of_memory)
            found(fault.text);
    } else {
        uint64_t before[2], after[2];
        const char *wrong = shard_check(&loaded.shard);
        if (wrong)
            found(wrong);
        saved_digest(&w.shard, before);
        saved_digest(&loaded.shard, after);
        if (whole && memcmp(before, after, sizeof before) != 0)
            found("a save that is another shard when it is loaded");
        loaded.dim = loaded.shard.spec.dim;
        loaded.state_dim = loaded.dim ? optimizer_state_dim(loaded.shard.spec.optimizer.kind, loaded.dim) : 0;
        if (loaded.dim <= 8)
            world_live(&loaded, &d, 4);
        world_close(&loaded);
    }
    world_close(&w);
    return 0;
}
