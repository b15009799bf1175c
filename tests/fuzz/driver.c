/* A small fuzzer for compilers without libFuzzer: mutates inputs, and keeps those that reach something new.
 *
 * driver <folder> <seconds> <seed>: begins with the files in the folder; prints "runs <n> kept <n> edges <n>" at its end.
 * An input that crashes is in <folder>/../last-input: the file is mapped, so it is there however the process ends.
 * driver <file>: runs that one.
 *
 * Coverage is that of -fsanitize-coverage=trace-pc: pairs of consecutive blocks, hashed into a map, counted in powers of two
 * (Zalewski, AFL).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_BYTES 4096
#define MOST_INPUTS 8192
#define MAP (1u << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    uint8_t *bytes;
    size_t size;
};

static uint8_t counts[MAP], reached[MAP];
static uintptr_t previous;
static struct input kept[MOST_INPUTS];
static uint32_t kept_count;
static uint64_t state;

void __sanitizer_cov_trace_pc(void);

__attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uintptr_t edge = (here ^ previous) * UINT64_C(0x9E3779B97F4A7C15) >> 48;
    if (counts[edge] < 255)
        counts[edge]++;
    previous = here >> 1;
}

static uint32_t draw(uint32_t n)
{
    state += UINT64_C(0x9E3779B97F4A7C15); /* splitmix64 (Steele et al. 2014) */
    uint64_t z = state;
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((z ^ z >> 31) % n);
}

/* Whether something was reached that had not been, or in a new order of magnitude. */
static int is_new(void)
{
    int new = 0;
    for (uint32_t i = 0; i < MAP; i++) {
        if (!counts[i])
            continue;
        uint8_t bit = (uint8_t)(1u << (31 - __builtin_clz(counts[i])));
        new |= bit & ~reached[i];
        reached[i] |= bit;
    }
    return new;
}

static void keep(const uint8_t *bytes, size_t size)
{
    uint32_t at = kept_count < MOST_INPUTS ? kept_count++ : draw(MOST_INPUTS);
    free(kept[at].bytes);
    kept[at] = (struct input){malloc(size + 1), size};
    if (!kept[at].bytes)
        abort();
    memcpy(kept[at].bytes, bytes, size);
}

static void run(const uint8_t *bytes, size_t size)
{
    memset(counts, 0, sizeof counts);
    previous = 0;
    LLVMFuzzerTestOneInput(bytes, size);
    if (is_new())
        keep(bytes, size);
}

static size_t mutate(uint8_t *out)
{
    const struct input *from = &kept[draw(2) ? draw(kept_count) : kept_count - 1 - draw(kept_count < 16 ? kept_count : 16)];
    size_t size = from->size;
    memcpy(out, from->bytes, size);
    for (uint32_t times = 1 + draw(6); times; times--) {
        size_t at = size ? draw((uint32_t)size) : 0, length = 1 + draw(16);
        const struct input *other = &kept[draw(kept_count)];
        switch (draw(7)) {
        case 0:
            if (size)
                out[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            if (size)
                out[at] = (uint8_t)draw(256);
            break;
        case 2:
            for (size_t i = at; i < size && i < at + length; i++)
                out[i] = (uint8_t)draw(256);
            break;
        case 3: /* insert */
            if (size + length > MOST_BYTES)
                break;
            memmove(out + at + length, out + at, size - at);
            for (size_t i = 0; i < length; i++)
                out[at + i] = (uint8_t)draw(256);
            size += length;
            break;
        case 4: /* drop */
            if (at + length > size)
                break;
            memmove(out + at, out + at + length, size - at - length);
            size -= length;
            break;
        case 5: /* the rest of another */
            if (other->size <= at)
                break;
            memcpy(out + at, other->bytes + at, other->size - at);
            size = other->size;
            break;
        default: /* more */
            for (; size < MOST_BYTES && length; length--)
                out[size++] = (uint8_t)draw(256);
        }
    }
    return size;
}

static size_t read_file(const char *path, uint8_t *out)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    size_t size = fread(out, 1, MOST_BYTES, file);
    fclose(file);
    return size;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Where the input lies while it runs: its size, then its bytes. */
static uint8_t *map_last(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/../last-input", folder);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, MOST_BYTES + 8)) {
        perror(path);
        exit(2);
    }
    void *at = mmap(NULL, MOST_BYTES + 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED)
        abort();
    return at;
}

int main(int argc, char **argv)
{
    static uint8_t bytes[MOST_BYTES];
    if (argc == 2)
        return LLVMFuzzerTestOneInput(bytes, read_file(argv[1], bytes));
    if (argc != 4) {
        fprintf(stderr, "usage: %s FOLDER SECONDS SEED, or FILE\n", *argv);
        return 2;
    }
    uint8_t *last = map_last(argv[1]);
    double end = now() + atof(argv[2]);
    state = strtoull(argv[3], NULL, 10);
    struct dirent **names;
    int files = scandir(argv[1], &names, NULL, alphasort);
    uint64_t runs = 0;
    for (int i = 0; i < files; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], names[i]->d_name);
        struct stat about;
        if (stat(path, &about) == 0 && S_ISREG(about.st_mode)) {
            uint64_t size = read_file(path, last + 8);
            memcpy(last, &size, sizeof size);
            run(last + 8, size);
            runs++;
        }
        free(names[i]);
    }
    if (files >= 0)
        free(names);
    if (!kept_count)
        keep(bytes, 1);
    while (now() < end) {
        for (int i = 0; i < 16; i++, runs++) {
            uint64_t size = mutate(bytes);
            memcpy(last, &size, sizeof size);
            memcpy(last + 8, bytes, size);
            run(bytes, size);
        }
    }
    uint32_t edges = 0;
    for (uint32_t i = 0; i < MAP; i++)
        edges += reached[i] != 0;
    printf("runs %llu kept %u edges %u\n", (unsigned long long)runs, kept_count, edges);
    for (uint32_t i = 0; i < kept_count; i++)
        free(kept[i].bytes);
    return 0;
}
