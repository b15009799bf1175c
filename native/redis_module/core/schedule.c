#include "schedule.h"

#include <math.h>
#include <string.h>

#include "elementary.h"

#define FIRST_CAPACITY 1023 /* steps: 8 KiB */

static int64_t varied_steps(const struct schedule *s)
{
    switch (s->kind) {
    case SCHEDULE_INVERSE_TIME:
        return s->warmup_steps + SCHEDULE_EXACT_STEPS;
    case SCHEDULE_COSINE:
        return s->warmup_steps + s->steps;
    default:
        return s->warmup_steps;
    }
}

static double factor_of(const struct schedule *s, int64_t step)
{
    if (step < s->warmup_steps)
        return ((double)step + 1.0) / (double)s->warmup_steps;
    double u = (double)(step - s->warmup_steps);
    switch (s->kind) {
    case SCHEDULE_INVERSE_TIME:
        return 1.0 / (1.0 + s->decay * u);
    case SCHEDULE_COSINE:
        if (u >= (double)s->steps)
            return s->floor;
        return s->floor + (1.0 - s->floor) * (0.5 * (1.0 + elementary_cos_pi(u / (double)s->steps)));
    default:
        return 1.0;
    }
}

double schedule_rate(const struct schedule *s, int64_t step)
{
    return s->learning_rate * factor_of(s, step);
}

void decay_open(struct decay_sums *d, const struct schedule *schedule, double l1, double l2,
                struct allocator *allocator)
{
    *d = (struct decay_sums){.allocator = allocator, .schedule = *schedule, .l1 = l1, .l2 = l2};
    d->varied = varied_steps(schedule);
}

static size_t bytes_of(int64_t steps)
{
    return ((size_t)steps + 1) * sizeof(double);
}

void decay_close(struct decay_sums *d)
{
    if (d->sums)
        allocator_give(d->allocator, d->sums, bytes_of(d->capacity));
    d->sums = NULL;
    d->length = d->capacity = 0;
}

/* What a step of this rate adds. */
static double summand(const struct decay_sums *d, double rate)
{
    return d->l2 > 0.0 ? elementary_log1p(-rate * d->l2) : rate;
}

static bool none(const struct decay_sums *d)
{
    return !(d->l1 > 0.0 || d->l2 > 0.0);
}

bool decay_reach(struct decay_sums *d, int64_t stop)
{
    int64_t need = stop < d->varied ? stop : d->varied;
    if (none(d) || (d->sums && need <= d->length))
        return true;
    if (!d->sums || need > d->capacity) {
        int64_t capacity = d->sums ? 2 * d->capacity + 1 : FIRST_CAPACITY;
        if (capacity < need)
            capacity = need;
        if (capacity > d->varied)
            capacity = d->varied;
        double *sums = allocator_take(d->allocator, bytes_of(capacity));
        if (!sums)
            return false;
        sums[0] = 0.0;
        if (d->sums) {
            memcpy(sums, d->sums, bytes_of(d->length));
            allocator_give(d->allocator, d->sums, bytes_of(d->capacity));
        }
        d->sums = sums;
        d->capacity = capacity;
    }
    for (; d->length < need; d->length++)
        d->sums[d->length + 1] = d->sums[d->length] + summand(d, schedule_rate(&d->schedule, d->length));
    return true;
}

/* Σ of the summands of steps start … stop − 1, start ≥ varied, by Euler and Maclaurin: see schedules.py. */
static double inverse_time_tail(const struct decay_sums *d, int64_t start, int64_t stop)
{
    double rate = d->schedule.learning_rate, k = d->schedule.decay;
    double x = 1.0 + k * (double)(start - d->schedule.warmup_steps);
    double y = 1.0 + k * (double)(stop - d->schedule.warmup_steps);
    double between = elementary_log1p((y - x) / x);
    if (!(d->l2 > 0.0))
        return rate * (between / k + 0.5 * (1.0 / x - 1.0 / y));
    double a = rate * d->l2;
    double at_x = elementary_log1p(-a / x), at_y = elementary_log1p(-a / y);
    double total = ((y - a) * at_y - (x - a) * at_x - a * between) / k + 0.5 * (at_x - at_y);
    return total > 0.0 ? 0.0 : total;
}

static double missed(const struct decay_sums *d, int64_t start, int64_t stop)
{
    int64_t varied = d->varied, head = stop < varied ? stop : varied;
    double total = d->sums[head] - d->sums[start < head ? start : head];
    if (stop > varied) {
        int64_t from = start > varied ? start : varied;
        if (d->schedule.kind == SCHEDULE_INVERSE_TIME)
            total += inverse_time_tail(d, from, stop);
        else
            total += (double)(stop - from) * summand(d, schedule_rate(&d->schedule, varied));
    }
    return total;
}

void decay_closed_form(const struct decay_sums *d, int64_t start, int64_t stop, double *factor, double *threshold)
{
    *factor = 1.0;
    *threshold = 0.0;
    if (none(d) || start >= stop)
        return;
    double total = missed(d, start, stop);
    if (!(d->l2 > 0.0)) {
        *threshold = d->l1 * total;
        return;
    }
    *factor = elementary_exp(total);
    if (d->l1 > 0.0)
        *threshold = -elementary_expm1(total) * (d->l1 / d->l2);
}

void decay_missed_open(struct decay_missed *m, const struct decay_sums *sums, int64_t stop)
{
    m->sums = sums;
    m->stop = stop;
    memset(m->starts, 0xFF, sizeof m->starts);
}

void decay_missed_since(struct decay_missed *m, int64_t start, double *factor, double *threshold)
{
    /* steps at which calls end lie apart: Fibonacci hashing spreads them */
    size_t at = (size_t)((uint64_t)start * UINT64_C(0x9E3779B97F4A7C15) >> 56);
    if (m->starts[at] != start) {
        decay_closed_form(m->sums, start, m->stop, &m->factors[at], &m->thresholds[at]);
        m->starts[at] = start;
    }
    *factor = m->factors[at];
    *threshold = m->thresholds[at];
}

void decay_shrink(float *values, uint32_t dim, double factor, double threshold)
{
    if (threshold == 0.0) {
        for (uint32_t j = 0; j < dim; j++)
            values[j] = (float)((double)values[j] * factor);
        return;
    }
    /* half of left + |left| is max(0, left), with NaN kept and no branch, so that the loop runs in vector registers; + 0.0
     * makes +0 of −0 */
    for (uint32_t j = 0; j < dim; j++) {
        double w = (double)values[j], left = fabs(w) * factor - threshold;
        values[j] = (float)(copysign(0.5 * (left + fabs(left)), w) + 0.0);
    }
}
