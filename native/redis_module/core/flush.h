/* What one TOW.APPLY carries for one shard, and the bytes it comes in. Knows nothing of Redis.
 *
 * A blob, little-endian, columns end to end in this order, its length exactly theirs:
 *
 *     struct flush_head                112 bytes
 *     ranges     starts i64[r], stops i64[r], source lengths u16[r], sources: "topic id:partition" end to end
 *     keys       keys u64[n], counts i64[n], positives f32[n], checks u32[n], id lengths u16[n], ids end to end
 *     gradients  f32[n·dim]           if FLUSH_GRADIENTS: summed per key, or in mode deltas the change of vectors
 *     state      f32[n·state_dim]     if FLUSH_STATE: the change of optimizer state, in mode deltas
 *     appends    rows u32[m], entries struct entry[m]                          sequence tables
 *     values     rows u32[v], places struct place[v], lengths u32[v], values end to end    record tables
 *     own        rows u32[e], places struct place[e], positives f32[e]         if FLUSH_OWN: every own event in counts
 *     forgets    rows u32[f], places struct place[f], checks u32[f]            rows distinct; checks if FLUSH_CHECKS
 *
 * Own events' places matter to a key that was forgotten, alone: a caller may leave them out, and send them when it is asked to
 * (FAULT_PLACES; nothing is applied then). Without they would be a fifth of all that is sent, stored in the append-only file
 * and read again.
 *
 * Rows are indices into keys. A place whose time is PLACE_NONE comes before every event. The meaning of each column is
 * that of `Part` in embedding_store/flush_parts.py.
 */
#ifndef TOW_FLUSH_H
#define TOW_FLUSH_H

#include <stdbool.h>
#include <stddef.h>

#include "fault.h"
#include "unaligned.h"

#define FLUSH_VERSION 2u /* of what is sent; calls of version 1, which know no FLUSH_UNPLACED, are read as well */
#define FLUSH_MAX_KEYS (1 << 20) /* keys, and likewise appends, values, own events, forgets: what a call holds the server for */
#define FLUSH_MAX_RANGES 65536u
#define FLUSH_MAX_SOURCE 600u /* bytes of a source's name */

enum {
    FLUSH_GRADIENTS = 1,
    FLUSH_DELTAS = 2, /* mode: else gradients */
    FLUSH_STATE = 4,
    FLUSH_OWN = 8,
    FLUSH_CHECKS = 16,
    FLUSH_UNPLACED = 32, /* places of own events are known and were not sent: where one is needed the call is refused */
    FLUSH_FLAGS = 63,
    FLUSH_FLAGS_1 = 31, /* of version 1 */
};

#define PLACE_NONE INT64_MIN

struct place {
    int64_t time_ms, place;
    uint32_t partition;
} __attribute__((packed, may_alias)); /* at any address */

struct entry {
    int64_t time_ms, place;
    uint64_t item;
    uint32_t partition;
    float weight;
} __attribute__((packed, may_alias));

struct flush_head {
    uint32_t version, flags;
    int64_t generation, events, event_time_ms, produced_ms, now_ms;
    uint32_t ranges, keys, appends, values, own, forgets;
    uint64_t sources_size, ids_size, values_size;
    uint32_t dim, state_dim; /* what the sender takes the table for: checked, so that a mistake is named and not read */
    uint64_t unused;
};

_Static_assert(sizeof(struct place) == 20, "ORDER_BYTES");
_Static_assert(sizeof(struct entry) == 32, "ENTRY_BYTES");
_Static_assert(sizeof(struct flush_head) == 112, "FLUSH_HEAD_BYTES");

/* A parsed blob: the head, and where its columns lie. Columns that have no elements may be any pointer. */
struct flush {
    struct flush_head head;
    const any_i64 *starts, *stops;
    const any_u16 *source_lengths;
    const char *sources;
    const any_u64 *keys;
    const any_i64 *counts;
    const any_f32 *positives;
    const any_u32 *checks;
    const any_u16 *id_lengths;
    const unsigned char *ids;
    const any_f32 *gradients; /* NULL: none */
    const any_f32 *state;     /* NULL: none */
    const any_u32 *append_rows;
    const struct entry *appends;
    const any_u32 *value_rows;
    const struct place *value_places;
    const any_u32 *value_lengths;
    const unsigned char *values;
    const any_u32 *own_rows; /* NULL: places of own events are not here */
    const struct place *own_places;
    const any_f32 *own_positives;
    const any_u32 *forget_rows;
    const struct place *forget_places;
    const any_u32 *forget_checks; /* NULL: whatever id the key is of */
};

/* Reads a blob for a table of `dim` and `state_dim`, and checks everything that can be checked without the shard: version,
 * flags; sizes against the length; lengths of ids and sources; rows in range, forgets' rows distinct; counts not negative,
 * own events as many as counted; ranges not empty, start ≥ 0, start < stop, sources distinct; times and numbers not
 * negative. A false result has its reason in `fault`, with both values. Pure; O(blob's columns but gradients).
 */
bool flush_parse(struct flush *out, const void *blob, size_t size, uint32_t dim, uint32_t state_dim,
                 struct fault *fault);

#endif
