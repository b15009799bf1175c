/* What this module uses of the server's module interface, which Redis 7.0 and later and Valkey 8 and later offer under the
 * same names: declared by us, so that building needs no header of either. Functions are asked for by name when the module
 * is loaded. Those marked 0 may be missing, and are then NULL.
 */
#ifndef TOW_SERVER_API_H
#define TOW_SERVER_API_H

#include <stddef.h>
#include <stdint.h>

#define REDISMODULE_OK 0
#define REDISMODULE_ERR 1
#define REDISMODULE_APIVER_1 1

/* OpenKey */
#define REDISMODULE_READ 1
#define REDISMODULE_WRITE 2

/* KeyType */
#define REDISMODULE_KEYTYPE_EMPTY 0

/* GetContextFlags */
#define REDISMODULE_CTX_FLAGS_LUA (1 << 0)
#define REDISMODULE_CTX_FLAGS_MULTI (1 << 1)
#define REDISMODULE_CTX_FLAGS_LOADING (1 << 13)
#define REDISMODULE_CTX_FLAGS_DENY_BLOCKING (1 << 21)

/* SetModuleOptions */
#define REDISMODULE_OPTIONS_HANDLE_IO_ERRORS (1 << 0)
#define REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED (1 << 1)
#define REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD (1 << 2)

/* BlockClientOnKeysWithFlags */
#define REDISMODULE_BLOCK_UNBLOCK_DELETED (1 << 0)

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef struct RedisModuleType RedisModuleType;
typedef struct RedisModuleIO RedisModuleIO;
typedef struct RedisModuleDigest RedisModuleDigest;
typedef struct RedisModuleDefragCtx RedisModuleDefragCtx;
typedef struct RedisModuleKeyOptCtx RedisModuleKeyOptCtx;
typedef struct RedisModuleCommand RedisModuleCommand;
typedef struct RedisModuleBlockedClient RedisModuleBlockedClient;

typedef int (*RedisModuleCmdFunc)(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

/* Methods of a data type, as of version 4 of the structure: Redis 7.0's. */
#define REDISMODULE_TYPE_METHOD_VERSION 4
struct server_type_methods {
    uint64_t version;
    void *(*rdb_load)(RedisModuleIO *rdb, int encver);
    void (*rdb_save)(RedisModuleIO *rdb, void *value);
    void (*aof_rewrite)(RedisModuleIO *aof, RedisModuleString *key, void *value);
    size_t (*mem_usage)(const void *value);
    void (*digest)(RedisModuleDigest *digest, void *value);
    void (*free)(void *value);
    int (*aux_load)(RedisModuleIO *rdb, int encver, int when);
    void (*aux_save)(RedisModuleIO *rdb, int when);
    int aux_save_triggers;
    size_t (*free_effort)(RedisModuleString *key, const void *value);
    void (*unlink)(RedisModuleString *key, const void *value);
    void *(*copy)(RedisModuleString *from, RedisModuleString *to, const void *value);
    int (*defrag)(RedisModuleDefragCtx *ctx, RedisModuleString *key, void **value);
    size_t (*mem_usage2)(RedisModuleKeyOptCtx *ctx, const void *value, size_t sample_size);
    size_t (*free_effort2)(RedisModuleKeyOptCtx *ctx, const void *value);
    void (*unlink2)(RedisModuleKeyOptCtx *ctx, const void *value);
    void *(*copy2)(RedisModuleKeyOptCtx *ctx, const void *value);
};

/* F(needed, result, name, arguments) */
#define SERVER_API(F)                                                                                                  \
    F(1, void *, Alloc, (size_t bytes))                                                                                \
    F(0, void *, TryAlloc, (size_t bytes))                                                                             \
    F(1, void, Free, (void *block))                                                                                    \
    F(0, int, IsModuleNameBusy, (const char *name))                                                                    \
    F(1, void, SetModuleAttribs, (RedisModuleCtx *ctx, const char *name, int version, int api_version))                \
    F(1, void, SetModuleOptions, (RedisModuleCtx *ctx, int options))                                                   \
    F(1, int, CreateCommand,                                                                                           \
      (RedisModuleCtx *ctx, const char *name, RedisModuleCmdFunc function, const char *flags, int first_key,           \
       int last_key, int key_step))                                                                                    \
    F(0, RedisModuleCommand *, GetCommand, (RedisModuleCtx *ctx, const char *name))                                    \
    F(0, int, AddACLCategory, (RedisModuleCtx *ctx, const char *name))                                                 \
    F(0, int, SetCommandACLCategories, (RedisModuleCommand *command, const char *categories))                          \
    F(1, RedisModuleType *, CreateDataType,                                                                            \
      (RedisModuleCtx *ctx, const char *name, int encver, struct server_type_methods *methods))                        \
    F(1, int, WrongArity, (RedisModuleCtx *ctx))                                                                       \
    F(1, int, ReplyWithLongLong, (RedisModuleCtx *ctx, long long number))                                              \
    F(1, int, ReplyWithError, (RedisModuleCtx *ctx, const char *error))                                                \
    F(1, int, ReplyWithSimpleString, (RedisModuleCtx *ctx, const char *text))                                          \
    F(1, int, ReplyWithArray, (RedisModuleCtx *ctx, long length))                                                      \
    F(1, int, ReplyWithStringBuffer, (RedisModuleCtx *ctx, const char *bytes, size_t length))                          \
    F(1, int, ReplyWithNull, (RedisModuleCtx *ctx))                                                                    \
    F(1, const char *, StringPtrLen, (const RedisModuleString *string, size_t *length))                                \
    F(1, int, StringToLongLong, (const RedisModuleString *string, long long *number))                                  \
    F(1, RedisModuleKey *, OpenKey, (RedisModuleCtx *ctx, RedisModuleString *name, int mode))                          \
    F(1, void, CloseKey, (RedisModuleKey *key))                                                                        \
    F(1, int, KeyType, (RedisModuleKey *key))                                                                          \
    F(1, int, DeleteKey, (RedisModuleKey *key))                                                                        \
    F(1, RedisModuleType *, ModuleTypeGetType, (RedisModuleKey *key))                                                  \
    F(1, void *, ModuleTypeGetValue, (RedisModuleKey *key))                                                            \
    F(1, int, ModuleTypeSetValue, (RedisModuleKey *key, RedisModuleType *type, void *value))                           \
    F(1, int, SignalModifiedKey, (RedisModuleCtx *ctx, RedisModuleString *name))                                       \
    F(1, int, ReplicateVerbatim, (RedisModuleCtx *ctx))                                                                \
    F(1, int, GetContextFlags, (RedisModuleCtx *ctx))                                                                  \
    F(1, void, GetRandomBytes, (unsigned char *out, size_t length))                                                    \
    F(1, void, Log, (RedisModuleCtx *ctx, const char *level, const char *format, ...))                                 \
    F(1, void, LogIOError, (RedisModuleIO *io, const char *level, const char *format, ...))                            \
    F(1, void, SaveStringBuffer, (RedisModuleIO *io, const char *bytes, size_t length))                                \
    F(1, char *, LoadStringBuffer, (RedisModuleIO *io, size_t *length))                                                \
    F(1, int, IsIOError, (RedisModuleIO *io))                                                                          \
    F(1, void, EmitAOF, (RedisModuleIO *io, const char *command, const char *format, ...))                             \
    F(1, void, DigestAddLongLong, (RedisModuleDigest *digest, long long number))                                       \
    F(1, void, DigestEndSequence, (RedisModuleDigest *digest))                                                         \
    F(0, void *, DefragAlloc, (RedisModuleDefragCtx *ctx, void *block))                                                \
    F(0, int, DefragShouldStop, (RedisModuleDefragCtx *ctx))                                                           \
    F(0, int, DefragCursorSet, (RedisModuleDefragCtx *ctx, unsigned long cursor))                                      \
    F(0, int, DefragCursorGet, (RedisModuleDefragCtx *ctx, unsigned long *cursor))                                     \
    F(1, RedisModuleBlockedClient *, BlockClientOnKeys,                                                                \
      (RedisModuleCtx *ctx, RedisModuleCmdFunc reply, RedisModuleCmdFunc timeout,                                      \
       void (*free_private)(RedisModuleCtx *, void *), long long timeout_ms, RedisModuleString **keys, int count,      \
       void *private))                                                                                                 \
    F(0, RedisModuleBlockedClient *, BlockClientOnKeysWithFlags,                                                       \
      (RedisModuleCtx *ctx, RedisModuleCmdFunc reply, RedisModuleCmdFunc timeout,                                      \
       void (*free_private)(RedisModuleCtx *, void *), long long timeout_ms, RedisModuleString **keys, int count,      \
       void *private, int flags))                                                                                      \
    F(1, void, SignalKeyAsReady, (RedisModuleCtx *ctx, RedisModuleString *name))

#define SERVER_DECLARE(needed, result, name, arguments) extern result(*RedisModule_##name) arguments;
SERVER_API(SERVER_DECLARE)

#endif
