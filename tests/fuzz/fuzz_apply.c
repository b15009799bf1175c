/* TOW.APPLY and TOW.SEEK: calls valid, damaged and made up, against a live shard of every kind. */
#include <stdlib.h>

#include "world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct decisions d = {data, data + size};
    if (!world_open(&w, &d))
        return 0;
    world_live(&w, &d, 24);
    world_apply(&w, &d, d.at, left(&d)); /* what is left, as it is */
    world_close(&w);
    return 0;
}
