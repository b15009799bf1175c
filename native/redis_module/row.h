/* What a row is in memory.
 *
 *     header   64 bytes, one cache line: the fields of native/rows.py's record, the key, and three handles
 *     vector   dim float32
 *     state    state_dim float32 of the optimizer
 *
 * and in a slab object of its own, of 2 + length bytes, the id. The id is apart because most calls don't read it; because
 * the rest then has one size, 64 + 256 bytes for SGD at 64 dimensions, which is a multiple of cache lines; and because a
 * row that a gradient made gets its id later, and must not move for it. Its length lies with it, and not in the header,
 * which is full.
 *
 * Bytes of a row, decided before the layout; 64 dimensions, 12-byte ids:
 *
 *                                          SGD    Adagrad
 *     vector + optimizer state             256        512
 *     header                                64         64
 *     end of a 64 KiB chunk, chunk entry   1.6        4.1
 *     id, with its length, in 16 bytes      16         16
 *     index, at its worst load            19.7       19.7
 *     directory, reserve of segments        .3         .3
 *     together                             358        616
 *     over vector + state                 1.40       1.20     (allowed: 1.45, 1.25)
 *
 * There is no number of the last change: the feed will find its place in the order by nodes of its own, one a call,
 * which cost nothing per row.
 */
#ifndef TOW_ROW_H
#define TOW_ROW_H

#include <stdint.h>

#include "order.h"

#define ROW_MAX_DIM 4096
#define ROW_MAX_ID 512 /* bytes; sizes of ids are slab classes, of which there are SLAB_CLASSES */

struct row {
    uint64_t key;
    int64_t clock; /* of the last update */
    int64_t count; /* own events */
    int64_t updated_ms;
    int64_t last_seen; /* clock of the last own event: logQ's A */
    float gap;         /* logQ's B */
    float popularity;
    uint32_t check; /* of the id */
    handle id;      /* of its row_id, 0: none */
    struct order_links links;
    float values[]; /* vector, state */
};

struct row_id {
    uint16_t length;
    unsigned char bytes[];
};

/* The header of a stored record, HEADER in native/rows.py. */
struct row_record {
    int64_t clock, count, updated_ms, last_seen;
    float gap, popularity;
    uint32_t check;
    uint16_t entries, id_length;
};

_Static_assert(sizeof(struct row) == 64, "a header is a cache line");
_Static_assert(sizeof(struct row_record) == 48, "HEADER_BYTES");

/* x[i] = 2^(−x[i]) for n ≤ ROW_BLOCK numbers ≥ 0, halved of native/statistics.py bit for bit. O(n).
 *
 * Many at once, because each is a chain of sixteen divisions: one after the other they took a sixth of an apply, side by
 * side in vector registers next to nothing.
 */
#define ROW_BLOCK 32
void row_halved(int n, double *x);

/* Folds count > 0 own events of a call that ends at `clock` into a row; observe of native/statistics.py, bit for bit.
 * O(log count). gap_rate in (0, 1]; faded = 2^(−(clock − last_seen)/half_life), as it was when the call began.
 */
void row_observe(struct row *row, int64_t count, float positives, int64_t clock, double gap_rate, double faded);

/* base^exponent by squaring, exponent ≥ 0; power of native/statistics.py. O(log exponent). */
double row_power(double base, int64_t exponent);

#endif
