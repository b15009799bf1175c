/* A random schedule of lookups, applies, forgets and failing allocations, held to a model of one count per key.
 *
 * schedule <seed> <steps>: prints a hash of everything the table ends with, and ends with 1 and a sentence where the
 * table differs from the model. Built with and without sanitizers; both must print the same.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "mix.h"
#include "table.h"

#define DIM 5
#define KEYS 6000
#define BATCH 400

static uint64_t state;
static int64_t model[KEYS]; /* own events of each key; −1: no row */

static uint64_t draw(uint64_t below)
{
    state += MIX_GOLDEN;
    return mix(state) % below;
}

static void fail(const char *sentence, int step)
{
    fprintf(stderr, "step %d: %s\n", step, sentence);
    exit(1);
}

static uint64_t key_of(uint64_t k)
{
    return mix(k + 1);
}

static int64_t rows_of_model(void)
{
    int64_t n = 0;
    for (int k = 0; k < KEYS; k++)
        n += model[k] >= 0;
    return n;
}

static void check_all(const struct table *t, int step)
{
    const char *wrong = table_check(t);
    if (wrong)
        fail(wrong, step);
    if ((int64_t)t->order.length != rows_of_model())
        fail("another number of rows than the model", step);
    for (uint64_t k = 0; k < KEYS; k++) {
        uint64_t key = key_of(k);
        float vector[DIM];
        uint8_t found;
        struct row_record record;
        table_lookup(t, 1, &key, vector, NULL, &found, &record);
        if (found != (model[k] >= 0) || (found && record.count != model[k]))
            fail("a key differs from the model", step);
        const struct row_id *id = table_id(t, key);
        if ((id != NULL) != (model[k] > 0 && k % 3 != 0) || (id && id->length != 1 + k % 90))
            fail("an id differs from the model", step);
    }
}

static void apply(struct table *t, struct counting *c, int step)
{
    /* exact sizes on the heap, so that reading past an end is seen */
    int n = (int)draw(BATCH + 1);
    uint64_t *keys = malloc((size_t)n * sizeof *keys + 1), *ks = malloc((size_t)n * sizeof *ks + 1);
    float *gradients = calloc((size_t)n * DIM + 1, sizeof *gradients), *positives = calloc((size_t)n + 1, sizeof(float));
    int64_t *counts = calloc((size_t)n + 1, sizeof *counts), *bounds = calloc((size_t)n + 1, sizeof *bounds);
    uint32_t *checks = malloc((size_t)n * sizeof *checks + 1);
    unsigned char *ids = malloc((size_t)n * 90 + 1);
    uint64_t first = draw(KEYS);
    for (int i = 0; i < n; i++) {
        ks[i] = (first + (uint64_t)i * 7) % KEYS; /* distinct: 7 · 400 < 6000 */
        keys[i] = key_of(ks[i]);
        counts[i] = (int64_t)draw(3);
        checks[i] = (uint32_t)keys[i];
        if (draw(2))
            for (int j = 0; j < DIM; j++)
                gradients[i * DIM + j] = (float)draw(1000) / 500 - 1;
        size_t length = ks[i] % 3 ? 1 + ks[i] % 90 : 0;
        memset(ids + bounds[i], (int)ks[i] & 255, length);
        bounds[i + 1] = bounds[i] + (int64_t)length;
    }
    ids = realloc(ids, (size_t)bounds[n] + 1);
    struct table_batch batch = {.n = n, .keys = keys, .gradients = gradients, .counts = counts,
                                .positives = positives, .checks = checks, .id_bounds = bounds, .ids = ids,
                                .ids_size = bounds[n], .clock = step, .now_ms = step, .rate = 0.05};
    struct table_reply reply;
    size_t before = t->order.length;
    c->left = draw(4) ? -1 : (int64_t)draw(4);
    enum table_status status = table_apply(t, &batch, &reply);
    bool failed = c->left == 0 && c->failed;
    c->left = -1;
    c->failed = 0;
    if (status == TABLE_OK) {
        for (int i = 0; i < n; i++) {
            bool moves = optimizer_moves(gradients + i * DIM, DIM);
            if (counts[i] || moves)
                model[ks[i]] = (model[ks[i]] < 0 ? 0 : model[ks[i]]) + counts[i];
        }
    } else if (status != TABLE_NO_MEMORY || !failed || t->order.length != before) {
        fail("a call failed for no reason", step);
    }
    free(keys), free(ks), free(gradients), free(positives), free(counts), free(bounds), free(checks), free(ids);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    state = strtoull(argv[1], NULL, 10);
    int steps = atoi(argv[2]);
    memset(model, 255, sizeof model);
    struct counting counting;
    struct allocator allocator;
    counting_open(&allocator, &counting);
    struct table_spec spec = {.dim = DIM, .seed = 3, .initial_std = 0.1, .gap_rate = 0.05, .half_life = 1000,
                              .salt = state,
                              .optimizer = {.kind = (int32_t)draw(OPTIMIZER_KINDS), .initial_accumulator = 0.1f,
                                            .beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7, .clip_norm = 1.5}};
    struct table table;
    if (table_open(&table, &spec, &allocator) != TABLE_OK)
        fail("no table", 0);
    for (int step = 1; step <= steps; step++) {
        if (draw(4)) {
            apply(&table, &counting, step);
        } else {
            uint64_t keys[BATCH];
            uint64_t first = draw(KEYS), n = draw(BATCH);
            for (uint64_t i = 0; i < n; i++) {
                keys[i] = key_of((first + i) % KEYS);
                model[(first + i) % KEYS] = -1;
            }
            table_forget(&table, (int64_t)n, keys);
        }
        if (step % 16 == 0)
            check_all(&table, step);
    }
    check_all(&table, steps);
    uint64_t hash = table.order.length;
    for (handle h = table.order.first; h; h = ((struct row *)slab_at(&table.slab, h))->links.next) {
        const struct row *row = slab_at(&table.slab, h);
        hash = mix(hash ^ row->key) + (uint64_t)row->count;
        for (uint32_t j = 0; j < table.values; j++) {
            uint32_t bits;
            memcpy(&bits, &row->values[j], sizeof bits);
            hash = mix(hash ^ bits);
        }
    }
    table_close(&table);
    if (allocator.held || counting.held)
        fail("memory is still held after the end", steps);
    printf("%016" PRIx64 "\n", hash);
    return 0;
}
