/* Huge pages for the memory of large tables, where the module is loaded with the argument huge-pages; see core/slab.h for
 * why, and for when they are asked for. Not by default: lookup and apply took 7 % less time, and the longest call while a
 * table grew to 10M rows 7 ms instead of 4.
 *
 * By MADV_COLLAPSE, span by span: memory stays the server's allocator's, so that maxmemory, MEMORY USAGE and active
 * defragmentation see it as before, and nothing else of the server is on huge pages. The call copies 2 MiB in some 300 µs, and may
 * wait for the system to make room; it happens once every 2 MiB that a table grows.
 *
 * Why huge pages don't cost here what servers warn of: since Linux 5.8 a write to one that a saving child shares splits it
 * and copies 4 KiB, as small pages do. What was split stays so: a save costs speed, not memory.
 *
 * Where the system says `always`, Redis and Valkey turn huge pages off for themselves, and for us with them, unless they are
 * told `disable-thp no`; where it says `never`, none is asked for. Without them all works as with them.
 */
#ifndef TOW_HUGE_PAGES_H
#define TOW_HUGE_PAGES_H

/* What to ask, for struct allocator. NULL: the system has none of ALLOCATOR_HUGE bytes, or says `never`. */
void (*huge_pages(void))(void *context, void *at);

#endif
