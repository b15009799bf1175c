/* Splitmix64 (Steele, Lea, Flood 2014): shards, index places and initial vectors all come from it, bit for bit as in
 * native/mixing.py. Everything here is O(1).
 */
#ifndef TOW_MIX_H
#define TOW_MIX_H

#include <stdint.h>

#define MIX_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* The finalizer of splitmix64: a bijection of 64 bits. Inline: it is four instructions in every inner loop. */
static inline uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Digest of bytes under a salt that nobody else knows, never 0: two ids with one digest can't be found, and 2^−64 of all
 * pairs have one. O(length).
 */
uint64_t mix_digest(const unsigned char *bytes, uint32_t length, uint64_t salt);

/* Shard of a key, from the high half of its mix. */
uint32_t mix_shard(uint64_t key, uint32_t shards);

/* What a shard's index knows of a key: a salted mix. A bijection, so two keys never share one.
 *
 * Salted, because keys are the users' ids and the mixer is public: without a secret anyone can write a million ids that
 * want the same slot; and because all keys of a shard share the top of their unsalted mixes. The salt decides nothing but
 * places in memory, so replicas need not share it.
 */
static inline uint64_t mix_place(uint64_t key, uint64_t salt)
{
    return mix(key ^ salt);
}

#endif
