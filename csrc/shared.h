/* One sample that several threads share: where rows are long and labels few. */
#ifndef CTCBIND_SHARED_H
#define CTCBIND_SHARED_H

#include "kernel.h"

/* Bytes that the threads keep of who does what. */
size_t ctcbind_shared_bytes(int threads, int64_t T);

/* The loss. room: so many bytes, at the beginning of a cache line; most: threads that may be woken for it. */
double ctcbind_shared(ctc_phase run, ctc_sample *s, const ctc_extent *extent, void *scratch, void *room, int threads,
                      int most);

#endif
