/* TOW.WAIT: clients that wait until a feed moves. */
#ifndef TOW_WAITING_H
#define TOW_WAITING_H

#include "server_api.h"

/* TOW.WAIT timeout_ms key position [key position …] */
int wait_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

/* Sees to it that those who wait learn of keys that are gone. */
void waiting_register(RedisModuleCtx *ctx);

#endif
