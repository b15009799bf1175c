/* One (table, shard): rows, marks, offsets, clock and change feed, which move together or not at all. Knows nothing of
 * Redis: the command layer parses, replies, persists and replicates.
 */
#ifndef TOW_SHARD_H
#define TOW_SHARD_H

#include "feed.h"
#include "flush.h"
#include "offsets.h"
#include "spec.h"
#include "table.h"

struct shard_meta {
    int64_t generation, clock, event_time_ms, produced_ms;
    int64_t skipped, seeks;
    int64_t now_ms; /* the largest wall clock that a call brought */
    int64_t evicted, expired, forgotten, late, refused;
    int64_t feed; /* number of the newest entry */
};

#define SHARD_REASON 1024
struct shard {
    struct allocator *allocator;
    struct spec spec;
    struct shard_meta meta;
    char last_seek[SHARD_REASON]; /* source, from, to and reason of the newest seek; ends with 0 */
    struct offsets offsets;
    struct table table;
    struct feed feed;
    struct decay_sums sums;
};

enum shard_outcome { SHARD_APPLIED, SHARD_DUPLICATE, SHARD_CONFLICT };

/* False: no memory, or a spec out of its ranges; nothing is held then. `spec`'s text is copied. */
bool shard_open(struct shard *s, const struct spec *spec, uint64_t salt, struct allocator *allocator,
                struct fault *fault);

/* O(memory). */
void shard_close(struct shard *s);

/* As EmbeddingStore.apply, for one shard. False: nothing has changed, the reason is in `fault`. */
bool shard_apply(struct shard *s, const struct flush *flush, enum shard_outcome *outcome, struct fault *fault);

/* Compare-and-set of an offset; expected −1: unset. False: see `fault`. */
bool shard_seek(struct shard *s, const char *source, size_t length, int64_t expected, int64_t offset,
                const char *reason, size_t reason_length, struct fault *fault);

/* max(stored, generation), now stored. If it is news the feed is emptied, and its number jumps past all that this shard ever
 * had, also before it was restored from an older save: generation g begins at number g * 2^40. Older positions are refused.
 */
int64_t shard_raise(struct shard *s, int64_t generation);

/* Keys that are counted and not admitted; forgotten or evicted keys without a row; rows. */
int64_t shard_stubs(const struct shard *s);
int64_t shard_remembered(const struct shard *s);
int64_t shard_rows(const struct shard *s);

/* A reply with n keys' rows:
 *
 *     struct rows_head        64 bytes
 *     keys       u64[n]       if ROWS_KEYS
 *     records    struct row_record[n]     of rows and of stubs; zeros for others. `entries`: of a sequence, or bytes of a value
 *     vectors    f32[n·dim]   decayed to the head's clock, or as stored if ROWS_STORED
 *     state      f32[n·state_dim]         if ROWS_STATE
 *     places     struct place[n]          record tables: of the value, PLACE_NONE where there is none
 *     entries    struct entry[Σ entries]  sequence tables
 *     standings  u8[n]        enum standing
 *     values     u8[Σ entries]            record tables, end to end
 *     ids        u8[Σ id_length] of rows, end to end; unless ROWS_NO_IDS, where every id_length is 0
 *
 * so that every column of numbers is aligned if the reply is.
 */
enum { ROWS_STATE = 1, ROWS_STORED = 2, ROWS_KEYS = 4, ROWS_NO_IDS = 8, ROWS_FLAGS = 15 };

struct rows_head {
    uint32_t version, flags;
    int64_t clock, feed, event_time_ms, produced_ms; /* the shard's, when the rows were read */
    uint32_t n, dim, state_dim, unused;
    uint64_t tail_size; /* of places, entries, standings, values and ids */
};
#define ROWS_VERSION 1u
_Static_assert(sizeof(struct rows_head) == 64, "64");

/* Bytes of the reply to n keys, for which `handles` (n) are found along the way. Keys may repeat. O(n), or O(1) where a
 * row's part has one size: then shard_rows_write finds them.
 */
size_t shard_rows_size(const struct shard *s, int64_t n, const any_u64 *keys, uint32_t flags, handle *handles);

/* Writes it into `out`, of so many bytes, aligned to 8. O(bytes). */
void shard_rows_write(const struct shard *s, int64_t n, const any_u64 *keys, uint32_t flags, handle *handles,
                      unsigned char *out);

/* A scan: up to `most` ≥ 1 keys that have a row, from *cursor on; *cursor is then where to go on, 0: there is no more. A key
 * that has a row throughout is named, once, or twice if the row moves meanwhile (it gets its id, or outlives its fence). Of
 * others the change feed since the first call tells. Any cursor up to SCAN_MAX_CURSOR will do. O(most) in the mean, O(slots
 * of a chunk) at least.
 */
#define SCAN_MAX_CURSOR ((UINT64_C(1) << 33) - 1)
int64_t shard_scan(const struct shard *s, uint64_t *cursor, int64_t most, uint64_t *keys);

/* Changed keys since feed position `since`, without repeats, sorted by their numbers. −1: the feed doesn't reach back. −2:
 * no memory. *keys, NULL if there are none, is to be given back to the allocator: *capacity·8 bytes. O(keys).
 */
int64_t shard_changes(const struct shard *s, int64_t since, uint64_t **keys, int64_t *capacity);

/* NULL, or what is wrong with the structure. For tests: O(rows). */
const char *shard_check(const struct shard *s);

#endif
