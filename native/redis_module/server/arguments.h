/* From a command's words to keys and numbers, and what is said where they are none. */
#ifndef TOW_ARGUMENTS_H
#define TOW_ARGUMENTS_H

#include "datatype.h"

/* Replies what is wrong. */
int reply_fault(RedisModuleCtx *ctx, const struct fault *fault);

/* A whole number from `low` on. False: has replied. */
bool read_number(RedisModuleCtx *ctx, const RedisModuleString *word, const char *name, int64_t low, int64_t high,
                 int64_t *out);

/* The value under a key, and the opened key, to be closed. NULL: has replied that there is none, or one of another type;
 * nothing is to be closed then.
 */
struct value *open_value(RedisModuleCtx *ctx, RedisModuleString *name, int mode, RedisModuleKey **key);

/* The value under an open key, NULL: none that is ready. */
struct value *value_of(RedisModuleKey *key);

#endif
