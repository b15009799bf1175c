/* The commands of the module; module.c tells why they are as they are. */
#ifndef TOW_COMMANDS_H
#define TOW_COMMANDS_H

#include <stdbool.h>

#include "server_api.h"

/* False: the server refuses. */
bool commands_register(RedisModuleCtx *ctx);

#endif
