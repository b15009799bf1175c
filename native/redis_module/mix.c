#include "mix.h"

uint32_t mix_shard(uint64_t key, uint32_t shards)
{
    return (uint32_t)(((mix(key) >> 32) * shards) >> 32);
}
