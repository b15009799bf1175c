/* A 64-bit hash of bytes that notices damage, not malice. */
#ifndef TOW_CHECKSUM_H
#define TOW_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Any change within 8 bytes that begin at a multiple of 8 changes it for certain, any other with all but 2^-64. O(n). */
uint64_t checksum(const void *bytes, size_t n, uint64_t seed);

#endif
