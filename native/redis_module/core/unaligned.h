/* Numbers where they lie in a blob that somebody sent, aligned or not.
 *
 * The server hands arguments out at whatever address its strings begin. Reading them through these types is defined and
 * costs nothing on the machines that we run on; copying a megabyte to align it would cost a tenth of an apply.
 */
#ifndef TOW_UNALIGNED_H
#define TOW_UNALIGNED_H

#include <stdint.h>

typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_u64 __attribute__((aligned(1), may_alias));
typedef int64_t any_i64 __attribute__((aligned(1), may_alias));
typedef float any_f32 __attribute__((aligned(1), may_alias));

#endif
