#include "apply.h"

#include <string.h>

#include "call.h"

static void release_blocks(struct call *c)
{
    while (c->blocks_used) {
        c->blocks_used--;
        allocator_give(c->table->allocator, c->blocks[c->blocks_used].block, c->blocks[c->blocks_used].size);
    }
}

/* Rows and counts that forgets remove. */
static int64_t lost(const struct call *c)
{
    int64_t n = 0;
    for (int64_t i = 0; c->flush->head.forgets && i < c->n; i++) {
        const struct plan *p = &c->plans[i];
        n += p->flags & PLAN_WIPED && (p->before == STANDING_ROW || p->before == STANDING_STUB);
    }
    return n;
}

bool apply(struct table *t, struct feed *feed, const struct decay_sums *sums, const struct flush *flush, int64_t clock,
           int64_t now_ms, int64_t number, bool *changed, struct apply_counts *counts, struct fault *fault)
{
    int64_t step = clock / t->spec->step_events;
    struct call c = {.table = t, .spec = t->spec, .flush = flush, .feed = feed, .counts_out = counts,
                     .n = flush->head.keys, .clock = clock, .now_ms = now_ms, .rate_step = step,
                     .counts = flush->counts, .positives = flush->positives};
    c.rate = t->spec->optimizer.kind == OPTIMIZER_ADD ? 1.0 : schedule_rate(&t->spec->schedule, step);
    *counts = (struct apply_counts){0};
    fault_set(fault, FAULT_MEMORY, "no memory for a call of %lld keys; shrink the tables, or raise the limit",
              (long long)c.n);
    bool done = screen(&c, fault);
    if (done && !(done = plan(&c) && limits_reserve(&c))) {
        plan_undo(&c);
        limits_release(&c);
    }
    if (done) {
        counts->forgotten = lost(&c);
        carry_out(&c, sums);
        limits_keep(&c);
        if ((*changed = c.changed.count > 0)) {
            c.changed.number = number + 1;
            feed_add(feed, &c.changed, table_rows(t));
            c.changed = (struct feed_entry){0};
        }
        limits_release(&c);
    }
    release_blocks(&c);
    return done;
}
