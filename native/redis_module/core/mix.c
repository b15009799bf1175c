#include "mix.h"

#include <string.h>

uint64_t mix_digest(const unsigned char *bytes, uint32_t length, uint64_t salt)
{
    uint64_t h = mix(salt ^ (MIX_GOLDEN * (length + 1))), word;
    for (; length >= 8; length -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        h = mix(h ^ word);
    }
    word = 0;
    memcpy(&word, bytes, length);
    h = mix(h ^ word);
    return h ? h : 1;
}

uint32_t mix_shard(uint64_t key, uint32_t shards)
{
    return (uint32_t)(((mix(key) >> 32) * shards) >> 32);
}
