/* A life of an index, with failing allocations, held to an array.
 *
 * index_life <seed> <rounds>: prints a hash of what was found, and ends with 1 and a sentence where the two differ. Built
 * with and without sanitizers; both must print the same.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "index.h"
#include "mix.h"

#define KEYS 40000
#define STEPS 400000

static uint64_t state, hash, places[KEYS];
static bool remembered;
static handle model[KEYS]; /* 0: not there */

static uint64_t draw(uint64_t below)
{
    state += MIX_GOLDEN;
    return mix(state) % below;
}

static void fail(const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    exit(1);
}

/* Some at random; some that begin probing in the same few buckets, the last and the first among them; one is 0. */
static void draw_places(void)
{
    for (uint64_t i = 0; i < KEYS; i++) {
        uint64_t place = mix(i + state);
        if (i % 4 == 0)
            place = (place & (UINT64_MAX >> 7)) | (UINT64_C(126) + i / 4 % 3) << 57;
        places[i] = i ? place : 0;
    }
}

static void check(const struct index *x, uint64_t i)
{
    if (index_find(x, places[i]) != model[i])
        fail("found something else than was put there");
    handle lately = index_find_recent(x, places[i]);
    if (lately != model[i])
        fail("what was found lately is not what is there");
    hash = mix(hash ^ lately);
}

static void one_life(void)
{
    struct counting counting;
    struct allocator allocator;
    struct index x;
    counting_open(&allocator, &counting);
    counting.fast = 1;
    memset(model, 0, sizeof model);
    draw_places();
    if (!index_open(&x, &allocator))
        fail("no index");
    uint64_t used = 0, keys = 1 + draw(KEYS);
    for (uint64_t step = 0; step < STEPS; step++) {
        uint64_t i = draw(keys), what = draw(step / 50000 % 2 ? 10 : 6);
        check(&x, draw(keys));
        if (!model[i] && what < 4) {
            counting.left = draw(20) ? -1 : (int64_t)draw(3);
            handle h = (handle)(1 + draw(UINT32_MAX - 1));
            if (index_insert(&x, places[i], h)) {
                model[i] = h;
                used++;
            } else if (counting.left < 0) {
                fail("an insert failed with memory");
            }
            counting.left = -1;
        } else if (model[i] && what == 4) {
            model[i] = (handle)(1 + draw(UINT32_MAX - 1));
            index_replace(&x, places[i], model[i]);
        } else if (model[i] && what > 4) {
            index_erase(&x, places[i]);
            model[i] = 0;
            used--;
        }
        check(&x, i);
        if (x.used != used)
            fail("the count is wrong");
    }
    for (uint64_t i = 0; i < KEYS; i++)
        check(&x, i);
    remembered |= x.recent != NULL;
    index_close(&x);
    if (counting.held || allocator.held)
        fail("memory is still held after the end");
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    state = strtoull(argv[1], NULL, 10);
    for (int round = atoi(argv[2]); round > 0; round--)
        one_life();
    if (!remembered)
        fail("no index became so large that it remembers what was found; make more rounds");
    printf("%016" PRIx64 "\n", hash);
    return 0;
}
