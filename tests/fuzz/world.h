/* A live shard with an allocator that can be made to fail, and calls for it, all from decisions. */
#ifndef WORLD_H
#define WORLD_H

#include "counting.h"
#include "decisions.h"
#include "shard.h"

#define WORLD_KEYS 40 /* all keys that valid calls name */
#define WORLD_CALL (1 << 16)

struct world {
    struct allocator allocator;
    struct counting counting;
    struct shard shard;
    uint32_t dim, state_dim;
    int64_t next[2], time_ms, now_ms; /* of valid calls: next offset of each source, newest times */
};

/* False: the decisions are not a table; nothing is held then. */
bool world_open(struct world *w, struct decisions *d);

/* Aborts where memory was not given back. */
void world_close(struct world *w);

/* Writes a call that continues the last valid one, and returns its bytes, at most WORLD_CALL. */
size_t world_call(struct world *w, struct decisions *d, unsigned char *out);

/* Changes, cuts or lengthens up to `size` bytes; `room` is what `bytes` has. Returns the new size. */
size_t damage(struct decisions *d, unsigned char *bytes, size_t size, size_t room);

/* Parses and applies a copy of a call that ends where its memory ends, at any address, perhaps short of memory. A refused
 * call must leave the shard as it was, which is looked at now and then. Returns whether it was applied.
 */
bool world_apply(struct world *w, struct decisions *d, const unsigned char *call, size_t size);

/* Runs a few calls, most of them valid. */
void world_live(struct world *w, struct decisions *d, int calls);

/* Prints the sentence and aborts, which the fuzzer takes for a find. */
_Noreturn void found(const char *sentence);

uint64_t world_key(uint32_t number);

#endif
