/* table_check: what always holds. */
#include "access.h"

struct tally {
    uint64_t listed[STANDINGS], extras;
};

static const char *check_list(const struct table *t, enum table_list which, enum standing standing,
                              struct tally *tally)
{
    const struct order *o = &t->lists[which];
    handle before = 0;
    for (handle h = o->first; h; h = order_links(o, h)->next) {
        if (order_links(o, h)->prev != before)
            return "a link back is not to the object before it";
        if (standing_of(t, h) != standing)
            return "an object is in the list of another standing";
        if (before && order_score(o, h) < order_score(o, before))
            return "scores of a list fall";
        if (++tally->listed[standing] > t->index.used)
            return "a list has more objects than the index, or a ring";
        before = h;
    }
    if (before != o->last || tally->listed[standing] != o->length)
        return "a list does not end at its last object, or has not its length";
    return NULL;
}

static const char *check_object(const struct table *t, handle h, uint64_t *standings, struct tally *tally)
{
    const struct row *row = row_at(t, h);
    if (access_find(t, row->key) != h)
        return "the index finds something else under a key";
    enum standing standing = standing_of(t, h);
    standings[standing]++;
    tally->extras += row->extra != 0;
    const struct row_extra *extra = extra_of(t, row);
    if (standing != STANDING_ROW && extra_id_length(extra))
        return "a key without a row has an id";
    if (is_row(t, h) && class_of(t, h) != class_for(t, extra_id_length(extra), extra_fence(extra) != NULL))
        return "a row is of another class than its id and fence ask for";
    if (is_known(t, h) && row->digest != mix_digest(extra->bytes, extra_id_length(extra), t->salt))
        return "a row's digest is not its id's";
    return NULL;
}

static const char *check_index(const struct table *t, uint64_t *standings, struct tally *tally)
{
    uint64_t used = 0;
    const struct index *x = &t->index;
    for (size_t k = 0; k < (size_t)1 << x->depth; k++) {
        struct index_segment *segment = x->directory[k];
        uint32_t depth = *index_segment_depth(segment), low = (1u << depth) - 1, n = 0;
        if (depth > x->depth || segment != x->directory[k & low])
            return "the directory does not agree with a segment's depth";
        if (k > low)
            continue;
        for (uint32_t s = 0; s < INDEX_BUCKETS * INDEX_SLOTS; s++) {
            const struct index_bucket *bucket = &segment->buckets[s / INDEX_SLOTS];
            handle h = bucket->handles[s % INDEX_SLOTS];
            uint64_t place = bucket->places[s % INDEX_SLOTS];
            if (!h && place)
                return "an empty slot is not all zeros";
            if (!h)
                continue;
            if (s % INDEX_SLOTS && !bucket->handles[s % INDEX_SLOTS - 1])
                return "a slot in use comes after an empty one";
            if ((place & low) != k)
                return "a key is in a segment of other keys";
            if (index_find(x, place) != h)
                return "a key is not where probing finds it";
            const char *wrong = check_object(t, h, standings, tally);
            if (wrong)
                return wrong;
            n++;
        }
        if (n != *index_segment_used(segment) || n > INDEX_FULL)
            return "a segment's count is not what it holds";
        used += n;
    }
    for (uint32_t k = 0; x->recent && k < 1u << x->recent_bits; k++)
        if (x->recent[k].handle && index_find(x, x->recent[k].place) != x->recent[k].handle)
            return "what was found lately is not what the index has";
    return used == x->used ? NULL : "the index's count is not what its segments hold";
}

const char *table_check(const struct table *t)
{
    static const enum standing standings[LISTS] = {STANDING_ROW, STANDING_STUB, STANDING_EVICTED, STANDING_FORGOTTEN};
    uint64_t found[STANDINGS] = {0};
    struct tally tally = {0};
    const char *wrong = check_index(t, found, &tally);
    for (int k = 0; !wrong && k < LISTS; k++) {
        wrong = check_list(t, (enum table_list)k, standings[k], &tally);
        if (!wrong && (k > 0 || t->limited) && tally.listed[standings[k]] != found[standings[k]])
            wrong = "a key is in no list";
    }
    if (wrong)
        return wrong;
    if (found[STANDING_STUB] + found[STANDING_EVICTED] + found[STANDING_FORGOTTEN] != t->bare)
        return "the count of keys without a row is not what there is";
    if (t->index.used + tally.extras != t->slab.objects)
        return "the slabs hold objects that are no key's";
    return NULL;
}
