/* One apply under way: the files screen.c, plan.c, carry.c and limits.c are its steps, apply.c their order. */
#ifndef TOW_CALL_H
#define TOW_CALL_H

#include "access.h"
#include "apply.h"
#include "feed.h"

/* What is known of a key, or planned for it. */
enum {
    PLAN_NAMED_BEFORE = 1, /* has a row with an id */
    PLAN_TAKEN = 2,        /* the key is another id's: only a forget can have an effect */
    PLAN_FENCED = 4,       /* has a fence that is to be heeded */
    PLAN_WIPED = 8,        /* forgotten by this call */
    PLAN_SHUT = 16,        /* takes no gradients */
    PLAN_WRITTEN = 32,
    PLAN_CHECKED = 64,   /* gets its check bits from this call */
    PLAN_EXTRA = 128,    /* `extra` is what it has afterwards, 0: nothing */
    PLAN_INSERTED = 256, /* `made` is in the index already */
    PLAN_VALUE = 512,    /* gets a new value */
    PLAN_KNOWN = 1024, /* is_known */
    PLAN_MOVED = 2048, /* `made` takes over the row as it is: its class has changed */
};

struct plan {
    handle old;   /* what the key has, 0: nothing */
    handle made;  /* reserved for what it becomes, 0: `old` stays */
    handle extra; /* reserved, see PLAN_EXTRA */
    uint16_t flags;
    uint8_t before, after; /* enum standing */
};

#define CALL_BLOCKS 16

struct call {
    struct table *table;
    const struct spec *spec;
    const struct flush *flush;
    struct feed *feed;
    struct apply_counts *counts_out;
    int64_t n, clock, now_ms, rate_step;
    double rate;
    bool later; /* ids of known rows are compared when the row is carried out: it is in the cache then, and only then */

    /* (n,) */
    struct plan *plans;
    const any_i64 *counts; /* own events that are let in: the flush's, or a copy of it without those that are not */
    const any_f32 *positives;
    struct row_body *bodies; /* reserved; tables with bodies only */

    /* keys → index + 1: open addressing, for finding repeats, and which evicted rows are the call's own */
    uint32_t *places;
    uint32_t places_mask;

    /* sequence tables: appends that are let in by key, append_order[append_bounds[i] … append_bounds[i + 1]) */
    uint32_t *append_bounds, *append_order, *append_spare;
    struct entry *merged; /* scratch of spec.length entries */
    /* record tables: index + 1 of the newest value that is let in, its bytes begin at value_at[index] */
    uint32_t *newest;
    uint64_t *value_at;
    /* NULL: all are let in */
    uint8_t *kept_appends, *kept_values;
    /* (n,) index + 1 of the forget; NULL: none */
    uint32_t *forget_of;

    /* keys that come to have a standing, and that cease to, by standing */
    int64_t entered[STANDINGS], left[STANDINGS];
    int64_t written;

    handle *marks; /* reserved for rows that are evicted */
    int64_t marks_reserved, marks_used;

    struct order_item *joins, *joins_spare; /* keys on their way into lists: twice joins_length, and once */
    size_t joins_length;
    struct feed_entry changed;

    struct {
        void *block;
        size_t size;
    } blocks[CALL_BLOCKS];
    int blocks_used;
};

/* Scratch that lives as long as the call, zeros if `zero`. NULL: no memory; or nothing was asked for. */
void *call_take(struct call *c, size_t count, size_t size, bool zero);

/* Index of a key of the call, −1: it isn't one. O(1) expected. */
int64_t call_index(const struct call *c, uint64_t key);

/* Whether a known row is of another id than key i, whose id begins at `id`. */
bool call_other(const struct call *c, const struct row *row, int64_t i, const unsigned char *id);

/* Counts a key that is left out, because it is another id's. */
void call_refuse(struct call *c, int64_t i);

/* 1. Finds what every key has; leaves out what is not let in. False: no memory, or a key comes twice. */
bool screen(struct call *c, struct fault *fault);

/* 2. Decides what becomes of every key, and reserves all memory for it. False: no memory. */
bool plan(struct call *c);

/* Takes back what `plan` reserved. */
void plan_undo(struct call *c);

/* 3. Carries the plans out. Can't fail. */
void carry_out(struct call *c, const struct decay_sums *sums);

/* Reserves what evicting may need. False: no memory. */
bool limits_reserve(struct call *c);

/* 4. Joins the lists, lets go of what is over the limits, fills `changed`. Can't fail. */
void limits_keep(struct call *c);

/* Gives back what was reserved and not used. */
void limits_release(struct call *c);

#endif
