#define _DEFAULT_SOURCE
#include "huge_pages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"

#ifdef __linux__

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define SETTINGS "/sys/kernel/mm/transparent_hugepage/"

/* A wish: an older kernel, one without a huge page to spare or foreign memory in between leave the small pages. */
static void collapse(void *context, void *at)
{
    (void)context;
    int before = errno;
    madvise(at, ALLOCATOR_HUGE, MADV_COLLAPSE);
    errno = before;
}

static bool read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    bool read = fgets(line, size, file) != NULL;
    fclose(file);
    return read;
}

void (*huge_pages(void))(void *context, void *at)
{
    char enabled[64], size[32];
    if (!read_line(SETTINGS "enabled", enabled, sizeof enabled) || strstr(enabled, "[never]"))
        return NULL;
    if (!read_line(SETTINGS "hpage_pmd_size", size, sizeof size) || strtoull(size, NULL, 10) != ALLOCATOR_HUGE)
        return NULL;
    return collapse;
}

#else

void (*huge_pages(void))(void *context, void *at)
{
    return NULL;
}

#endif
