/* A shard as bytes, and back: what the server's files, copies and replicas get. Knows nothing of Redis.
 *
 * Bytes come in blocks of at most SAVED_BLOCK, so that neither side ever holds a shard twice. A block, little-endian:
 *
 *     struct saved_head   32 bytes: magic, format version, number, size, records, checksum
 *     records             struct saved_record, 8 bytes, and what its type has; never cut by the end of a block
 *
 * Records come in the order of their types, and within a type in the order in which they are to be read:
 *
 *     PAIR      u32 length of the name, name, value: the spec's, in the first block, with META
 *     META      struct shard_meta
 *     SEEK      last_seek
 *     OFFSET    i64 next, source: rising by source
 *     OBJECT    u64 key, struct row_record; if fenced struct fence; id; values, or entries, or place and value
 *     TOTAL     u64 offsets, u64 objects: the last one, alone at the end
 *
 * The checksum is over the records, seeded with the block's number and the last block's checksum: a block that is changed,
 * missing, repeated, in another's place, or of another save is noticed. The feed is not saved: its cursors hold the run
 * id of the server. Nor are sums of decay and the index, which follow from the rest.
 */
#ifndef TOW_SAVED_H
#define TOW_SAVED_H

#include "objects.h"
#include "shard.h"

#define SAVED_VERSION 1u
#define SAVED_BLOCK (256u << 10)

struct saved_head {
    char magic[4]; /* TOWS */
    uint32_t version;
    uint64_t number; /* 0, 1, 2, … */
    uint32_t size, records; /* size: bytes of records */
    uint64_t checksum;
};

enum saved_type { SAVED_PAIR = 1, SAVED_META, SAVED_SEEK, SAVED_OFFSET, SAVED_OBJECT, SAVED_TOTAL };
#define SAVED_FENCED 1u

struct saved_record {
    uint32_t size; /* bytes that follow */
    uint8_t type, standing, flags, unused;
};

_Static_assert(sizeof(struct saved_head) == 32 && sizeof(struct saved_record) == 8, "as above");

/* The largest record: an object with 4096 entries, or 3·4096 + 1 values. */
#define SAVED_RECORD (132u << 10)

/* Writes a shard, block by block; stops where `write` returns false, and returns that. No memory is taken. O(bytes). */
bool saved_write(const struct shard *s, bool (*write)(void *context, const void *bytes, size_t n), void *context);

/* A shard that blocks come for one by one. */
enum saved_progress { SAVED_MORE, SAVED_DONE, SAVED_WRONG };

struct saved_loader {
    struct shard *shard;
    struct allocator *allocator;
    uint64_t salt;
    enum saved_progress progress;
    uint64_t blocks, checksum; /* of the last block */
    uint64_t offsets, objects;
    enum saved_type type; /* of the last record */
    enum standing standing; /* of the last object */
    int64_t score;
    bool opened; /* the shard is */
};

/* Begins to load into *shard, which is not open. */
void saved_load_begin(struct saved_loader *l, struct shard *shard, uint64_t salt, struct allocator *allocator);

/* Takes one whole block. DONE: the shard is there. WRONG: nothing is held, the reason is in `fault`; the same again if
 * more blocks come. Never reads past `n`, never keeps `bytes`. O(n) expected.
 */
enum saved_progress saved_load_block(struct saved_loader *l, const void *bytes, size_t n, struct fault *fault);

/* Gives back what was loaded of a shard that is not DONE. O(memory). */
void saved_load_abandon(struct saved_loader *l);

/* Bytes of the block that begins here, from its head; 0: there is no such block in n bytes. O(1). */
size_t saved_block_size(const void *bytes, size_t n);

/* Loads a shard from a source of blocks: `read` returns the next one, valid until it is called again, or NULL. False: the
 * reason is in `fault`, and nothing is held.
 */
bool saved_read(struct shard *shard, uint64_t salt, struct allocator *allocator,
                const void *(*read)(void *context, size_t *n), void *context, struct fault *fault);

/* A copy with the same bytes in every save. False: no memory, see `fault`; nothing is held then. */
bool saved_copy(struct shard *to, const struct shard *from, uint64_t salt, struct allocator *allocator,
                struct fault *fault);

/* Two hashes of everything that is saved, whatever the order of unlisted rows. O(bytes). */
void saved_digest(const struct shard *s, uint64_t digest[2]);

#endif
