/* Why a call was refused: a code that programs read and a sentence that people do. */
#ifndef TOW_FAULT_H
#define TOW_FAULT_H

#include <stdbool.h>

/* First words of error replies. */
#define FAULT_BAD "TOWBAD"         /* the call's arguments */
#define FAULT_SPEC "TOWSPEC"       /* stored with another declaration */
#define FAULT_GENERATION "TOWGEN"  /* of another store generation */
#define FAULT_SEEK "TOWSEEK"       /* compare-and-set found another offset */
#define FAULT_NONE "TOWNONE"       /* no such shard */
#define FAULT_KIND "TOWKIND"       /* a table of another kind than the call is for */
#define FAULT_PLACES "TOWPLACES" /* the same call again, with the places of own events */
#define FAULT_MEMORY "OOM"         /* as the server says it */

struct fault {
    char text[320]; /* "CODE sentence" */
};

/* Fills `fault` and returns false, so that a check can end with it. */
bool fault_set(struct fault *fault, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
