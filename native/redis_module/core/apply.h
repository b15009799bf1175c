/* What one call does to the keys of a shard: embedding_store/{admission,merge,eviction}.py, bit for bit.
 *
 *     1. screen  what each key has; ids that are another's, events and gradients that a forget came before are left out
 *     2. plan    what each key becomes; every allocation of the call
 *     3. carry   missed decay, statistics, optimizer, appends, values
 *     4. limits  what is over the table's limits leaves, a bounded number
 *
 * Whatever can fail comes before the first change, so a call does all or nothing.
 */
#ifndef TOW_APPLY_H
#define TOW_APPLY_H

#include "feed.h"
#include "flush.h"
#include "table.h"

struct apply_counts {
    int64_t evicted, expired, forgotten, late, refused;
};

/* Applies a flush that was judged to a table. clock: the shard's after the call. now_ms: its wall clock. number: of the
 * feed's newest entry. *changed: whether an entry was added to it, with the next number. `sums` have reached the step of
 * `clock`. False: nothing has changed. O(keys · dim + evict_batch).
 */
bool apply(struct table *t, struct feed *feed, const struct decay_sums *sums, const struct flush *flush, int64_t clock,
           int64_t now_ms, int64_t number, bool *changed, struct apply_counts *counts, struct fault *fault);

#endif
