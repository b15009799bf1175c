#include "waiting.h"

#include "arguments.h"

#define FIRST 2 /* of the pairs in argv */

/* 1: a feed is not where its waiter knows it, or its key is gone. 0: all are. Positions have been checked. A feed that went
 * back counts too: its shard was restored, and who waits for it to pass would wait for long.
 */
static int moved(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    for (int i = FIRST; i + 1 < argc; i += 2) {
        long long position;
        RedisModule_StringToLongLong(argv[i + 1], &position);
        RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[i], REDISMODULE_READ);
        const struct value *v = value_of(key);
        int64_t feed = v ? v->shard.meta.feed : -1;
        if (key)
            RedisModule_CloseKey(key);
        if (feed != position)
            return 1;
    }
    return 0;
}

/* A key is ready: the client is answered, or stays blocked. */
static int ready(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (!moved(ctx, argv, argc))
        return REDISMODULE_ERR;
    return RedisModule_ReplyWithLongLong(ctx, 1);
}

/* Servers before 7.2 wake nobody for a key that is gone: it is noticed here. */
static int timed_out(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    return RedisModule_ReplyWithLongLong(ctx, moved(ctx, argv, argc));
}

static int block(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, int64_t timeout_ms)
{
    RedisModuleString *keys[argc]; /* a pointer a word: the server holds the words themselves */
    int n = 0;
    for (int i = FIRST; i < argc; i += 2)
        keys[n++] = argv[i];
    if (RedisModule_BlockClientOnKeysWithFlags)
        RedisModule_BlockClientOnKeysWithFlags(ctx, ready, timed_out, NULL, timeout_ms, keys, n, NULL,
                                               REDISMODULE_BLOCK_UNBLOCK_DELETED);
    else
        RedisModule_BlockClientOnKeys(ctx, ready, timed_out, NULL, timeout_ms, keys, n, NULL);
    return REDISMODULE_OK;
}

#define MOST_KEYS 4096

int wait_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc < FIRST + 2 || argc % 2)
        return RedisModule_WrongArity(ctx);
    struct fault fault;
    int64_t timeout_ms, position;
    if (argc > FIRST + 2 * MOST_KEYS) {
        fault_set(&fault, FAULT_BAD, "%d keys to wait for; at most %d", (argc - FIRST) / 2, MOST_KEYS);
        return reply_fault(ctx, &fault);
    }
    if (!read_number(ctx, argv[1], "timeout_ms", 0, INT32_MAX, &timeout_ms))
        return REDISMODULE_OK;
    for (int i = FIRST; i < argc; i += 2)
        if (!read_number(ctx, argv[i + 1], "position", 0, INT64_MAX, &position))
            return REDISMODULE_OK;
    int now = moved(ctx, argv, argc);
    int cannot = REDISMODULE_CTX_FLAGS_LUA | REDISMODULE_CTX_FLAGS_MULTI | REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
    if (now || !timeout_ms || RedisModule_GetContextFlags(ctx) & cannot)
        return RedisModule_ReplyWithLongLong(ctx, now);
    return block(ctx, argv, argc, timeout_ms);
}
