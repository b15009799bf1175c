/* Learning rates, and what lazy decay is made of: their sums over steps. embedding_store/schedules.py and decay.py bit for
 * bit; the formulas and their sources stand there.
 */
#ifndef TOW_SCHEDULE_H
#define TOW_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "allocator.h"

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_INVERSE_TIME, SCHEDULE_COSINE };
#define SCHEDULE_KINDS 3

struct schedule {
    int32_t kind;
    int64_t warmup_steps;
    double learning_rate;
    double decay;  /* inverse_time */
    int64_t steps; /* cosine */
    double floor;  /* cosine */
};

/* Rate of a step ≥ 0. O(1). */
double schedule_rate(const struct schedule *s, int64_t step);

/* Steps of an endless schedule that are summed one by one; beyond them sums are integrals. EXACT_STEPS of schedules.py. */
#define SCHEDULE_EXACT_STEPS (INT64_C(1) << 20)

/* Prefix sums over the steps that vary, as far as they were asked for: of log1p(−rate·l2), or, where there is l1 alone, of
 * rates. Holds its own copy of the schedule, so it may move with what it lies in.
 *
 * 8 bytes a step: none of a constant schedule without warm-up, 8 MB in the end of an inverse_time, 16 MB at most.
 */
struct decay_sums {
    struct allocator *allocator;
    struct schedule schedule;
    double l1, l2;
    int64_t varied;           /* steps from 0 on that are summed one by one */
    int64_t length, capacity; /* steps that are summed, that there is room for */
    double *sums;             /* (length + 1,) element n covers steps 0 … n − 1; NULL: none yet */
};

/* l1, l2: 0 for none; then there is nothing to reach, and rows miss nothing. Takes no memory. */
void decay_open(struct decay_sums *d, const struct schedule *schedule, double l1, double l2,
                struct allocator *allocator);
void decay_close(struct decay_sums *d);

/* Makes all that decay_closed_form needs up to step `stop`. False: no memory, nothing has changed. O(new steps) amortized.
 */
bool decay_reach(struct decay_sums *d, int64_t stop);

/* What a row of step `start` has missed at step `stop`, which was reached: |w| ← |w|·factor − threshold. Nothing, 1 and 0,
 * unless start < stop. O(1).
 */
void decay_closed_form(const struct decay_sums *d, int64_t start, int64_t stop, double *factor, double *threshold);

/* What decay_closed_form says of steps that were asked for lately: rows of one call are of few steps, and each answer takes
 * an exponential. Bit for bit the same.
 */
#define DECAY_KEPT 256
struct decay_missed {
    const struct decay_sums *sums;
    int64_t stop;
    int64_t starts[DECAY_KEPT]; /* −1: nothing */
    double factors[DECAY_KEPT], thresholds[DECAY_KEPT];
};

/* Nothing is kept; all answers are as of step `stop`, which was reached. */
void decay_missed_open(struct decay_missed *m, const struct decay_sums *sums, int64_t stop);

/* What a row of step `start` ≥ 0 has missed. O(1). */
void decay_missed_since(struct decay_missed *m, int64_t start, double *factor, double *threshold);

/* sgn(w)·max(0, |w|·factor − threshold) in place; shrink of native/decay.py. O(dim). */
void decay_shrink(float *values, uint32_t dim, double factor, double threshold);

#endif
