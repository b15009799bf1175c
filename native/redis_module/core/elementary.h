/* exp, expm1, log1p and cos(π·x), bit for bit those of native/elementary.py, on every machine: its docstrings say how.
 *
 * libm's are not called, because their last bit differs between versions, and replicas must agree. No state, no errno; any
 * number may be given, NaN included, and all of them are O(1).
 */
#ifndef TOW_ELEMENTARY_H
#define TOW_ELEMENTARY_H

/* e^x and e^x − 1 for x ≤ 0. x > 0 is taken for 0. */
double elementary_exp(double x);
double elementary_expm1(double x);

/* log(1 + x) for x > −1; −∞ for others. */
double elementary_log1p(double x);

/* cos(π·x) for x in [0, 1]. */
double elementary_cos_pi(double x);

#endif
