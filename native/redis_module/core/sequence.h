/* Sequences: a key's largest entries, oldest first. native/sequences.py. */
#ifndef TOW_SEQUENCE_H
#define TOW_SEQUENCE_H

#include "flush.h"

/* Whether a comes after b in the order (time_ms, partition, place, item, weight bits). The last two only make the order
 * total: without them two entries at one place could depend on who came first.
 */
bool entry_after(const struct entry *a, const struct entry *b);

/* Sorts m indices into `appends` so that their entries rise. O(m) where they rise already, O(m·log m) otherwise. */
void sequence_sort(const struct entry *appends, uint32_t *order, uint32_t m, uint32_t *spare);

/* out[0 … size) = the largest `size` of `stored` entries, rising, and the m appends of `order`, rising. O(size + m). */
void sequence_merge(const struct entry *stored, uint32_t length, const struct entry *appends, const uint32_t *order,
                    uint32_t m, struct entry *out, uint32_t size);

#endif
