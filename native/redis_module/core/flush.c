/* flush_parse: first the sizes, which are all checked before a column is looked at; then what the columns hold. */
#include "flush.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "mix.h"
#include "row.h"

#define MAX_NOW_MS (INT64_C(1) << 53) /* as embedding_store/validation.py */
#define MAX_POSITIVES 1e15f

_Static_assert(sizeof(size_t) == 8, "sums of checked sizes don't overflow");

static bool check_flags(const struct flush_head *h, struct fault *fault)
{
    uint32_t known = h->version == 1 ? FLUSH_FLAGS_1 : FLUSH_FLAGS;
    if (h->flags & ~known)
        return fault_set(fault, FAULT_BAD, "flags %#x; known are %#x", h->flags, known);
    if (h->flags & FLUSH_OWN && h->flags & FLUSH_UNPLACED)
        return fault_set(fault, FAULT_BAD, "flags %#x say that places of own events are here, and that they are not",
                         h->flags);
    bool deltas = (h->flags & FLUSH_GRADIENTS) && (h->flags & FLUSH_DELTAS);
    bool wanted = deltas && h->state_dim;
    bool given = h->flags & FLUSH_STATE;
    if (given != wanted)
        return fault_set(fault, FAULT_BAD,
                         "changes of state go with gradients in mode deltas of a table that has state: flags %#x, "
                         "state_dim %u, changes of state %s",
                         h->flags, h->state_dim, given ? "given" : "missing");
    if (!(h->flags & FLUSH_OWN) && h->own)
        return fault_set(fault, FAULT_BAD, "%u places of own events, but flags %#x say there are none", h->own,
                         h->flags);
    if (h->unused)
        return fault_set(fault, FAULT_BAD, "the head's last field must be 0, got %" PRIu64, h->unused);
    return true;
}

static bool check_number(const char *name, int64_t value, int64_t below, struct fault *fault)
{
    if (value < 0)
        return fault_set(fault, FAULT_BAD, "%s must not be negative, got %" PRId64, name, value);
    if (below && value >= below)
        return fault_set(fault, FAULT_BAD, "%s must be below %" PRId64 ", got %" PRId64, name, below, value);
    return true;
}

static bool check_count(const char *name, uint32_t count, uint32_t most, struct fault *fault)
{
    if (count > most)
        return fault_set(fault, FAULT_BAD, "%u %s in one call; at most %u, make several calls", count, name, most);
    return true;
}

static bool check_bytes(const char *name, uint64_t bytes, size_t size, struct fault *fault)
{
    if (bytes > size)
        return fault_set(fault, FAULT_BAD, "%" PRIu64 " bytes of %s in a call of %zu", bytes, name, size);
    return true;
}

static bool check_head(const struct flush_head *h, size_t size, uint32_t dim, uint32_t state_dim, struct fault *fault)
{
    if (h->version < 1 || h->version > FLUSH_VERSION)
        return fault_set(fault, FAULT_BAD, "a call of format version %u; this module reads 1 to %u: upgrade the older side",
                         h->version, FLUSH_VERSION);
    if (h->dim != dim || h->state_dim != state_dim)
        return fault_set(fault, FAULT_BAD, "the table has dim %u and state_dim %u, the call is for %u and %u", dim,
                         state_dim, h->dim, h->state_dim);
    if (!h->ranges)
        return fault_set(fault, FAULT_BAD, "0 ranges: a call without sources can't be told from its repeat, send 1 or "
                                           "more");
    return check_flags(h, fault) && check_number("generation", h->generation, 0, fault) &&
           check_number("events", h->events, 0, fault) && check_number("event_time_ms", h->event_time_ms, 0, fault) &&
           check_number("produced_ms", h->produced_ms, 0, fault) &&
           check_number("now_ms", h->now_ms, MAX_NOW_MS, fault) &&
           check_count("ranges", h->ranges, FLUSH_MAX_RANGES, fault) &&
           check_count("keys", h->keys, FLUSH_MAX_KEYS, fault) &&
           check_count("appends", h->appends, FLUSH_MAX_KEYS, fault) &&
           check_count("values", h->values, FLUSH_MAX_KEYS, fault) &&
           check_count("own events", h->own, FLUSH_MAX_KEYS, fault) &&
           check_count("forgets", h->forgets, FLUSH_MAX_KEYS, fault) &&
           check_bytes("sources", h->sources_size, size, fault) && check_bytes("ids", h->ids_size, size, fault) &&
           check_bytes("values", h->values_size, size, fault);
}

/* The next column, of so many bytes. */
static const void *column(const unsigned char **at, size_t bytes)
{
    const unsigned char *here = *at;
    *at += bytes;
    return here;
}

/* Bytes of everything, from counts that are at most FLUSH_MAX_KEYS, dims at most ROW_MAX_DIM, and sizes at most the
 * blob's: far below 2^64.
 */
static size_t all_bytes(const struct flush_head *h)
{
    size_t n = h->keys;
    size_t bytes = sizeof *h + h->ranges * (size_t)18 + h->sources_size + n * 26 + h->ids_size;
    if (h->flags & FLUSH_GRADIENTS)
        bytes += n * h->dim * sizeof(float);
    if (h->flags & FLUSH_STATE)
        bytes += n * h->state_dim * sizeof(float);
    bytes += h->appends * (4 + sizeof(struct entry)) + h->values * (8 + sizeof(struct place)) + h->values_size;
    if (h->flags & FLUSH_OWN)
        bytes += h->own * (8 + sizeof(struct place));
    return bytes + h->forgets * ((h->flags & FLUSH_CHECKS ? 8 : 4) + sizeof(struct place));
}

static void find_columns(struct flush *f, const unsigned char *at)
{
    const struct flush_head *h = &f->head;
    size_t n = h->keys;
    at += sizeof *h;
    f->starts = column(&at, h->ranges * sizeof(int64_t));
    f->stops = column(&at, h->ranges * sizeof(int64_t));
    f->source_lengths = column(&at, h->ranges * sizeof(uint16_t));
    f->sources = column(&at, h->sources_size);
    f->keys = column(&at, n * sizeof(uint64_t));
    f->counts = column(&at, n * sizeof(int64_t));
    f->positives = column(&at, n * sizeof(float));
    f->checks = column(&at, n * sizeof(uint32_t));
    f->id_lengths = column(&at, n * sizeof(uint16_t));
    f->ids = column(&at, h->ids_size);
    if (h->flags & FLUSH_GRADIENTS)
        f->gradients = column(&at, n * h->dim * sizeof(float));
    if (h->flags & FLUSH_STATE)
        f->state = column(&at, n * h->state_dim * sizeof(float));
    f->append_rows = column(&at, h->appends * sizeof(uint32_t));
    f->appends = column(&at, h->appends * sizeof(struct entry));
    f->value_rows = column(&at, h->values * sizeof(uint32_t));
    f->value_places = column(&at, h->values * sizeof(struct place));
    f->value_lengths = column(&at, h->values * sizeof(uint32_t));
    f->values = column(&at, h->values_size);
    if (h->flags & FLUSH_OWN) {
        f->own_rows = column(&at, h->own * sizeof(uint32_t));
        f->own_places = column(&at, h->own * sizeof(struct place));
        f->own_positives = column(&at, h->own * sizeof(float));
    }
    f->forget_rows = column(&at, h->forgets * sizeof(uint32_t));
    f->forget_places = column(&at, h->forgets * sizeof(struct place));
    if (h->flags & FLUSH_CHECKS)
        f->forget_checks = column(&at, h->forgets * sizeof(uint32_t));
}

/* What tells repeated rows and sources: too large for the stack, and nothing that a caller should have to bring. */
static _Thread_local uint64_t seen[FLUSH_MAX_KEYS / 64];
static _Thread_local uint32_t begins[FLUSH_MAX_RANGES], order[FLUSH_MAX_RANGES];

/* memcmp's order, shorter first. */
static int compare_sources(const struct flush *f, uint32_t a, uint32_t b)
{
    size_t la = f->source_lengths[a], lb = f->source_lengths[b];
    int difference = memcmp(f->sources + begins[a], f->sources + begins[b], la < lb ? la : lb);
    return difference ? difference : (la > lb) - (la < lb);
}

static void sift_down(const struct flush *f, uint32_t from, uint32_t length)
{
    uint32_t moved = order[from];
    for (uint32_t child; (child = 2 * from + 1) < length; from = child) {
        if (child + 1 < length && compare_sources(f, order[child + 1], order[child]) > 0)
            child++;
        if (compare_sources(f, moved, order[child]) >= 0)
            break;
        order[from] = order[child];
    }
    order[from] = moved;
}

/* Heapsort (Williams 1964): no memory, and no order of sources that makes it slow. */
static void sort_sources(const struct flush *f)
{
    uint32_t n = f->head.ranges;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(f, i, n);
    for (uint32_t i = n; i-- > 1;) {
        uint32_t last = order[i];
        order[i] = order[0];
        order[0] = last;
        sift_down(f, 0, i);
    }
}

static bool distinct_sources(const struct flush *f, struct fault *fault)
{
    uint32_t i = 1;
    while (i < f->head.ranges && compare_sources(f, i - 1, i) < 0)
        i++;
    if (i == f->head.ranges)
        return true; /* they come in order */
    sort_sources(f);
    for (i = 1; i < f->head.ranges; i++)
        if (compare_sources(f, order[i - 1], order[i]) == 0)
            return fault_set(fault, FAULT_BAD, "source %.*s has two ranges, number %u and %u: merge them, or make two "
                                               "calls", (int)f->source_lengths[order[i]], f->sources + begins[order[i]],
                             order[i - 1], order[i]);
    return true;
}

static bool check_ranges(const struct flush *f, struct fault *fault)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->head.ranges; i++) {
        uint32_t length = f->source_lengths[i];
        if (length < 1 || length > FLUSH_MAX_SOURCE)
            return fault_set(fault, FAULT_BAD, "source of range %u has %u bytes; 1 to %u are allowed", i, length,
                             FLUSH_MAX_SOURCE);
        if (f->starts[i] < 0 || f->starts[i] >= f->stops[i])
            return fault_set(fault, FAULT_BAD, "range %u, [%" PRId64 ", %" PRId64 "), is empty or negative", i,
                             f->starts[i], f->stops[i]);
        begins[i] = (uint32_t)bytes;
        bytes += length;
    }
    if (bytes != f->head.sources_size)
        return fault_set(fault, FAULT_BAD, "lengths of sources add up to %" PRIu64 ", but they have %" PRIu64 " bytes",
                         bytes, f->head.sources_size);
    return distinct_sources(f, fault);
}

static bool check_keys(const struct flush *f, struct fault *fault)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->head.keys; i++) {
        if (f->id_lengths[i] > ROW_MAX_ID)
            return fault_set(fault, FAULT_BAD, "id of key %u has %u bytes; at most %u are kept", i, f->id_lengths[i],
                             (unsigned)ROW_MAX_ID);
        if (f->counts[i] < 0 || f->counts[i] > f->head.events)
            return fault_set(fault, FAULT_BAD, "count of key %u is %" PRId64 "; it must lie in [0, events = %" PRId64
                                               "]", i, f->counts[i], f->head.events);
        if (!(f->positives[i] >= 0 && f->positives[i] <= MAX_POSITIVES))
            return fault_set(fault, FAULT_BAD, "positives of key %u are %g; they must lie in [0, %g]", i,
                             (double)f->positives[i], (double)MAX_POSITIVES);
        bytes += f->id_lengths[i];
    }
    if (bytes != f->head.ids_size)
        return fault_set(fault, FAULT_BAD, "lengths of ids add up to %" PRIu64 ", but they have %" PRIu64 " bytes",
                         bytes, f->head.ids_size);
    return true;
}

static bool check_row(const char *name, const struct flush *f, uint32_t i, uint32_t row, struct fault *fault)
{
    if (row >= f->head.keys)
        return fault_set(fault, FAULT_BAD, "%s %u is of row %u; the call has %u keys", name, i, row, f->head.keys);
    return true;
}

static bool check_place(const char *name, uint32_t i, int64_t time_ms, int64_t place, struct fault *fault)
{
    if (time_ms < 0 || place < 0)
        return fault_set(fault, FAULT_BAD, "%s %u is at time %" PRId64 " and place %" PRId64
                                           "; neither may be negative", name, i, time_ms, place);
    return true;
}

static bool check_appends(const struct flush *f, struct fault *fault)
{
    for (uint32_t i = 0; i < f->head.appends; i++) {
        const struct entry *entry = &f->appends[i];
        if (!check_row("append", f, i, f->append_rows[i], fault) ||
            !check_place("append", i, entry->time_ms, entry->place, fault))
            return false;
        if (!isfinite(entry->weight))
            return fault_set(fault, FAULT_BAD, "weight of append %u is %g; it must be finite", i,
                             (double)entry->weight);
    }
    return true;
}

static bool check_values(const struct flush *f, struct fault *fault)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->head.values; i++) {
        if (!check_row("value", f, i, f->value_rows[i], fault) ||
            !check_place("value", i, f->value_places[i].time_ms, f->value_places[i].place, fault))
            return false;
        bytes += f->value_lengths[i]; /* 2^20 numbers of 32 bits */
    }
    if (bytes != f->head.values_size)
        return fault_set(fault, FAULT_BAD, "lengths of values add up to %" PRIu64 ", but they have %" PRIu64 " bytes",
                         bytes, f->head.values_size);
    return true;
}

/* Whether rows below `below` have as many own events as their counts say: sums of a hash of the row, once for each. Equal
 * for others by chance, once in 2^64, or by somebody's will, who gains nothing by it.
 */
static bool names_own(const struct flush *f, uint32_t below)
{
    uint64_t difference = 0;
    for (uint32_t i = 0; i < below; i++)
        difference += (uint64_t)f->counts[i] * mix(i + 1);
    for (uint32_t e = 0; e < f->head.own; e++)
        if (f->own_rows[e] < below)
            difference -= mix(f->own_rows[e] + UINT64_C(1));
    return difference == 0;
}

static bool check_named(const struct flush *f, struct fault *fault)
{
    uint32_t low = 0, high = f->head.keys; /* rows below low are right, below high not all */
    if (names_own(f, high))
        return true;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (names_own(f, middle))
            low = middle;
        else
            high = middle;
    }
    int64_t named = 0;
    for (uint32_t e = 0; e < f->head.own; e++)
        named += f->own_rows[e] == low;
    return fault_set(fault, FAULT_BAD, "key %u has %" PRId64 " places of own events, but a count of %" PRId64, low,
                     named, f->counts[low]);
}

static bool check_own(const struct flush *f, struct fault *fault)
{
    if (!(f->head.flags & FLUSH_OWN))
        return true;
    uint64_t counted = 0;
    for (uint32_t i = 0; i < f->head.keys; i++) {
        counted += (uint64_t)f->counts[i];
        if (counted > FLUSH_MAX_KEYS)
            break; /* already more than there are places, and the sum stays a sum */
    }
    if (counted != f->head.own)
        return fault_set(fault, FAULT_BAD, "%u places of own events, but counts of %" PRIu64 ": each must have one",
                         f->head.own, counted);
    for (uint32_t i = 0; i < f->head.own; i++) {
        if (!check_row("own event", f, i, f->own_rows[i], fault) ||
            !check_place("own event", i, f->own_places[i].time_ms, f->own_places[i].place, fault))
            return false;
        if (!(f->own_positives[i] >= 0 && f->own_positives[i] <= MAX_POSITIVES))
            return fault_set(fault, FAULT_BAD, "positives of own event %u are %g; they must lie in [0, %g]", i,
                             (double)f->own_positives[i], (double)MAX_POSITIVES);
    }
    return check_named(f, fault);
}

static bool check_forgets(const struct flush *f, struct fault *fault)
{
    bool good = true;
    uint32_t i = 0;
    for (; good && i < f->head.forgets; i++) {
        uint32_t row = f->forget_rows[i];
        const struct place *place = &f->forget_places[i];
        good = check_row("forget", f, i, row, fault) &&
               (place->time_ms == PLACE_NONE || check_place("forget", i, place->time_ms, place->place, fault));
        if (!good)
            break;
        if (seen[row / 64] >> row % 64 & 1) {
            good = fault_set(fault, FAULT_BAD, "forget %u is of row %u, as an earlier one is: rows must be distinct", i,
                             row);
            break;
        }
        seen[row / 64] |= UINT64_C(1) << row % 64;
    }
    while (i-- > 0)
        seen[f->forget_rows[i] / 64] = 0;
    return good;
}

bool flush_parse(struct flush *out, const void *blob, size_t size, uint32_t dim, uint32_t state_dim,
                 struct fault *fault)
{
    *out = (struct flush){0};
    if (size < sizeof out->head)
        return fault_set(fault, FAULT_BAD, "a call of %zu bytes is shorter than its head, of %zu", size,
                         sizeof out->head);
    memcpy(&out->head, blob, sizeof out->head);
    if (!check_head(&out->head, size, dim, state_dim, fault))
        return false;
    size_t bytes = all_bytes(&out->head);
    if (bytes != size)
        return fault_set(fault, FAULT_BAD, "the call's columns take %zu bytes, but it has %zu", bytes, size);
    find_columns(out, blob);
    return check_ranges(out, fault) && check_keys(out, fault) && check_appends(out, fault) &&
           check_values(out, fault) && check_own(out, fault) && check_forgets(out, fault);
}
