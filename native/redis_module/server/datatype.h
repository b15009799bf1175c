/* What a key of the module holds, and how the server saves, copies, counts, moves and frees it. */
#ifndef TOW_DATATYPE_H
#define TOW_DATATYPE_H

#include "saved.h"
#include "server_api.h"
#include "shard.h"

struct value {
    struct allocator allocator; /* the server's, with an account of this value */
    struct shard shard;
    bool ready;                 /* false: half restored from an append-only file, see TOW.RESTORE; `loader` goes on */
    struct saved_loader loader;
};

extern RedisModuleType *datatype;

/* Registers the type, and draws this process' salt. False: the server refuses. */
bool datatype_register(RedisModuleCtx *ctx, void (*ask_huge)(void *context, void *at)); /* NULL: nobody */

uint64_t datatype_salt(void);

/* A value without a shard, not ready. NULL: no memory. */
struct value *value_new(void);

/* O(memory). */
void value_free(struct value *v);

/* Bytes that it takes. O(1). */
size_t value_memory(const struct value *v);

#endif
