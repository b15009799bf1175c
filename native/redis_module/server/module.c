/* The command layer, and why it is as it is.
 *
 * What runs where. Every command runs to its end on the server's main thread: lookups, applies, scans. There is no thread
 * and no lock of our own. A call is a few microseconds a hundred rows, less than handing it over and back would cost, and
 * one at a time is what makes rows, offsets, clock and feed move together or not at all. Its length is bounded by what one
 * call may carry (FLUSH_MAX_KEYS, MOST_KEYS, MOST_SCANNED); nothing is put off to a timer: expiry, eviction, growth of the
 * index happen a bounded piece a call, paid for by the calls that cause them. Only freeing a whole shard is given to the
 * server's thread for that (free_effort), and saving to its child.
 *
 * Replication. TOW.APPLY goes to replicas and the append-only file as it came, and only if it was applied. It can, because
 * its effect is a function of the shard and of the call alone: the caller stamps the time, nothing expires by a replica's
 * clock, keys are dealt with in the order of the call, floating point is the same on all machines (see optimizer.h), and
 * the one thing that differs between processes, the salt of the index, decides nothing that can be seen. Sending effects
 * instead would be rows of 300 bytes where gradients are less. A replica that runs out of memory in the middle of a call
 * answers its master with an error, which both servers log, and has to be filled anew.
 *
 * Time. The server's clock is not read. Keys of the module have no time to live unless somebody gives them one.
 *
 * Memory. All of it comes from the server's allocator, so that maxmemory, MEMORY USAGE and active defragmentation see it.
 * TryAlloc, where the server has it, says no instead of ending the process: a call that finds no memory changes nothing.
 * Commands that add are refused above maxmemory by their flag. Evicting keys by the server's own policy would lose whole
 * shards, so the store demands noeviction.
 *
 * What is not trusted. Words of a command are checked before anything is changed: lengths, ranges, rows, numbers. So is a
 * saved shard, from RESTORE or a file: a wrong one is refused, and the server lives. There is no state outside of keys but
 * scratch memory and TOW.HISTOGRAM's counts, so FLUSHALL, SWAPDB, MOVE and replication into a second set of keys
 * (HANDLE_REPL_ASYNC_LOAD) need nothing from us.
 *
 * The key is signalled as modified by hand, when it was: WATCH and client-side caching otherwise take every refused or
 * repeated call for a change.
 */
#include <string.h>

#include "commands.h"
#include "datatype.h"
#include "huge_pages.h"

#define VERSION 1

#define DEFINE(needed, result, name, arguments) result(*RedisModule_##name) arguments;
SERVER_API(DEFINE)

/* The server's functions, by name. NULL, or the name of a needed one that is missing. */
static const char *find_functions(RedisModuleCtx *ctx)
{
    int (*get)(const char *name, void *function);
    memcpy(&get, ctx, sizeof get); /* a context begins with it, on all servers */
#define FIND(needed, result, name, arguments)                                                                          \
    if (get("RedisModule_" #name, (void *)&RedisModule_##name) != REDISMODULE_OK) {                                    \
        RedisModule_##name = NULL;                                                                                     \
        if (needed)                                                                                                    \
            return #name;                                                                                              \
    }
    SERVER_API(FIND)
    return NULL;
}

#define HUGE_PAGES "huge-pages"

__attribute__((visibility("default"))) int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    const char *missing = find_functions(ctx);
    if (missing) {
        if (RedisModule_Log)
            RedisModule_Log(ctx, "warning", "this server has no RedisModule_%s: towline needs Redis 7.0 or Valkey 8",
                            missing);
        return REDISMODULE_ERR;
    }
    if (RedisModule_IsModuleNameBusy && RedisModule_IsModuleNameBusy("towline"))
        return REDISMODULE_ERR;
    RedisModule_SetModuleAttribs(ctx, "towline", VERSION, REDISMODULE_APIVER_1);
    const char *argument = argc ? RedisModule_StringPtrLen(argv[0], NULL) : HUGE_PAGES;
    if (argc > 1 || strcmp(argument, HUGE_PAGES) != 0) {
        RedisModule_Log(ctx, "warning", "the module towline takes one argument at most, " HUGE_PAGES ", got %d: %s", argc,
                        argument);
        return REDISMODULE_ERR;
    }
    RedisModule_SetModuleOptions(ctx, REDISMODULE_OPTIONS_HANDLE_IO_ERRORS |
                                          REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED |
                                          REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD);
    return datatype_register(ctx, argc ? huge_pages() : NULL) && commands_register(ctx) ? REDISMODULE_OK : REDISMODULE_ERR;
}
