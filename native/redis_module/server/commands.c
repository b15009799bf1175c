#include "commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arguments.h"
#include "histogram.h"
#include "waiting.h"

#define MOST_KEYS (1 << 20)          /* of a lookup */
#define MOST_REPLY ((size_t)512 << 20) /* bytes of rows: what the protocol's own strings may have */
#define MOST_SCANNED 65536
#define MOST_CHANGED 4096 /* keys whose rows come with TOW.CHANGES */
#define MOST_PAIRS 64
#define KEPT ((size_t)16 << 20) /* bytes of scratch that are kept for the next call */

/* Memory for the length of a call, kept for the next: fresh pages would cost more than what is written to them. All
 * commands run on one thread.
 */
struct scratch {
    void *block;
    size_t size;
};

static void *scratch_take(struct scratch *s, size_t size)
{
    if (size <= s->size)
        return s->block;
    size += size / 4;
    RedisModule_Free(s->block);
    s->block = RedisModule_TryAlloc ? RedisModule_TryAlloc(size) : RedisModule_Alloc(size);
    s->size = s->block ? size : 0;
    return s->block;
}

static void scratch_trim(struct scratch *s)
{
    if (s->size <= KEPT)
        return;
    RedisModule_Free(s->block);
    *s = (struct scratch){0};
}

static struct scratch for_reply, for_handles, for_keys;

static int reply_no_memory(RedisModuleCtx *ctx, size_t bytes)
{
    struct fault fault;
    fault_set(&fault, FAULT_MEMORY, "no memory for a reply of %zu bytes", bytes);
    return reply_fault(ctx, &fault);
}

/* Rows of n keys, ready to be sent. NULL: no memory, or more than may be replied; *size is then how many bytes. */
static const unsigned char *make_rows(const struct shard *s, int64_t n, const any_u64 *keys, uint32_t flags,
                                      size_t *size)
{
    *size = (size_t)n * sizeof(handle);
    handle *handles = scratch_take(&for_handles, *size + 1);
    if (!handles)
        return NULL;
    *size = shard_rows_size(s, n, keys, flags, handles);
    unsigned char *out = *size <= MOST_REPLY ? scratch_take(&for_reply, *size) : NULL;
    if (out)
        shard_rows_write(s, n, keys, flags, handles, out);
    return out;
}

static int reply_no_rows(RedisModuleCtx *ctx, int64_t n, size_t size)
{
    if (size <= MOST_REPLY)
        return reply_no_memory(ctx, size);
    struct fault fault;
    fault_set(&fault, FAULT_BAD, "a reply of %zu bytes to %" PRId64 " keys; at most %zu, ask for fewer keys", size, n,
              MOST_REPLY);
    return reply_fault(ctx, &fault);
}

static int reply_bytes(RedisModuleCtx *ctx, const void *bytes, size_t size)
{
    return RedisModule_ReplyWithStringBuffer(ctx, bytes, size);
}

/* TOW.CREATE key generation name value [name value …] */
static int create(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc < 5 || argc % 2 == 0)
        return RedisModule_WrongArity(ctx);
    struct fault fault;
    int64_t generation;
    size_t count = (size_t)(argc - 3) / 2;
    const char *names[MOST_PAIRS], *values[MOST_PAIRS];
    size_t name_lengths[MOST_PAIRS], value_lengths[MOST_PAIRS];
    if (count > MOST_PAIRS) {
        fault_set(&fault, FAULT_BAD, "%zu names in a declaration; at most %d", count, MOST_PAIRS);
        return reply_fault(ctx, &fault);
    }
    if (!read_number(ctx, argv[2], "generation", 0, INT64_MAX, &generation))
        return REDISMODULE_OK;
    for (size_t i = 0; i < count; i++) {
        names[i] = RedisModule_StringPtrLen(argv[3 + 2 * i], &name_lengths[i]);
        values[i] = RedisModule_StringPtrLen(argv[4 + 2 * i], &value_lengths[i]);
    }
    struct value *v = value_new();
    if (!v)
        return reply_no_memory(ctx, sizeof *v);
    struct spec spec;
    RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[1], REDISMODULE_WRITE);
    const struct value *stored = value_of(key);
    bool read = spec_parse(&spec, count, names, name_lengths, values, value_lengths, &v->allocator, &fault), made = false;
    if (!read || (stored && !spec_same(&stored->shard.spec, &spec, &fault))) {
        reply_fault(ctx, &fault);
    } else if (stored) {
        RedisModule_ReplyWithSimpleString(ctx, "EXISTS");
    } else if (RedisModule_KeyType(key) != REDISMODULE_KEYTYPE_EMPTY && RedisModule_ModuleTypeGetType(key) != datatype) {
        RedisModule_ReplyWithError(ctx, "WRONGTYPE Operation against a key holding the wrong kind of value");
    } else if (!(made = shard_open(&v->shard, &spec, datatype_salt(), &v->allocator, &fault))) {
        reply_fault(ctx, &fault);
    } else {
        shard_raise(&v->shard, generation);
        v->ready = true;
        RedisModule_ModuleTypeSetValue(key, datatype, v);
        RedisModule_SignalModifiedKey(ctx, argv[1]);
        RedisModule_ReplicateVerbatim(ctx);
        RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
    if (read)
        spec_close(&spec, &v->allocator);
    if (!made)
        value_free(v);
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

/* TOW.LOOKUP key keys flags */
static int lookup(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 4)
        return RedisModule_WrongArity(ctx);
    struct fault fault;
    int64_t flags;
    size_t size;
    if (!read_number(ctx, argv[3], "flags", 0, ROWS_FLAGS, &flags))
        return REDISMODULE_OK;
    const any_u64 *keys = (const any_u64 *)RedisModule_StringPtrLen(argv[2], &size);
    if (size % sizeof *keys || size / sizeof *keys > MOST_KEYS) {
        if (size % sizeof *keys)
            fault_set(&fault, FAULT_BAD, "keys of %zu bytes; each has %zu", size, sizeof *keys);
        else
            fault_set(&fault, FAULT_BAD, "%zu keys in one call; at most %d, make several calls", size / sizeof *keys,
                      MOST_KEYS);
        return reply_fault(ctx, &fault);
    }
    RedisModuleKey *key;
    const struct value *v = open_value(ctx, argv[1], REDISMODULE_READ, &key);
    if (!v)
        return REDISMODULE_OK;
    int64_t n = (int64_t)(size / sizeof *keys);
    const unsigned char *rows = make_rows(&v->shard, n, keys, (uint32_t)flags, &size);
    if (rows)
        reply_bytes(ctx, rows, size);
    else
        reply_no_rows(ctx, n, size);
    scratch_trim(&for_reply);
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

/* Outcome, clock, and the stored offset of each range. */
static void reply_applied(RedisModuleCtx *ctx, const struct shard *s, const struct flush *f, enum shard_outcome outcome)
{
    RedisModule_ReplyWithArray(ctx, 2 + (long)f->head.ranges);
    RedisModule_ReplyWithLongLong(ctx, outcome);
    RedisModule_ReplyWithLongLong(ctx, s->meta.clock);
    const char *source = f->sources;
    for (uint32_t r = 0; r < f->head.ranges; r++) {
        const struct offset *stored = offsets_find(&s->offsets, source, f->source_lengths[r]);
        if (stored)
            RedisModule_ReplyWithLongLong(ctx, stored->next);
        else
            RedisModule_ReplyWithNull(ctx);
        source += f->source_lengths[r];
    }
}

/* TOW.APPLY key flush */
static int apply_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 3)
        return RedisModule_WrongArity(ctx);
    RedisModuleKey *key;
    struct value *v = open_value(ctx, argv[1], REDISMODULE_WRITE, &key);
    if (!v)
        return REDISMODULE_OK;
    size_t size;
    const char *blob = RedisModule_StringPtrLen(argv[2], &size);
    struct shard *s = &v->shard;
    struct fault fault;
    struct flush flush;
    enum shard_outcome outcome;
    int64_t feed = s->meta.feed;
    if (!flush_parse(&flush, blob, size, s->table.dim, s->table.state_dim, &fault) ||
        !shard_apply(s, &flush, &outcome, &fault)) {
        reply_fault(ctx, &fault);
    } else {
        reply_applied(ctx, s, &flush, outcome);
        if (outcome == SHARD_APPLIED) {
            RedisModule_SignalModifiedKey(ctx, argv[1]);
            RedisModule_ReplicateVerbatim(ctx);
        }
        if (s->meta.feed != feed)
            RedisModule_SignalKeyAsReady(ctx, argv[1]);
    }
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

/* TOW.CHANGES key since */
static int changes(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 3)
        return RedisModule_WrongArity(ctx);
    int64_t since, capacity;
    uint64_t *keys;
    RedisModuleKey *key;
    if (!read_number(ctx, argv[2], "since", 0, INT64_MAX, &since))
        return REDISMODULE_OK;
    const struct value *v = open_value(ctx, argv[1], REDISMODULE_READ, &key);
    if (!v)
        return REDISMODULE_OK;
    const struct shard *s = &v->shard;
    int64_t n = shard_changes(s, since, &keys, &capacity);
    if (n == -2) {
        reply_no_memory(ctx, (size_t)capacity * sizeof *keys);
        goto done;
    }
    RedisModule_ReplyWithArray(ctx, 6);
    RedisModule_ReplyWithLongLong(ctx, s->meta.feed);
    RedisModule_ReplyWithLongLong(ctx, s->meta.clock);
    RedisModule_ReplyWithLongLong(ctx, s->meta.event_time_ms);
    RedisModule_ReplyWithLongLong(ctx, s->meta.produced_ms);
    size_t size;
    const unsigned char *rows = NULL;
    if (n < 0)
        RedisModule_ReplyWithNull(ctx);
    else
        reply_bytes(ctx, n ? (const void *)keys : "", (size_t)n * sizeof *keys);
    if (n >= 0 && n <= MOST_CHANGED)
        rows = make_rows(s, n, keys, ROWS_STORED, &size);
    if (rows)
        reply_bytes(ctx, rows, size);
    else
        RedisModule_ReplyWithNull(ctx);
    scratch_trim(&for_reply);
done:
    if (n > 0)
        allocator_give(s->allocator, keys, (size_t)capacity * sizeof *keys);
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

/* TOW.SCAN key cursor count [flags] */
static int scan(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 4 && argc != 5)
        return RedisModule_WrongArity(ctx);
    int64_t at, count, flags = ROWS_KEYS | ROWS_STORED;
    if (!read_number(ctx, argv[2], "cursor", 0, SCAN_MAX_CURSOR, &at) ||
        !read_number(ctx, argv[3], "count", 1, MOST_SCANNED, &count) ||
        (argc == 5 && !read_number(ctx, argv[4], "flags", 0, ROWS_FLAGS, &flags)))
        return REDISMODULE_OK;
    RedisModuleKey *key;
    const struct value *v = open_value(ctx, argv[1], REDISMODULE_READ, &key);
    if (!v)
        return REDISMODULE_OK;
    size_t size = (size_t)count * sizeof(uint64_t);
    uint64_t *keys = scratch_take(&for_keys, size), cursor = (uint64_t)at;
    int64_t n = keys ? shard_scan(&v->shard, &cursor, count, keys) : 0;
    const unsigned char *rows = keys ? make_rows(&v->shard, n, keys, (uint32_t)flags, &size) : NULL;
    if (rows) {
        char text[24];
        int length = snprintf(text, sizeof text, "%" PRIu64, cursor);
        RedisModule_ReplyWithArray(ctx, 2);
        reply_bytes(ctx, text, (size_t)length);
        reply_bytes(ctx, rows, size);
    } else {
        reply_no_rows(ctx, n, size);
    }
    scratch_trim(&for_reply);
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

static void reply_named(RedisModuleCtx *ctx, const char *name, int64_t number)
{
    reply_bytes(ctx, name, strlen(name));
    RedisModule_ReplyWithLongLong(ctx, number);
}

/* TOW.INFO key */
static int info(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 2)
        return RedisModule_WrongArity(ctx);
    RedisModuleKey *key;
    const struct value *v = open_value(ctx, argv[1], REDISMODULE_READ, &key);
    if (!v)
        return REDISMODULE_OK;
    const struct shard *s = &v->shard;
    const struct shard_meta *m = &s->meta;
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {
        {"generation", m->generation}, {"clock", m->clock}, {"event_time_ms", m->event_time_ms},
        {"produced_ms", m->produced_ms}, {"skipped", m->skipped}, {"seeks", m->seeks}, {"now_ms", m->now_ms},
        {"evicted", m->evicted}, {"expired", m->expired}, {"forgotten", m->forgotten}, {"late", m->late},
        {"refused", m->refused}, {"feed", m->feed}, {"rows", shard_rows(s)}, {"stubs", shard_stubs(s)},
        {"remembered", shard_remembered(s)}, {"memory", (int64_t)value_memory(v)},
    };
    size_t count = sizeof numbers / sizeof *numbers;
    RedisModule_ReplyWithArray(ctx, 2 * (long)(count + 3));
    for (size_t i = 0; i < count; i++)
        reply_named(ctx, numbers[i].name, numbers[i].number);
    reply_bytes(ctx, "last_seek", 9);
    reply_bytes(ctx, s->last_seek, strlen(s->last_seek));
    reply_bytes(ctx, "declaration", 11);
    reply_bytes(ctx, s->spec.declaration, s->spec.declaration_size);
    reply_bytes(ctx, "offsets", 7);
    RedisModule_ReplyWithArray(ctx, 2 * (long)s->offsets.count);
    for (size_t i = 0; i < s->offsets.count; i++) {
        reply_bytes(ctx, s->offsets.list[i].source, s->offsets.list[i].length);
        RedisModule_ReplyWithLongLong(ctx, s->offsets.list[i].next);
    }
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

/* TOW.SEEK key source expected|- new reason */
static int seek(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 6)
        return RedisModule_WrongArity(ctx);
    struct fault fault;
    int64_t expected = -1, offset;
    size_t length, source_length, reason_length;
    const char *was = RedisModule_StringPtrLen(argv[3], &length);
    const char *source = RedisModule_StringPtrLen(argv[2], &source_length);
    const char *reason = RedisModule_StringPtrLen(argv[5], &reason_length);
    if (source_length < 1 || source_length > FLUSH_MAX_SOURCE) {
        fault_set(&fault, FAULT_BAD, "a source of %zu bytes; 1 to %u are allowed", source_length, FLUSH_MAX_SOURCE);
        return reply_fault(ctx, &fault);
    }
    bool unset = length == 1 && *was == '-';
    if ((!unset && !read_number(ctx, argv[3], "expected", 0, INT64_MAX, &expected)) ||
        !read_number(ctx, argv[4], "new", 0, INT64_MAX, &offset))
        return REDISMODULE_OK;
    RedisModuleKey *key;
    struct value *v = open_value(ctx, argv[1], REDISMODULE_WRITE, &key);
    if (!v)
        return REDISMODULE_OK;
    if (reason_length > SHARD_REASON)
        reason_length = SHARD_REASON; /* cut where it is kept */
    if (shard_seek(&v->shard, source, source_length, expected, offset, reason, reason_length, &fault)) {
        RedisModule_SignalModifiedKey(ctx, argv[1]);
        RedisModule_ReplicateVerbatim(ctx);
        RedisModule_ReplyWithSimpleString(ctx, "OK");
    } else {
        reply_fault(ctx, &fault);
    }
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

/* TOW.GENERATION key generation */
static int generation(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 3)
        return RedisModule_WrongArity(ctx);
    int64_t given;
    RedisModuleKey *key;
    if (!read_number(ctx, argv[2], "generation", 0, INT64_MAX, &given))
        return REDISMODULE_OK;
    struct value *v = open_value(ctx, argv[1], REDISMODULE_WRITE, &key);
    if (!v)
        return REDISMODULE_OK;
    int64_t stored = v->shard.meta.generation, now = shard_raise(&v->shard, given);
    if (now != stored) {
        RedisModule_SignalModifiedKey(ctx, argv[1]);
        RedisModule_SignalKeyAsReady(ctx, argv[1]);
        RedisModule_ReplicateVerbatim(ctx);
    }
    RedisModule_ReplyWithLongLong(ctx, now);
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

/* Loads the blocks in `payload`. False: see `fault`, the value is of no use. */
static bool load_blocks(struct value *v, const char *payload, size_t left, struct fault *fault)
{
    while (left) {
        size_t size = saved_block_size(payload, left);
        if (!size)
            size = left; /* what is wrong with it, the loader says */
        enum saved_progress progress = saved_load_block(&v->loader, payload, size, fault);
        v->ready = v->ready || progress == SAVED_DONE;
        if (progress == SAVED_WRONG)
            return false;
        payload += size;
        left -= size;
    }
    return true;
}

/* TOW.RESTORE key blocks: how an append-only file that was rewritten tells of a shard, block by block, see datatype.c. While
 * it is loaded, a value grows with each command; at any other time all its blocks have to come at once.
 */
static int restore(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc != 3)
        return RedisModule_WrongArity(ctx);
    bool loading = RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_LOADING;
    RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[1], REDISMODULE_WRITE);
    struct value *v = NULL;
    bool empty = RedisModule_KeyType(key) == REDISMODULE_KEYTYPE_EMPTY;
    if (empty)
        v = value_new();
    else if (loading && RedisModule_ModuleTypeGetType(key) == datatype && !value_of(key))
        v = RedisModule_ModuleTypeGetValue(key);
    if (!v) {
        RedisModule_ReplyWithError(ctx, empty ? "OOM no memory for a shard"
                                              : "BUSYKEY Target key name already exists");
        goto done;
    }
    size_t size;
    struct fault fault;
    const char *payload = RedisModule_StringPtrLen(argv[2], &size);
    bool good = load_blocks(v, payload, size, &fault);
    if (good && !v->ready && !loading)
        good = fault_set(&fault, FAULT_BAD, "a save ends after %zu bytes, before its end", size);
    if (good) {
        if (empty)
            RedisModule_ModuleTypeSetValue(key, datatype, v);
        RedisModule_SignalModifiedKey(ctx, argv[1]);
        RedisModule_ReplicateVerbatim(ctx);
        RedisModule_ReplyWithSimpleString(ctx, "OK");
        goto done;
    }
    if (empty)
        value_free(v);
    else
        RedisModule_DeleteKey(key);
    if (loading)
        RedisModule_Log(ctx, "warning", "a towline shard in the append-only file is refused: %s", fault.text);
    reply_fault(ctx, &fault);
done:
    RedisModule_CloseKey(key);
    return REDISMODULE_OK;
}

static int histogram(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

/* first, last, step: where its keys are */
struct command {
    const char *name;
    RedisModuleCmdFunc function;
    const char *flags, *categories;
    int first, last, step;
    struct histogram times;
};

static struct command commands[] = {
    {"tow.create", create, "write deny-oom", "write slow", 1, 1, 1, {0}},
    {"tow.lookup", lookup, "readonly", "read slow", 1, 1, 1, {0}},
    {"tow.apply", apply_command, "write deny-oom", "write slow", 1, 1, 1, {0}},
    {"tow.changes", changes, "readonly", "read slow", 1, 1, 1, {0}},
    {"tow.scan", scan, "readonly", "read slow", 1, 1, 1, {0}},
    {"tow.info", info, "readonly", "read slow", 1, 1, 1, {0}},
    {"tow.seek", seek, "write", "write slow", 1, 1, 1, {0}},
    {"tow.generation", generation, "write fast", "write fast", 1, 1, 1, {0}},
    {"tow.wait", wait_command, "readonly blocking", "read slow blocking", 2, -1, 2, {0}},
    {"tow.restore", restore, "write deny-oom admin", "write slow admin dangerous", 1, 1, 1, {0}},
    {"tow.histogram", histogram, "readonly admin", "admin dangerous", 0, 0, 0, {0}},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static bool timing;

static void reply_histogram(RedisModuleCtx *ctx, const struct command *c)
{
    RedisModule_ReplyWithArray(ctx, 4);
    reply_bytes(ctx, c->name, strlen(c->name));
    RedisModule_ReplyWithLongLong(ctx, (long long)c->times.calls);
    RedisModule_ReplyWithLongLong(ctx, (long long)c->times.longest_ns);
    RedisModule_ReplyWithArray(ctx, HISTOGRAM_BUCKETS);
    for (int k = 0; k < HISTOGRAM_BUCKETS; k++)
        RedisModule_ReplyWithLongLong(ctx, (long long)c->times.buckets[k]);
}

/* TOW.HISTOGRAM [ON|OFF|RESET]: CPU time of calls, [name, calls, longest in ns, buckets] a command. Off unless switched on:
 * reading the clock twice costs as much as finding ten rows.
 */
static int histogram(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (argc > 2)
        return RedisModule_WrongArity(ctx);
    if (argc == 1) {
        RedisModule_ReplyWithArray(ctx, COMMANDS);
        for (size_t k = 0; k < COMMANDS; k++)
            reply_histogram(ctx, &commands[k]);
        return REDISMODULE_OK;
    }
    size_t length;
    const char *word = RedisModule_StringPtrLen(argv[1], &length);
    bool on = length == 2 && memcmp(word, "ON", 2) == 0, off = length == 3 && memcmp(word, "OFF", 3) == 0;
    if (!on && !off && !(length == 5 && memcmp(word, "RESET", 5) == 0)) {
        struct fault fault;
        fault_set(&fault, FAULT_BAD, "'%.*s' is none of ON, OFF, RESET", (int)(length < 64 ? length : 64), word);
        return reply_fault(ctx, &fault);
    }
    if (on || off)
        timing = on;
    else
        for (size_t k = 0; k < COMMANDS; k++)
            commands[k].times = (struct histogram){0};
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int run(struct command *c, RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    if (!timing)
        return c->function(ctx, argv, argc);
    uint64_t start = histogram_now_ns();
    int status = c->function(ctx, argv, argc);
    histogram_add(&c->times, histogram_now_ns() - start);
    return status;
}

/* The server tells a function no more than its words, so each command has one of its own. */
#define RUN(k)                                                                                                         \
    static int run_##k(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)                                        \
    {                                                                                                                  \
        return run(&commands[k], ctx, argv, argc);                                                                     \
    }
RUN(0) RUN(1) RUN(2) RUN(3) RUN(4) RUN(5) RUN(6) RUN(7) RUN(8) RUN(9) RUN(10)

static const RedisModuleCmdFunc runs[] = {run_0, run_1, run_2, run_3, run_4, run_5, run_6, run_7, run_8, run_9, run_10};
_Static_assert(sizeof runs / sizeof *runs == COMMANDS, "one for each");

bool commands_register(RedisModuleCtx *ctx)
{
    for (size_t k = 0; k < COMMANDS; k++) {
        const struct command *c = &commands[k];
        if (RedisModule_CreateCommand(ctx, c->name, runs[k], c->flags, c->first, c->last, c->step) != REDISMODULE_OK)
            return false;
        RedisModuleCommand *made = RedisModule_GetCommand ? RedisModule_GetCommand(ctx, c->name) : NULL;
        if (made && RedisModule_SetCommandACLCategories)
            RedisModule_SetCommandACLCategories(made, c->categories);
    }
    return true;
}
