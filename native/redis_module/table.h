/* One shard of an embedding table in memory. Knows nothing of Redis: the command layer above it parses, replies,
 * persists and replicates.
 *
 * What it does is what embedding_store/merge.py does, bit for bit: initial vectors, own-event statistics, optimizer, ids
 * compared. What it doesn't do yet: missed decay, admission, eviction, fences of forgotten ids, sequences, records.
 *
 * Speed comes from overlapping cache misses. A batch goes in blocks of TABLE_BLOCK keys through stages, index slot, row,
 * neighbours in the order, and each stage prefetches for the next: about 32 misses are under way at once, where a key
 * at a time would wait for four in a row.
 *
 * A call either does all it is asked or returns a status and leaves rows, ids and order as they were: whatever can fail
 * (arguments, memory for rows, ids and index) comes before the first change.
 */
#ifndef TOW_TABLE_H
#define TOW_TABLE_H

#include "index.h"
#include "initial.h"
#include "optimizer.h"
#include "row.h"

#define TABLE_BLOCK 32
#define TABLE_MAX_BATCH (1 << 20) /* keys: bounds how long a call holds the server, and its scratch memory */

enum table_status {
    TABLE_OK,
    TABLE_NO_MEMORY,
    TABLE_BAD_SPEC,  /* a value out of its range */
    TABLE_BAD_BATCH, /* see table_reply.wrong */
};

struct table_spec {
    uint32_t dim; /* 1 … ROW_MAX_DIM */
    uint32_t unused;
    uint64_t seed;
    double initial_std;
    double gap_rate;  /* (0, 1] */
    double half_life; /* events, ≥ 1 */
    struct optimizer optimizer;
    uint64_t salt; /* of the index, a secret of this process; see mix_place */
};

struct table {
    struct allocator *allocator;
    struct table_spec spec;
    struct initial initial;
    uint32_t state_dim, values; /* values = dim + state_dim */
    int row_class;
    int id_classes[ROW_MAX_ID / 16 + 2]; /* by (length + 2 + 15) / 16 */
    struct slab slab;
    struct index index;
    struct order order;
    int64_t clock; /* of the last call */
};

/* Own events and gradients of n keys. The arrays are the caller's, and aligned for their types. Keys are distinct; if one
 * is not, it is applied as often as it comes, in order, as the same id.
 */
struct table_batch {
    int64_t n;
    const uint64_t *keys;
    const float *gradients; /* (n, dim) summed per key, or NULL */
    const int64_t *counts;  /* (n,) own events, ≥ 0 */
    const float *positives; /* (n,) own positive events, weighted */
    const uint32_t *checks; /* (n,) check bits of the ids */
    const int64_t *id_bounds; /* (n + 1,) ids[id_bounds[i] … id_bounds[i + 1]), rising from 0 to ids_size */
    const unsigned char *ids;
    int64_t ids_size;
    int64_t clock; /* after the call; never less than the last call's */
    int64_t now_ms;
    double rate; /* of the step in which the call ends */
};

struct table_reply {
    int64_t created;
    int64_t touched; /* rows written, created ones included */
    int64_t refused; /* own events, or 1 for a gradient alone, of an id whose key is another id's */
    int64_t wrong;   /* TABLE_BAD_BATCH: the first key whose column is, or −1: sizes or pointers are */
};

/* TABLE_OK, TABLE_NO_MEMORY or TABLE_BAD_SPEC; unless OK, nothing is held. */
enum table_status table_open(struct table *t, const struct table_spec *spec, struct allocator *allocator);

/* O(memory). */
void table_close(struct table *t);

/* vectors (n, dim), and unless NULL: state (n, state_dim), found (n,) 0 or 1, records (n,). Missing keys: the initial
 * vector and state, a record of zeros. Never writes to the table. O(n · dim).
 */
enum table_status table_lookup(const struct table *t, int64_t n, const uint64_t *keys, float *vectors, float *state,
                               uint8_t *found, struct row_record *records);

/* A row comes to be where there is an own event or a gradient that is not all zero; others are left alone. Written rows
 * move to the back of the order, in the order of the batch. O(n · dim), one split of an index segment a new row at most.
 */
enum table_status table_apply(struct table *t, const struct table_batch *batch, struct table_reply *reply);

/* Removes the rows of n keys, and returns how many there were. O(n). */
int64_t table_forget(struct table *t, int64_t n, const uint64_t *keys);

/* The id of a key's row, NULL: no row or no id. O(1). */
const struct row_id *table_id(const struct table *t, uint64_t key);

/* The first `most` keys from the least recently updated on; returns how many there are. O(most). */
int64_t table_oldest(const struct table *t, int64_t most, uint64_t *keys);

/* NULL, or what is wrong with the structure. For tests: O(rows). */
const char *table_check(const struct table *t);

#endif
