/* What memory alone costs: rows of a flat array at random places, read into a buffer or updated from one. No keys, no
 * index, no header. Prefetched in blocks like the table, so that it is a floor and not a straw man.
 */
#include <stdint.h>
#include <string.h>

#define BLOCK 32

static void prefetch(const float *rows, const int64_t *at, int n, int64_t dim)
{
    for (int k = 0; k < n; k++)
        for (int64_t j = 0; j < dim; j += 16)
            __builtin_prefetch(rows + at[k] * dim + j);
}

void floor_gather(const float *rows, const int64_t *at, int64_t n, int64_t dim, float *out)
{
    for (int64_t from = 0; from < n; from += BLOCK) {
        int block = (int)(n - from < BLOCK ? n - from : BLOCK);
        prefetch(rows, at + from, block, dim);
        for (int64_t i = from; i < from + block; i++)
            memcpy(out + i * dim, rows + at[i] * dim, (size_t)dim * sizeof *out);
    }
}

void floor_update(float *rows, const int64_t *at, int64_t n, int64_t dim, const float *gradients, float rate)
{
    for (int64_t from = 0; from < n; from += BLOCK) {
        int block = (int)(n - from < BLOCK ? n - from : BLOCK);
        prefetch(rows, at + from, block, dim);
        for (int64_t i = from; i < from + block; i++) {
            float *restrict row = rows + at[i] * dim;
            const float *restrict gradient = gradients + i * dim;
            for (int64_t j = 0; j < dim; j++)
                row[j] -= rate * gradient[j];
        }
    }
}
