#include "arguments.h"

#include <inttypes.h>
#include <string.h>

int reply_fault(RedisModuleCtx *ctx, const struct fault *fault)
{
    return RedisModule_ReplyWithError(ctx, fault->text);
}

bool read_number(RedisModuleCtx *ctx, const RedisModuleString *word, const char *name, int64_t low, int64_t high,
                 int64_t *out)
{
    long long number;
    if (RedisModule_StringToLongLong(word, &number) == REDISMODULE_OK && number >= low && number <= high) {
        *out = number;
        return true;
    }
    size_t length;
    const char *text = RedisModule_StringPtrLen(word, &length);
    struct fault fault;
    fault_set(&fault, FAULT_BAD, "%s must be a whole number in [%" PRId64 ", %" PRId64 "], got '%.*s'", name, low, high,
              (int)(length < 64 ? length : 64), text);
    reply_fault(ctx, &fault);
    return false;
}

struct value *value_of(RedisModuleKey *key)
{
    struct value *v = NULL;
    if (key && RedisModule_ModuleTypeGetType(key) == datatype)
        v = RedisModule_ModuleTypeGetValue(key);
    return v && v->ready ? v : NULL;
}

struct value *open_value(RedisModuleCtx *ctx, RedisModuleString *name, int mode, RedisModuleKey **key)
{
    *key = RedisModule_OpenKey(ctx, name, mode);
    struct value *v = value_of(*key);
    if (v)
        return v;
    bool other = *key && RedisModule_KeyType(*key) != REDISMODULE_KEYTYPE_EMPTY &&
                 RedisModule_ModuleTypeGetType(*key) != datatype;
    if (*key)
        RedisModule_CloseKey(*key);
    if (other) {
        RedisModule_ReplyWithError(ctx, "WRONGTYPE Operation against a key holding the wrong kind of value");
        return NULL;
    }
    size_t length;
    const char *text = RedisModule_StringPtrLen(name, &length);
    struct fault fault;
    fault_set(&fault, FAULT_NONE, "no shard under key '%.*s'; TOW.CREATE makes one",
              (int)(length < 128 ? length : 128), text);
    reply_fault(ctx, &fault);
    return NULL;
}
