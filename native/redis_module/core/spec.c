/* One table of fields says how each is read, checked, compared and written. */
#include "spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BELOW_1 0x1.fffffffffffffp-1 /* the last number before 1 */
#define NUMBER 40                    /* bytes of a number as text, its 0 included */

enum form { TEXT, CHOICE, I64, U64, U32, F64, F32 };

struct field {
    const char *name;
    enum form form;
    size_t at;         /* in struct spec */
    double low, high;  /* F64, F32, U32, I64 below 2^53 */
    const char *const *choices;
    int count; /* of choices */
};

static const char *const kinds[] = {"embedding", "dense", "sequence", "record"};
static const char *const optimizers[] = {"add", "sgd", "adagrad", "rowwise_adagrad", "adam"};
static const char *const schedules[] = {"constant", "inverse_time", "cosine"};

_Static_assert(sizeof kinds / sizeof *kinds == KINDS, "a name for each");
_Static_assert(sizeof optimizers / sizeof *optimizers == OPTIMIZER_KINDS, "a name for each");
_Static_assert(sizeof schedules / sizeof *schedules == SCHEDULE_KINDS, "a name for each");

#define AT(member) offsetof(struct spec, member)
#define WHOLE 9223372036854775807.0 /* any i64 ≥ low */

static const struct field fields[] = {
    {"declaration", TEXT, AT(declaration), 0, SPEC_MAX_DECLARATION, NULL, 0},
    {"kind", CHOICE, AT(kind), 0, 0, kinds, KINDS},
    {"dim", U32, AT(dim), 0, SPEC_MAX_DIM, NULL, 0},
    {"length", U32, AT(length), 0, SPEC_MAX_LENGTH, NULL, 0},
    {"seed", U64, AT(seed), 0, 0, NULL, 0},
    {"initial_std", F64, AT(initial_std), 0, 10, NULL, 0},
    {"gap_rate", F64, AT(gap_rate), 0x1p-1022, 1, NULL, 0},
    {"popularity_half_life", I64, AT(popularity_half_life), 1, WHOLE, NULL, 0},
    {"step_events", I64, AT(step_events), 1, 1e9, NULL, 0},
    {"clip_norm", F64, AT(optimizer.clip_norm), 0, 1e15, NULL, 0},
    {"optimizer", CHOICE, AT(optimizer.kind), 0, 0, optimizers, OPTIMIZER_KINDS},
    {"learning_rate", F64, AT(schedule.learning_rate), 0, 100, NULL, 0},
    {"initial_accumulator", F32, AT(optimizer.initial_accumulator), 0, 3e38, NULL, 0},
    {"beta_1", F64, AT(optimizer.beta_1), 0, BELOW_1, NULL, 0},
    {"beta_2", F64, AT(optimizer.beta_2), 0, BELOW_1, NULL, 0},
    {"epsilon", F64, AT(optimizer.epsilon), 0, 3e38, NULL, 0},
    {"schedule", CHOICE, AT(schedule.kind), 0, 0, schedules, SCHEDULE_KINDS},
    {"warmup_steps", I64, AT(schedule.warmup_steps), 0, 1e6, NULL, 0},
    {"decay", F64, AT(schedule.decay), 0, 1e6, NULL, 0},
    {"steps", I64, AT(schedule.steps), 0, 1e6, NULL, 0},
    {"floor", F64, AT(schedule.floor), 0, 1, NULL, 0},
    {"l1", F64, AT(l1), 0, 1e15, NULL, 0},
    {"l2", F64, AT(l2), 0, 1e15, NULL, 0},
    {"admit_after", I64, AT(admit_after), 0, 2147483647, NULL, 0},
    {"max_stubs", I64, AT(max_stubs), 0, WHOLE, NULL, 0},
    {"max_rows", I64, AT(max_rows), 0, WHOLE, NULL, 0},
    {"ttl_ms", I64, AT(ttl_ms), 0, 1e13, NULL, 0},
    {"remember_events", I64, AT(remember_events), 1, WHOLE, NULL, 0},
    {"evict_batch", I64, AT(evict_batch), 1, 1 << 20, NULL, 0},
    {"max_evicted", I64, AT(max_evicted), 0, WHOLE, NULL, 0},
    {"max_forgotten", I64, AT(max_forgotten), 0, WHOLE, NULL, 0},
};
#define FIELDS (sizeof fields / sizeof *fields)

/* Moves that make one name of the other: insert, drop, replace (Wagner & Fischer 1974). Names of at most 63 bytes. */
static int distance(const char *a, size_t a_length, const char *b)
{
    int row[64];
    size_t b_length = strlen(b);
    for (size_t j = 0; j <= b_length; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[b_length];
}

static bool unknown_name(struct fault *fault, const char *name, size_t length)
{
    const char *nearest = fields[0].name;
    int least = 1000;
    for (size_t k = 0; k < FIELDS && length < 64; k++) {
        int d = distance(name, length, fields[k].name);
        if (d < least) {
            least = d;
            nearest = fields[k].name;
        }
    }
    return fault_set(fault, FAULT_BAD, "unknown name '%.*s' in a table's declaration; the nearest is '%s'",
                     (int)(length < 64 ? length : 64), name, nearest);
}

static const struct field *field_named(const char *name, size_t length)
{
    for (size_t k = 0; k < FIELDS; k++)
        if (strlen(fields[k].name) == length && memcmp(fields[k].name, name, length) == 0)
            return &fields[k];
    return NULL;
}

/* A whole number in decimal, and nothing else. `out` is its magnitude. */
static bool read_whole(const char *text, size_t length, bool *negative, uint64_t *out)
{
    *negative = length > 1 && *text == '-';
    uint64_t n = 0;
    size_t i = *negative;
    if (i == length)
        return false;
    for (; i < length; i++) {
        unsigned digit = (unsigned)(text[i] - '0');
        if (digit > 9 || n > (UINT64_MAX - digit) / 10)
            return false;
        n = 10 * n + digit;
    }
    *out = n;
    return true;
}

/* A finite decimal number. strtod alone would take spaces, hexadecimal, "nan" and "inf". */
static bool read_real(const char *text, size_t length, double *out)
{
    char copy[NUMBER];
    if (length == 0 || length >= sizeof copy)
        return false;
    for (size_t i = 0; i < length; i++)
        if (!text[i] || !strchr("0123456789+-.eE", text[i]))
            return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    char *end;
    *out = strtod(copy, &end);
    return *end == 0 && end != copy && isfinite(*out);
}

static bool bad_value(struct fault *fault, const struct field *f, const char *value, size_t length)
{
    int shown = (int)(length < 64 ? length : 64);
    if (f->form == TEXT)
        return fault_set(fault, FAULT_BAD, "%s of %zu bytes; at most %g are kept", f->name, length, f->high);
    if (f->form == CHOICE) {
        char names[128] = "";
        for (int k = 0; k < f->count; k++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? ", " : "", f->choices[k]);
        return fault_set(fault, FAULT_BAD, "%s '%.*s' is none of %s", f->name, shown, value, names);
    }
    if (f->form == U64)
        return fault_set(fault, FAULT_BAD, "%s must be a whole number in [0, 2^64), got '%.*s'", f->name, shown, value);
    const char *whole = f->form == F64 || f->form == F32 ? "" : "whole ";
    if (f->high == WHOLE)
        return fault_set(fault, FAULT_BAD, "%s must be a whole number in [%g, 2^63), got '%.*s'", f->name, f->low, shown,
                         value);
    return fault_set(fault, FAULT_BAD, "%s must be a %snumber in [%g, %.17g], got '%.*s'", f->name, whole, f->low,
                     f->high, shown, value);
}

static bool read_choice(const struct field *f, int32_t *out, const char *value, size_t length)
{
    for (int k = 0; k < f->count; k++)
        if (strlen(f->choices[k]) == length && memcmp(f->choices[k], value, length) == 0) {
            *out = k;
            return true;
        }
    return false;
}

/* Reads a value that is no text into the spec; false: it can't be read, or is out of range. */
static bool read_value(struct spec *s, const struct field *f, const char *value, size_t length)
{
    void *at = (char *)s + f->at;
    bool negative;
    uint64_t whole;
    double real;
    switch (f->form) {
    case CHOICE:
        return read_choice(f, at, value, length);
    case U64:
        return read_whole(value, length, &negative, &whole) && !negative && (*(uint64_t *)at = whole, true);
    case U32:
        if (!read_whole(value, length, &negative, &whole) || negative || (double)whole > f->high)
            return false;
        *(uint32_t *)at = (uint32_t)whole;
        return true;
    case I64:
        /* every field's low is 0 or 1 */
        if (!read_whole(value, length, &negative, &whole) || negative || whole > INT64_MAX ||
            (double)whole < f->low || (double)whole > f->high)
            return false;
        *(int64_t *)at = (int64_t)whole;
        return true;
    default:
        if (!read_real(value, length, &real) || !(real >= f->low && real <= f->high))
            return false;
        if (f->form == F32)
            *(float *)at = (float)real;
        else
            *(double *)at = real;
        return true;
    }
}

static bool fits_kind(const struct spec *s, struct fault *fault)
{
    bool vectors = s->kind == KIND_EMBEDDING || s->kind == KIND_DENSE;
    const char *kind = kinds[s->kind];
    if (vectors ? s->dim < 1 || s->length : s->dim || s->length < 1)
        return fault_set(fault, FAULT_BAD, "a table of kind %s needs %s, got dim %u and length %u", kind,
                         vectors ? "dim >= 1 and length 0" : "dim 0 and length >= 1", s->dim, s->length);
    if (!vectors && s->optimizer.kind != OPTIMIZER_ADD)
        return fault_set(fault, FAULT_BAD, "a table of kind %s has no vectors: its optimizer must be add, got %s", kind,
                         optimizers[s->optimizer.kind]);
    if (s->admit_after && s->kind != KIND_EMBEDDING)
        return fault_set(fault, FAULT_BAD, "admit_after must be 0 in a table of kind %s, got %" PRId64, kind,
                         s->admit_after);
    if (s->kind == KIND_DENSE && (s->ttl_ms || s->max_rows))
        return fault_set(fault, FAULT_BAD,
                         "ttl_ms and max_rows must be 0 in a table of kind dense, got %" PRId64 " and %" PRId64,
                         s->ttl_ms, s->max_rows);
    return true;
}

static bool fits_learning(const struct spec *s, struct fault *fault)
{
    if (s->schedule.kind == SCHEDULE_COSINE && s->schedule.steps < 1)
        return fault_set(fault, FAULT_BAD, "schedule cosine needs steps >= 1, got %" PRId64, s->schedule.steps);
    if (s->schedule.kind == SCHEDULE_INVERSE_TIME && !(s->schedule.decay > 0))
        return fault_set(fault, FAULT_BAD, "schedule inverse_time needs decay > 0, got %g", s->schedule.decay);
    if (!(s->schedule.learning_rate * s->l2 < 1))
        return fault_set(fault, FAULT_BAD,
                         "learning_rate times l2 must be below 1, got %g times %g: a step would turn vectors around",
                         s->schedule.learning_rate, s->l2);
    return true;
}

static bool keep_declaration(struct spec *out, const char *text, size_t length, struct allocator *allocator,
                             struct fault *fault)
{
    out->declaration = allocator_take(allocator, length + 1);
    if (!out->declaration)
        return fault_set(fault, FAULT_MEMORY, "no memory for a declaration of %zu bytes", length);
    memcpy(out->declaration, text, length);
    out->declaration[length] = 0;
    out->declaration_size = length;
    return true;
}

bool spec_parse(struct spec *out, size_t count, const char *const *names, const size_t *name_lengths,
                const char *const *values, const size_t *value_lengths, struct allocator *allocator,
                struct fault *fault)
{
    size_t declared = 0;
    uint64_t seen = 0;
    _Static_assert(FIELDS <= 64, "a bit for each");
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < count; i++) {
        const struct field *f = field_named(names[i], name_lengths[i]);
        if (!f)
            return unknown_name(fault, names[i], name_lengths[i]);
        uint64_t bit = UINT64_C(1) << (f - fields);
        if (seen & bit)
            return fault_set(fault, FAULT_BAD, "'%s' comes twice in a table's declaration", f->name);
        seen |= bit;
        if (f->form == TEXT)
            declared = i;
        if (f->form == TEXT ? value_lengths[i] > SPEC_MAX_DECLARATION
                            : !read_value(out, f, values[i], value_lengths[i]))
            return bad_value(fault, f, values[i], value_lengths[i]);
    }
    for (size_t k = 0; k < FIELDS; k++)
        if (!(seen >> k & 1))
            return fault_set(fault, FAULT_BAD, "'%s' is missing: a table's declaration has %zu names, got %zu",
                             fields[k].name, FIELDS, count);
    return fits_kind(out, fault) && fits_learning(out, fault) &&
           keep_declaration(out, values[declared], value_lengths[declared], allocator, fault);
}

void spec_close(struct spec *s, struct allocator *allocator)
{
    if (s->declaration)
        allocator_give(allocator, s->declaration, s->declaration_size + 1);
    s->declaration = NULL;
    s->declaration_size = 0;
}

/* A value as text, 0 at its end; `number` is where numbers are written. */
static const char *text_of(const struct spec *s, const struct field *f, char number[NUMBER])
{
    const void *at = (const char *)s + f->at;
    switch (f->form) {
    case TEXT:
        return s->declaration;
    case CHOICE:
        return f->choices[*(const int32_t *)at];
    case I64:
        snprintf(number, NUMBER, "%" PRId64, *(const int64_t *)at);
        break;
    case U64:
        snprintf(number, NUMBER, "%" PRIu64, *(const uint64_t *)at);
        break;
    case U32:
        snprintf(number, NUMBER, "%" PRIu32, *(const uint32_t *)at);
        break;
    case F64:
        snprintf(number, NUMBER, "%.17g", *(const double *)at);
        break;
    case F32:
        snprintf(number, NUMBER, "%.9g", (double)*(const float *)at);
        break;
    }
    return number;
}

static size_t length_of(const struct spec *s, const struct field *f, const char *text)
{
    return f->form == TEXT ? s->declaration_size : strlen(text); /* a declaration may have a 0 in it */
}

/* Adds to the sentence in `text` as far as there is room. */
static void add(char *text, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void add(char *text, size_t room, const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
}

/* Where two documents part, and what is there: they are long, and mostly the same. */
static void add_difference(char *text, size_t room, const struct spec *a, const struct spec *b)
{
    size_t shorter = a->declaration_size < b->declaration_size ? a->declaration_size : b->declaration_size, at = 0;
    while (at < shorter && a->declaration[at] == b->declaration[at])
        at++;
    size_t from = at < 12 ? 0 : at - 12, rest_a = a->declaration_size - from, rest_b = b->declaration_size - from;
    add(text, room, "%sdeclaration at byte %zu is '%.*s', given '%.*s'", *text ? "; " : "", at,
        (int)(rest_a < 40 ? rest_a : 40), a->declaration + from,
        (int)(rest_b < 40 ? rest_b : 40), b->declaration + from);
}

/* What a release may change: how much a call evicts and how many marks are kept decide nothing about what is learned. A
 * stored shard keeps what it was made with.
 */
static bool is_tuning(const struct field *f)
{
    return f->at == offsetof(struct spec, evict_batch) || f->at == offsetof(struct spec, max_evicted) ||
           f->at == offsetof(struct spec, max_forgotten);
}

bool spec_same(const struct spec *stored, const struct spec *given, struct fault *fault)
{
    char differences[sizeof fault->text] = "", a[NUMBER], b[NUMBER];
    for (size_t k = 1; k < FIELDS; k++) {
        const char *was = text_of(stored, &fields[k], a), *is = text_of(given, &fields[k], b);
        if (!is_tuning(&fields[k]) && strcmp(was, is) != 0)
            add(differences, sizeof differences, "%s%s is %s, given %s", *differences ? "; " : "", fields[k].name, was,
                is);
    }
    if (stored->declaration_size != given->declaration_size ||
        memcmp(stored->declaration, given->declaration, stored->declaration_size) != 0)
        add_difference(differences, sizeof differences, stored, given);
    if (!*differences)
        return true;
    return fault_set(fault, FAULT_SPEC, "stored with another declaration: %s", differences);
}

void spec_each(const struct spec *s, void (*each)(void *context, const char *name, const char *value, size_t length),
               void *context)
{
    for (size_t k = 0; k < FIELDS; k++) {
        char number[NUMBER];
        const char *text = text_of(s, &fields[k], number);
        each(context, fields[k].name, text, length_of(s, &fields[k], text));
    }
}
