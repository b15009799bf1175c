/* A table's objects one by one: what saved_write.c writes and saved_load.c reads, and digests and copies are made of.
 *
 * Objects come in the order of the lists that they belong to, and are appended to them in that order: a replica that
 * loads a save evicts the same keys after it as the server that wrote it.
 */
#ifndef TOW_OBJECTS_H
#define TOW_OBJECTS_H

#include "fault.h"
#include "flush.h"
#include "row.h"
#include "standing.h"
#include "table.h"

struct object {
    uint64_t key;
    enum standing standing; /* not MISSING */
    bool fenced;            /* FORGOTTEN always is; EVICTED never */
    struct row_record record; /* entries: of a sequence, or bytes of a value; id_length. Both 0 unless a ROW */
    int64_t score;            /* in the list of its standing: updated_ms of rows and stubs, clock of others; 0 without a list */
    struct fence fence;        /* if fenced */
    const unsigned char *id;      /* record.id_length bytes */
    const any_f32 *values;        /* ROW of an embedding or dense table: dim + state_dim. Else NULL */
    const struct entry *entries;  /* ROW of a sequence table: record.entries, rising. Else NULL */
    struct place place;           /* ROW of a record table: of the value */
    const unsigned char *value;   /* ROW of a record table: record.entries bytes. Else NULL */
};

/* Calls `visit` for every object: rows (in the order of the updates list if the table keeps one, else in any), then
 * stubs, evicted, forgotten, each in its list's order. Stops where `visit` returns false, and returns that. The object's
 * pointers are valid during the call. O(objects).
 */
bool table_each_saved(const struct table *t, bool (*visit)(void *context, const struct object *object), void *context);

/* Appends an object whose key has none yet. What can be checked without the table has been: the caller sees to lengths,
 * ranges, standings in order, rising scores, places and entries. False: its key is there already, the table has no such
 * standing, or no memory; nothing has changed then. O(object) expected.
 */
bool table_load_object(struct table *t, const struct object *object, struct fault *fault);

struct shard;

/* After the spec, meta, last_seek, offsets and all objects of a saved shard are there: derives what is not saved, such as
 * sums of decay. False: no memory, or what was loaded can't be a shard; it is then only to be closed.
 */
bool shard_loaded(struct shard *s, struct fault *fault);

#endif
