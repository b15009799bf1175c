#include "checksum.h"

#include <string.h>

#include "mix.h"

/* Each step is a bijection of the lane, for any word; four lanes, because a multiplication takes three cycles. */
static uint64_t step(uint64_t lane, uint64_t word)
{
    lane = (lane ^ word) * UINT64_C(0xD6E8FEB86659FD93);
    return lane ^ lane >> 32;
}

uint64_t checksum(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *at = bytes;
    uint64_t lanes[4], words[4], left = n;
    for (uint64_t k = 0; k < 4; k++)
        lanes[k] = mix(seed + (k + 1) * MIX_GOLDEN);
    for (; left >= sizeof words; left -= sizeof words, at += sizeof words) {
        memcpy(words, at, sizeof words);
        for (int k = 0; k < 4; k++)
            lanes[k] = step(lanes[k], words[k]);
    }
    memset(words, 0, sizeof words);
    if (left)
        memcpy(words, at, left);
    uint64_t all = mix(n ^ seed);
    for (int k = 0; k < 4; k++)
        all = mix(all ^ step(lanes[k], words[k]));
    return all;
}
