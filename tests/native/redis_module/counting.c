#include "counting.h"

#include <stdlib.h>
#include <string.h>

static void *take(void *context, size_t size)
{
    struct counting *c = context;
    if (c->left == 0) {
        c->failed++;
        return NULL;
    }
    if (c->left > 0)
        c->left--;
    unsigned char *block = malloc(size);
    if (!block)
        abort();
    if (!c->fast)
        memset(block, 0xA5, size); /* nobody may count on zeros */
    c->taken++;
    c->held += (int64_t)size;
    if (c->held > c->most_held)
        c->most_held = c->held;
    return block;
}

static void give(void *context, void *block, size_t size)
{
    struct counting *c = context;
    c->held -= (int64_t)size;
    if (!c->fast)
        memset(block, 0x5A, size); /* nobody may read what was given back */
    free(block);
}

void counting_open(struct allocator *a, struct counting *c)
{
    *c = (struct counting){.left = -1};
    *a = (struct allocator){take, give, c, 0, NULL};
}
