/* TOW.CREATE: names and values, right and wrong, and what is read compared with what is written. */
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "decisions.h"
#include "spec.h"
#include "world.h"

#define MOST 40

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct pairs {
    size_t count;
    char *names[MOST], *values[MOST];
    size_t name_lengths[MOST], value_lengths[MOST];
};

/* A copy whose end is the end of its memory: no argument of a server has to end with 0. */
static char *copy_of(const void *from, size_t length)
{
    char *copy = malloc(length + !length);
    if (!copy)
        abort();
    memcpy(copy, from, length);
    return copy;
}

static void add(void *context, const char *name, const char *value, size_t length)
{
    struct pairs *p = context;
    p->name_lengths[p->count] = strlen(name);
    p->names[p->count] = copy_of(name, strlen(name));
    p->value_lengths[p->count] = length;
    p->values[p->count++] = copy_of(value, length);
}

static void free_pairs(struct pairs *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free(p->names[i]);
        free(p->values[i]);
    }
    p->count = 0;
}

static bool parse(const struct pairs *p, struct spec *spec, struct allocator *a, struct fault *fault)
{
    return spec_parse(spec, p->count, (const char *const *)p->names, p->name_lengths, (const char *const *)p->values,
                      p->value_lengths, a, fault);
}

static void change(struct decisions *d, char **text, size_t *length)
{
    static const char *const texts[] = {
        "", "0", "1", "-1", "-0", "+1", "1e3", "1e-320", "1e400", "nan", "inf", "0x1p3", " 1", "1 ", "1.5", ".5", "5.",
        "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "4096", "4097",
        "embedding", "dense", "sequence", "record", "add", "sgd", "adagrad", "adam", "cosine", "inverse_time", "dim",
        "kind", "l2", "0.99999999999999999999999999999999999999999999", "1e", "e1", "--1", "00001",
    };
    unsigned char bytes[300];
    switch (below(d, 3)) {
    case 0: {
        const char *other = texts[below(d, sizeof texts / sizeof *texts)];
        *length = strlen(other);
        memcpy(bytes, other, *length);
        break;
    }
    case 1:
        *length = *length < 256 ? *length : 256;
        memcpy(bytes, *text, *length);
        *length = damage(d, bytes, *length, sizeof bytes);
        break;
    default:
        *length = byte(d);
        for (size_t i = 0; i < *length; i++)
            bytes[i] = (unsigned char)byte(d);
    }
    free(*text);
    *text = copy_of(bytes, *length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct decisions d = {data, data + size};
    if (!world_open(&w, &d))
        return 0;
    struct pairs given = {0}, again = {0};
    spec_each(&w.shard.spec, add, &given);
    for (int changes = (int)below(&d, 4); changes; changes--) {
        size_t at = below(&d, (uint32_t)given.count), other = below(&d, (uint32_t)given.count);
        switch (below(&d, 6)) {
        case 0:
            change(&d, &given.names[at], &given.name_lengths[at]);
            break;
        case 1: /* missing */
            free(given.names[at]);
            free(given.values[at]);
            given.count--;
            given.names[at] = given.names[given.count];
            given.name_lengths[at] = given.name_lengths[given.count];
            given.values[at] = given.values[given.count];
            given.value_lengths[at] = given.value_lengths[given.count];
            break;
        case 2: /* twice */
            if (given.count < MOST) {
                size_t last = given.count++;
                given.names[last] = copy_of(given.names[at], given.name_lengths[last] = given.name_lengths[at]);
                given.values[last] = copy_of(given.values[other], given.value_lengths[last] = given.value_lengths[other]);
            }
            break;
        default:
            change(&d, &given.values[at], &given.value_lengths[at]);
        }
    }
    struct spec spec, read;
    struct fault fault = {""};
    w.counting.left = allocations(&d, 8, 1);
    size_t held = w.allocator.held;
    bool good = parse(&given, &spec, &w.allocator, &fault);
    w.counting.left = -1;
    if (!good && (!*fault.text || !memchr(fault.text, 0, sizeof fault.text)))
        found("a refusal without a sentence");
    if (!good && w.allocator.held != held)
        found("a refused declaration holds memory");
    if (good) {
        spec_each(&spec, add, &again);
        if (!parse(&again, &read, &w.allocator, &fault))
            found("a declaration that is refused when it is read back");
        if (!spec_same(&spec, &read, &fault))
            found("a declaration that is another one when it is read back");
        bool same = spec_same(&w.shard.spec, &spec, &fault);
        if (!same && !memchr(fault.text, 0, sizeof fault.text))
            found("a difference without an end");
        spec_close(&read, &w.allocator);
        spec_close(&spec, &w.allocator);
    }
    free_pairs(&again);
    free_pairs(&given);
    world_close(&w);
    return 0;
}
