/* Moves a shard's memory to where the server wants it. Knows nothing of Redis. */
#ifndef TOW_DEFRAG_H
#define TOW_DEFRAG_H

#include "shard.h"

/* Offers blocks of the shard to `move`, which returns where a block is from now on, its bytes copied and the old one given
 * back, or NULL: it stays. Goes on from *cursor, 0: from the beginning; ends when all have been offered (false) or after
 * the block at which `stop` returns true (true: go on later). What changed since is offered or not. The struct itself
 * stays where it is: its parts point to one another. O(bytes offered), at most a chunk's objects between two stops.
 */
bool shard_defrag(struct shard *s, void *(*move)(void *context, void *block, size_t size), void *context,
                  uint64_t *cursor, bool (*stop)(void *context));

#endif
