/* TOW.WAIT: clients that wait until a feed moves. */
#ifndef TOW_WAITING_H
#define TOW_WAITING_H

#include "server_api.h"

/* TOW.WAIT timeout_ms key position [key position …]: 1 as soon as a feed is not at its position, or its key is gone; 0 when
 * the time is over, at once if it is 0 or where nobody may block. O(keys).
 */
int wait_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

#endif
