/* What a key is in memory.
 *
 *     header   64 bytes, one cache line: the fields of native/rows.py's record, the key, and three handles
 *     values   embedding, dense: dim float32, then state_dim float32 of the optimizer. sequence, record: a struct row_body
 *
 * A key without a row, counted and not admitted yet or remembered as evicted or forgotten, is a header alone, in a slab
 * class of its own: the class of a handle tells what is behind it, and no bit of the header has to.
 *
 * The id and the fence of a forget lie in a slab object of their own, `extra`: because most calls don't read them, as a
 * keyed digest of the id stands in the header of rows that are in no list; because
 * the rest then has one size, 64 + 256 bytes for SGD at 64 dimensions, which is a multiple of cache lines. A row that a
 * gradient made gets its id later, and moves once for it, into the class of rows that have a digest. The id's length lies
 * with it, and not in the header, which is full.
 *
 * Bytes of a row, decided before the layout; 64 dimensions, 12-byte ids:
 *
 *                                          SGD    Adagrad
 *     vector + optimizer state             256        512
 *     header                                64         64
 *     end of a 64 KiB chunk, chunk entry   1.6        4.1
 *     id, with its length, in 16 bytes      16         16
 *     index, at its worst load            30.1       30.1
 *     directory, reserve of segments        .3         .3
 *     places found last                     .7         .7
 *     change feed                            2          2
 *     together                           370.7      628.9
 *     over vector + state                1.448       1.23     (allowed: 1.45, 1.25)
 */
#ifndef TOW_ROW_H
#define TOW_ROW_H

#include <stdint.h>

#include "flush.h"
#include "order.h"
#include "standing.h"

#define ROW_MAX_DIM 4096
#define ROW_MAX_ID 512 /* bytes; sizes of extras are slab classes, of which there are SLAB_CLASSES */

struct row {
    uint64_t key;
    int64_t clock; /* of the last update */
    int64_t count; /* own events */
    int64_t updated_ms;
    int64_t last_seen; /* clock of the last own event: logQ's A */
    float gap;         /* logQ's B */
    float popularity;
    uint32_t check; /* of the id */
    handle extra;   /* of its row_extra, 0: neither id nor fence */
    union {
        struct order_links links; /* in one of the table's lists */
        uint64_t digest; /* of the id: rows of a table without limits are in no list, see is_known */
    };
    float values[];
};

/* Where an id was forgotten: the tombstone's place, and the shard's clock then. Own events before it don't count. */
struct fence {
    struct place place;
    int64_t clock;
} __attribute__((packed));

#define EXTRA_FENCED 0x8000u
struct row_extra {
    uint16_t head;         /* length of the id; EXTRA_FENCED */
    unsigned char bytes[]; /* id, then the fence */
};

#define EXTRA_MAX_BYTES (sizeof(struct row_extra) + ROW_MAX_ID + sizeof(struct fence))

static inline uint16_t extra_id_length(const struct row_extra *extra)
{
    return extra ? extra->head & (uint16_t)~EXTRA_FENCED : 0;
}

/* NULL: none. */
static inline struct fence *extra_fence(const struct row_extra *extra)
{
    return extra && extra->head & EXTRA_FENCED ? (struct fence *)(extra->bytes + extra_id_length(extra)) : NULL;
}

/* Entries of a sequence, oldest first; or the place of a value and the value. */
struct row_body {
    unsigned char *bytes; /* NULL: nothing */
    uint32_t size;        /* entries, or bytes of value */
    uint32_t capacity;    /* bytes */
} __attribute__((may_alias)); /* lies where others have floats */

/* The header of a stored record, HEADER in native/rows.py. */
struct row_record {
    int64_t clock, count, updated_ms, last_seen;
    float gap, popularity;
    uint32_t check;
    uint16_t entries, id_length;
};

_Static_assert(sizeof(struct row) == 64, "a header is a cache line");
_Static_assert(sizeof(struct row_record) == 48, "HEADER_BYTES");
_Static_assert(sizeof(struct fence) == 28, "packed");

/* x[i] = 2^(−x[i]) for n ≤ ROW_BLOCK numbers ≥ 0, halved of native/statistics.py bit for bit. O(n).
 *
 * Many at once, because each is a chain of sixteen steps: one after the other they took a tenth of an apply, side by side
 * in vector registers next to nothing.
 */
#define ROW_BLOCK 64
void row_halved(int n, double *x);

/* Folds count > 0 own events of a call that ends at `clock` into a row; observe of native/statistics.py, bit for bit.
 * O(log count). gap_rate in (0, 1]; faded = 2^(−(clock − last_seen)/half_life), as it was when the call began.
 */
void row_observe(struct row *row, int64_t count, float positives, int64_t clock, double gap_rate, double faded);

/* base^exponent by squaring, exponent ≥ 0; power of native/statistics.py. O(log exponent). */
double row_power(double base, int64_t exponent);

#endif
