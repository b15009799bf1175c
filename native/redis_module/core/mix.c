#include "mix.h"

#include <string.h>

uint64_t mix_digest(const unsigned char *bytes, uint32_t length, uint64_t salt)
{
    uint64_t h = mix(salt) ^ (MIX_GOLDEN * (length + 1)), word, last = 0;
    if (length < 8) {
        memcpy(&last, bytes, length);
    } else {
        memcpy(&last, bytes + length - 8, 8); /* overlaps what the loop has read: a mix less for most ids */
        for (uint32_t at = 0; at + 8 < length; at += 8) {
            memcpy(&word, bytes + at, 8);
            h = mix(h ^ word);
        }
    }
    h = mix(h ^ last);
    return h ? h : 1;
}

uint32_t mix_shard(uint64_t key, uint32_t shards)
{
    return (uint32_t)(((mix(key) >> 32) * shards) >> 32);
}
