/* How a key stands in a shard: embedding_store/standing.py. */
#ifndef TOW_STANDING_H
#define TOW_STANDING_H

enum standing {
    STANDING_MISSING,
    STANDING_ROW,
    STANDING_STUB,      /* counted, not admitted yet */
    STANDING_EVICTED,   /* had a row, which made room or expired */
    STANDING_FORGOTTEN, /* was forgotten: has a fence and no row */
};
#define STANDINGS 5

#endif
