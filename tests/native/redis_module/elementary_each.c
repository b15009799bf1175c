/* The functions of elementary.h over arrays, so that a test can ask for millions. */
#include <stdint.h>

#include "elementary.h"

void elementary_each(int function, int64_t n, const double *x, double *out)
{
    double (*const functions[])(double) = {elementary_exp, elementary_expm1, elementary_log1p, elementary_cos_pi};
    for (int64_t i = 0; i < n; i++)
        out[i] = functions[function](x[i]);
}
