/* Sums that grow at random, with failing allocations, held to sums that grew at once.
 *
 * decay_growth <seed> <rounds>: prints a hash of what rows miss, and ends with 1 and a sentence where the two differ. Built
 * with and without sanitizers; both must print the same.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "mix.h"
#include "schedule.h"

static uint64_t state, hash;

static int64_t draw(int64_t below)
{
    state += MIX_GOLDEN;
    return (int64_t)(mix(state) % (uint64_t)below);
}

static double share(void)
{
    return (double)(draw(1 << 20) + 1) / (1 << 20);
}

static void fail(const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    exit(1);
}

static void add(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    hash = mix(hash ^ bits);
}

static void one_schedule(void)
{
    struct schedule schedule = {.kind = (int32_t)draw(SCHEDULE_KINDS), .warmup_steps = draw(2) * draw(9000),
                                .learning_rate = share(), .decay = share(), .steps = 1 + draw(9000), .floor = share()};
    double l1 = (double)draw(2) * share(), l2 = (double)draw(2) * share() * 0.9;
    struct counting counting, plenty;
    struct allocator failing, whole_allocator;
    counting_open(&failing, &counting);
    counting_open(&whole_allocator, &plenty);
    struct decay_sums grown, whole;
    decay_open(&grown, &schedule, l1, l2, &failing);
    decay_open(&whole, &schedule, l1, l2, &whole_allocator);
    int64_t stop = 0;
    decay_reach(&whole, 40000);
    for (int i = 0; i < 60; i++) {
        int64_t next = stop + draw(600);
        struct decay_sums before = grown;
        counting.left = draw(3) ? -1 : 0;
        bool reached = decay_reach(&grown, next);
        if (!reached && (counting.left != 0 || memcmp(&before, &grown, sizeof grown) != 0))
            fail("a failed growth changed something");
        stop = reached ? next : stop;
        /* elsewhere: nothing may point into the struct or to the schedule */
        struct decay_sums moved = grown;
        memset(&grown, 0xA5, sizeof grown);
        memset(&schedule, 0xA5, sizeof schedule);
        grown = moved;
        int64_t start = draw(stop + 1);
        double factor, threshold, factor_whole, threshold_whole;
        decay_closed_form(&grown, start, stop, &factor, &threshold);
        decay_closed_form(&whole, start, stop, &factor_whole, &threshold_whole);
        if (factor != factor_whole || threshold != threshold_whole)
            fail("grown in pieces differs from grown at once");
        if (!(factor >= 0 && factor <= 1 && threshold >= 0))
            fail("out of range");
        float values[5] = {1.5f, -0.5f, 0.0f, -0.0f, 1e-30f};
        decay_shrink(values, 5, factor, threshold);
        for (int j = 0; j < 5; j++)
            add((double)values[j]);
        add(factor);
        add(threshold);
    }
    decay_close(&grown);
    decay_close(&whole);
    if (counting.held || plenty.held || failing.held || whole_allocator.held)
        fail("memory is still held after the end");
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    state = strtoull(argv[1], NULL, 10);
    for (int round = atoi(argv[2]); round > 0; round--)
        one_schedule();
    printf("%016" PRIx64 "\n", hash);
    return 0;
}
