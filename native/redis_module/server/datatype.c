#include "datatype.h"

#include <string.h>

#include "defrag.h"

#define NAME "towlshard" /* nine characters, by which an RDB file knows the type */
#define ENCVER 1         /* of what is around the blocks; theirs is SAVED_VERSION */

RedisModuleType *datatype;
static uint64_t salt;
static void (*huge)(void *context, void *at);

static void *take(void *context, size_t size)
{
    (void)context;
    return RedisModule_TryAlloc ? RedisModule_TryAlloc(size) : RedisModule_Alloc(size);
}

static void give(void *context, void *block, size_t size)
{
    (void)context;
    (void)size;
    RedisModule_Free(block);
}

struct value *value_new(void)
{
    struct value *v = take(NULL, sizeof *v);
    if (v) {
        memset(v, 0, sizeof *v);
        v->allocator = (struct allocator){take, give, NULL, 0, huge};
        saved_load_begin(&v->loader, &v->shard, salt, &v->allocator);
    }
    return v;
}

void value_free(struct value *v)
{
    if (v->ready)
        shard_close(&v->shard);
    else
        saved_load_abandon(&v->loader);
    RedisModule_Free(v);
}

size_t value_memory(const struct value *v)
{
    return sizeof *v + v->allocator.held;
}

uint64_t datatype_salt(void)
{
    return salt;
}

static bool save_block(void *context, const void *bytes, size_t n)
{
    RedisModule_SaveStringBuffer(context, bytes, n);
    return !RedisModule_IsIOError(context);
}

/* A value that is not ready is saved as an empty string: what it has is of no use, and a file must not become unreadable
 * for it.
 */
static void rdb_save(RedisModuleIO *io, void *value)
{
    struct value *v = value;
    if (v->ready)
        saved_write(&v->shard, save_block, io);
    else
        RedisModule_SaveStringBuffer(io, "", 0);
}

static void *refuse(RedisModuleIO *io, struct value *v, const char *why)
{
    RedisModule_LogIOError(io, "warning", "a towline shard is refused: %s", why);
    if (v)
        value_free(v);
    return NULL;
}

static void *rdb_load(RedisModuleIO *io, int encver)
{
    if (encver != ENCVER)
        return refuse(io, NULL, "it was saved by another version of the module; load a newer one");
    struct value *v = value_new();
    if (!v)
        return refuse(io, NULL, "no memory");
    struct fault fault;
    enum saved_progress progress = SAVED_MORE;
    while (progress == SAVED_MORE) {
        size_t n;
        char *block = RedisModule_LoadStringBuffer(io, &n);
        if (!block || RedisModule_IsIOError(io)) {
            if (block)
                RedisModule_Free(block);
            return refuse(io, v, "the file ends in it");
        }
        bool nothing = n == 0 && v->loader.blocks == 0;
        if (!nothing)
            progress = saved_load_block(&v->loader, block, n, &fault);
        RedisModule_Free(block);
        if (nothing)
            return v;
    }
    if (progress == SAVED_WRONG)
        return refuse(io, v, fault.text);
    v->ready = true;
    return v;
}

struct rewrite {
    RedisModuleIO *io;
    RedisModuleString *key;
};

static bool emit_block(void *context, const void *bytes, size_t n)
{
    const struct rewrite *r = context;
    RedisModule_EmitAOF(r->io, "TOW.RESTORE", "sb", r->key, (const char *)bytes, n);
    return !RedisModule_IsIOError(r->io);
}

/* A block a command: one of 256 MB would be held three times over by the child that writes it, and again by who reads. */
static void aof_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value)
{
    struct value *v = value;
    struct rewrite r = {io, key};
    if (v->ready)
        saved_write(&v->shard, emit_block, &r);
}

static size_t mem_usage(const void *value)
{
    return value_memory(value);
}

/* What freeing costs, in allocations: above 64 the server frees in a thread of its own. */
static size_t free_effort(RedisModuleString *key, const void *value)
{
    (void)key;
    const struct value *v = value;
    const struct table *t = &v->shard.table;
    size_t bodies = t->bodies ? (size_t)table_rows(t) : 0;
    return 1 + t->slab.length + t->index.segments + v->shard.feed.length + v->shard.offsets.count + bodies;
}

static void digest(RedisModuleDigest *d, void *value)
{
    struct value *v = value;
    uint64_t sums[2] = {0, 0};
    if (v->ready)
        saved_digest(&v->shard, sums);
    RedisModule_DigestAddLongLong(d, (long long)sums[0]);
    RedisModule_DigestAddLongLong(d, (long long)sums[1]);
    RedisModule_DigestEndSequence(d);
}

static void *copy(RedisModuleString *from, RedisModuleString *to, const void *value)
{
    (void)from;
    (void)to;
    const struct value *v = value;
    struct fault fault;
    struct value *out = v->ready ? value_new() : NULL;
    if (!out)
        return NULL;
    if (!saved_copy(&out->shard, &v->shard, salt, &out->allocator, &fault)) {
        RedisModule_Log(NULL, "warning", "a towline shard can't be copied: %s", fault.text);
        value_free(out);
        return NULL;
    }
    out->ready = true;
    return out;
}

static void *move(void *context, void *block, size_t size)
{
    (void)size;
    return RedisModule_DefragAlloc(context, block);
}

static bool stop(void *context)
{
    return RedisModule_DefragShouldStop(context);
}

static int defrag(RedisModuleDefragCtx *ctx, RedisModuleString *key, void **value)
{
    (void)key;
    struct value *v = *value;
    unsigned long at = 0;
    if (!v->ready || !RedisModule_DefragAlloc || !RedisModule_DefragShouldStop || !RedisModule_DefragCursorGet ||
        !RedisModule_DefragCursorSet)
        return 0;
    RedisModule_DefragCursorGet(ctx, &at); /* stays 0 where the server gives the value one go */
    uint64_t cursor = at;
    bool more = shard_defrag(&v->shard, move, ctx, &cursor, stop);
    if (more)
        RedisModule_DefragCursorSet(ctx, (unsigned long)cursor);
    return more;
}

static void free_value(void *value)
{
    value_free(value);
}

bool datatype_register(RedisModuleCtx *ctx, void (*ask_huge)(void *context, void *at))
{
    struct server_type_methods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = rdb_load,
        .rdb_save = rdb_save,
        .aof_rewrite = aof_rewrite,
        .mem_usage = mem_usage,
        .digest = digest,
        .free = free_value,
        .free_effort = free_effort,
        .copy = copy,
        .defrag = defrag,
    };
    huge = ask_huge;
    RedisModule_GetRandomBytes((unsigned char *)&salt, sizeof salt);
    datatype = RedisModule_CreateDataType(ctx, NAME, ENCVER, &methods);
    return datatype != NULL;
}
