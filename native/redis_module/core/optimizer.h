/* Optimizer steps on one row, bit for bit the kernels of native/optimizers.py.
 *
 * The same bits on every replica and in every backend: operations in a fixed order, each rounded as written (build with
 * -ffp-contract=off and never with -ffast-math), no function of libm but sqrt, which IEEE 754 rounds exactly.
 */
#ifndef TOW_OPTIMIZER_H
#define TOW_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "unaligned.h"

enum optimizer_kind { OPTIMIZER_ADD, OPTIMIZER_SGD, OPTIMIZER_ADAGRAD, OPTIMIZER_ROWWISE_ADAGRAD, OPTIMIZER_ADAM };
#define OPTIMIZER_KINDS 5

struct optimizer {
    int32_t kind;
    float initial_accumulator; /* what every value of a new row's state is */
    double beta_1, beta_2, epsilon;
    double clip_norm; /* 0: gradients as they come */
};

/* float32 values of state of a row of `dim` values. */
uint32_t optimizer_state_dim(int32_t kind, uint32_t dim);

/* Whether a gradient is not all zeros; NaN is not zero. O(1) for most that are not. */
bool optimizer_moves(const any_f32 *gradient, uint32_t dim);

/* values += delta; add of native/optimizers.py. delta at any address, and not in values. O(n). */
void optimizer_add(float *restrict values, const any_f32 *restrict delta, uint32_t n);

/* One step at learning rate `rate`. values: dim of the vector, then the state. gradient: at any address. clipped: dim
 * floats of scratch, used if clip_norm is set. Not finite in, not finite out. O(dim).
 */
void optimizer_step(const struct optimizer *o, double rate, float *values, const any_f32 *gradient, uint32_t dim,
                    float *clipped);

#endif
