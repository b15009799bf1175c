/* A server that does what a store has to do and nothing else: the floor beside which `make bench-store` puts the module.
 *
 *     floor SOCKET ROWS DIM RATE small|huge
 *
 * ROWS rows of DIM float32 in one flat array, on small pages as a server's are that doesn't ask for others, or on huge
 * ones: the second floor of a module that does ask.
 * Keys are row numbers: no index, no header, no ids, no commands. Rows are prefetched in blocks, so that it is a floor and
 * not a straw man. One client at a time over a Unix socket:
 *
 *     request   u32 'L' or 'A', u32 n, u64 keys[n], for 'A' f32 gradients[n·dim] besides
 *     reply     f32 rows[n·dim] to 'L'; to 'A', which does w −= RATE · g, "OK\r\n"
 *
 * Numbers have the machine's byte order. A request that makes no sense ends the connection.
 */
#define _DEFAULT_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BLOCK 32
#define LINE 16 /* float32 of a cache line */
#define MOST_KEYS 65536u

struct floor {
    float *rows;
    uint64_t length, dim;
    float rate;
    uint64_t *keys;   /* MOST_KEYS */
    float *gradients; /* MOST_KEYS · dim; likewise what is answered */
};

static void prefetch(const struct floor *f, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        for (uint64_t j = 0; j < f->dim; j += LINE)
            __builtin_prefetch(f->rows + f->keys[i] * f->dim + j);
}

static void gather(struct floor *f, uint64_t n)
{
    for (uint64_t from = 0; from < n; from += BLOCK) {
        uint64_t to = n - from < BLOCK ? n : from + BLOCK;
        prefetch(f, from, to);
        for (uint64_t i = from; i < to; i++)
            memcpy(f->gradients + i * f->dim, f->rows + f->keys[i] * f->dim, f->dim * sizeof(float));
    }
}

static void update(struct floor *f, uint64_t n)
{
    for (uint64_t from = 0; from < n; from += BLOCK) {
        uint64_t to = n - from < BLOCK ? n : from + BLOCK;
        prefetch(f, from, to);
        for (uint64_t i = from; i < to; i++) {
            float *restrict row = f->rows + f->keys[i] * f->dim;
            const float *restrict gradient = f->gradients + i * f->dim;
            for (uint64_t j = 0; j < f->dim; j++)
                row[j] -= f->rate * gradient[j];
        }
    }
}

static bool receive(int client, void *into, size_t size)
{
    return recv(client, into, size, MSG_WAITALL) == (ssize_t)size;
}

static bool answer(int client, const char *bytes, size_t size)
{
    while (size) {
        ssize_t sent = send(client, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* One request. False: the connection is at its end. */
static bool serve(struct floor *f, int client)
{
    uint32_t head[2];
    if (!receive(client, head, sizeof head) || head[1] > MOST_KEYS)
        return false;
    uint64_t n = head[1];
    size_t bytes = n * f->dim * sizeof(float);
    if (!receive(client, f->keys, n * sizeof *f->keys))
        return false;
    for (uint64_t i = 0; i < n; i++)
        if (f->keys[i] >= f->length)
            return false;
    if (head[0] == 'L') {
        gather(f, n);
        return answer(client, (const char *)f->gradients, bytes);
    }
    if (head[0] != 'A' || !receive(client, f->gradients, bytes))
        return false;
    update(f, n);
    return answer(client, "OK\r\n", 4);
}

static void *pages(size_t bytes, bool huge)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("floor: memory");
        exit(1);
    }
    madvise(at, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* no huge ones: small ones */
    return at;
}

static int listening(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "floor: the socket's path has %zu bytes, at most %zu\n", strlen(path),
                sizeof address.sun_path - 1);
        exit(1);
    }
    strcpy(address.sun_path, path);
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (server < 0 || bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 1)) {
        perror("floor: socket");
        exit(1);
    }
    return server;
}

int main(int argc, char **argv)
{
    bool huge = argc == 6 && strcmp(argv[5], "huge") == 0;
    if (argc != 6 || (!huge && strcmp(argv[5], "small") != 0)) {
        fprintf(stderr, "usage: floor SOCKET ROWS DIM RATE small|huge\n");
        return 1;
    }
    struct floor f = {.length = strtoull(argv[2], NULL, 10), .dim = strtoull(argv[3], NULL, 10),
                      .rate = strtof(argv[4], NULL)};
    if (!f.length || !f.dim || f.dim > 4096 || f.length > 1u << 30) {
        fprintf(stderr, "floor: rows and dim have to be numbers from 1 on\n");
        return 1;
    }
    f.rows = pages(f.length * f.dim * sizeof(float), huge);
    for (uint64_t i = 0; i < f.length * f.dim; i++)
        f.rows[i] = 0.5f;
    f.keys = pages(MOST_KEYS * sizeof *f.keys, false);
    f.gradients = pages(MOST_KEYS * f.dim * sizeof(float), false);
    int server = listening(argv[1]);
    for (;;) {
        int client = accept(server, NULL, NULL);
        if (client < 0) {
            perror("floor: accept");
            return 1;
        }
        while (serve(&f, client))
            continue;
        close(client);
    }
}
