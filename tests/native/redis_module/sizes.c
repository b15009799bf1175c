/* Numbers of a table that Python has no other way to. */
#include "table.h"

uint64_t table_bytes(void)
{
    return sizeof(struct table);
}

uint64_t table_splits(const struct table *t)
{
    return t->index.splits;
}

uint64_t table_rows(const struct table *t)
{
    return t->order.length;
}
