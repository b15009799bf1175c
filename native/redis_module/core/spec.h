/* A table's declaration as the shard needs it, and its text: name and value by turns, as TOW.CREATE's arguments.
 *
 *     declaration  the client's own document, opaque, compared as a whole
 *     kind         embedding | dense | sequence | record
 *     dim, length, seed, initial_std, gap_rate, popularity_half_life, step_events, clip_norm
 *     optimizer    add | sgd | adagrad | rowwise_adagrad | adam
 *     learning_rate, initial_accumulator, beta_1, beta_2, epsilon
 *     schedule     constant | inverse_time | cosine;  warmup_steps, decay, steps, floor
 *     l1, l2       0: no such decay
 *     admit_after, max_stubs, max_rows (0: no limit), ttl_ms (0: never), remember_events: of this shard
 *     evict_batch, max_evicted, max_forgotten: see embedding_store/eviction.py
 *
 * Every name must come once; there are no defaults, so that what a table is stands in one place, the client's.
 */
#ifndef TOW_SPEC_H
#define TOW_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "allocator.h"
#include "fault.h"
#include "optimizer.h"
#include "schedule.h"

enum kind { KIND_EMBEDDING, KIND_DENSE, KIND_SEQUENCE, KIND_RECORD };
#define KINDS 4

#define SPEC_MAX_DIM 4096
#define SPEC_MAX_LENGTH 4096
#define SPEC_MAX_DECLARATION 65536

struct spec {
    int32_t kind;
    uint32_t dim, length;
    uint64_t seed;
    double initial_std, gap_rate;
    int64_t popularity_half_life, step_events;
    struct optimizer optimizer;
    struct schedule schedule; /* its learning_rate is the optimizer's */
    double l1, l2;
    int64_t admit_after, max_stubs, max_rows, ttl_ms, remember_events;
    int64_t evict_batch, max_evicted, max_forgotten;
    char *declaration; /* declaration_size bytes and a 0, held by whoever holds the spec */
    size_t declaration_size;
};

/* From count pairs of (bytes, length): names[i], values[i]. False: an unknown name with the nearest known one, a missing
 * or repeated one, a value that can't be read or is out of range, or no memory. On success the spec holds its
 * declaration; spec_close gives it back.
 */
bool spec_parse(struct spec *out, size_t count, const char *const *names, const size_t *name_lengths,
                const char *const *values, const size_t *value_lengths, struct allocator *allocator,
                struct fault *fault);

void spec_close(struct spec *s, struct allocator *allocator);

/* Whether two declarations are the same but for evict_batch, max_evicted and max_forgotten, which a release may change; if
 * not, `fault` names every field that differs, with both values.
 */
bool spec_same(const struct spec *stored, const struct spec *given, struct fault *fault);

/* Calls `each` for every pair, in the order above, numbers as text that reads back to the same number. */
void spec_each(const struct spec *s, void (*each)(void *context, const char *name, const char *value, size_t length),
               void *context);

#endif
