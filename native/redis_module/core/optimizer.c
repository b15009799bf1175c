#include "optimizer.h"

#include <math.h>

#include "row.h"

uint32_t optimizer_state_dim(int32_t kind, uint32_t dim)
{
    switch (kind) {
    case OPTIMIZER_ADAGRAD:
        return dim;
    case OPTIMIZER_ROWWISE_ADAGRAD:
        return 1;
    case OPTIMIZER_ADAM:
        return 2 * dim + 1;
    default:
        return 0;
    }
}

void optimizer_add(float *restrict values, const any_f32 *restrict delta, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++)
        values[j] += delta[j];
}

bool optimizer_moves(const any_f32 *gradient, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j++)
        if (gradient[j] != 0.0f)
            return true;
    return false;
}

static void sgd(float *restrict w, const any_f32 *restrict g, uint32_t dim, float rate)
{
    for (uint32_t j = 0; j < dim; j++)
        w[j] -= rate * g[j];
}

static void adagrad(float *restrict w, float *restrict s, const any_f32 *restrict g, uint32_t dim, float rate,
                    float epsilon)
{
    for (uint32_t j = 0; j < dim; j++) {
        float sum = s[j] + g[j] * g[j];
        s[j] = sum;
        w[j] -= rate * g[j] / (sqrtf(sum) + epsilon);
    }
}

static void rowwise_adagrad(float *restrict w, float *restrict s, const any_f32 *restrict g, uint32_t dim, float rate,
                            float epsilon)
{
    double total = 0.0;
    for (uint32_t j = 0; j < dim; j++)
        total += (double)g[j] * (double)g[j];
    s[0] = (float)((double)s[0] + total / dim);
    float divisor = sqrtf(s[0]) + epsilon;
    for (uint32_t j = 0; j < dim; j++)
        w[j] -= rate * g[j] / divisor;
}

static void adam(float *restrict w, float *restrict s, const any_f32 *restrict g, uint32_t dim, double rate,
                 const struct optimizer *o)
{
    if (!optimizer_moves(g, dim))
        return;
    /* the count stands still at 2^24; a state of garbage must not be cast to an integer */
    float count = s[2 * dim];
    int64_t k = (count >= 0.0f && count <= 16777216.0f ? (int64_t)count : 0) + 1;
    s[2 * dim] = (float)k;
    double left_1 = 1.0 - row_power(o->beta_1, k), left_2 = 1.0 - row_power(o->beta_2, k);
    double beta_1 = o->beta_1, beta_2 = o->beta_2, epsilon = o->epsilon;
    float *restrict first = s, *restrict second = s + dim;
    for (uint32_t j = 0; j < dim; j++) {
        double gradient = g[j];
        double m = beta_1 * (double)first[j] + (1.0 - beta_1) * gradient;
        double v = beta_2 * (double)second[j] + (1.0 - beta_2) * gradient * gradient;
        first[j] = (float)m;
        second[j] = (float)v;
        w[j] = (float)((double)w[j] - rate * (m / left_1) / (sqrt(v / left_2) + epsilon));
    }
}

static const any_f32 *clip(const any_f32 *restrict g, uint32_t dim, double longest, float *restrict out)
{
    double total = 0.0;
    for (uint32_t j = 0; j < dim; j++)
        total += (double)g[j] * (double)g[j];
    if (!(total > longest * longest))
        return g;
    double scale = longest / sqrt(total);
    for (uint32_t j = 0; j < dim; j++)
        out[j] = (float)((double)g[j] * scale);
    return out;
}

void optimizer_step(const struct optimizer *o, double rate, float *values, const any_f32 *gradient, uint32_t dim,
                    float *clipped)
{
    if (o->clip_norm > 0.0)
        gradient = clip(gradient, dim, o->clip_norm, clipped);
    float *state = values + dim;
    switch (o->kind) {
    case OPTIMIZER_ADD:
        optimizer_add(values, gradient, dim);
        break;
    case OPTIMIZER_SGD:
        sgd(values, gradient, dim, (float)rate);
        break;
    case OPTIMIZER_ADAGRAD:
        adagrad(values, state, gradient, dim, (float)rate, (float)o->epsilon);
        break;
    case OPTIMIZER_ROWWISE_ADAGRAD:
        rowwise_adagrad(values, state, gradient, dim, (float)rate, (float)o->epsilon);
        break;
    case OPTIMIZER_ADAM:
        adam(values, state, gradient, dim, rate, o);
        break;
    }
}
