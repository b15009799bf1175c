/* Comparing places in time: (event time, partition, place), the order of sequence entries. embedding_store/orders.py. */
#ifndef TOW_PLACES_H
#define TOW_PLACES_H

#include "flush.h"

/* Whether a comes strictly after b. */
static inline bool place_later(const struct place *a, const struct place *b)
{
    if (a->time_ms != b->time_ms)
        return a->time_ms > b->time_ms;
    if (a->partition != b->partition)
        return a->partition > b->partition;
    return a->place > b->place;
}

static inline struct place place_of_entry(const struct entry *e)
{
    return (struct place){e->time_ms, e->place, e->partition};
}

/* Whether an own event counts although its key is forgotten at `tombstone`: it comes after it in event time, and if it is
 * of the same partition in the stream too, so that it makes no difference whether a key's earlier events come in the
 * tombstone's call or in the one before.
 */
static inline bool place_outlives(const struct place *event, const struct place *tombstone)
{
    return tombstone->time_ms != PLACE_NONE && place_later(event, tombstone) &&
           !(event->partition == tombstone->partition && event->place < tombstone->place);
}

#endif
