/* What a batch is made of, and what becomes of it: for all that is not the loss itself. */
#ifndef CTCBIND_BATCH_H
#define CTCBIND_BATCH_H

#include "graph.h"

/* Copies the first of N structs of `size` bytes to the others. The pointer at offsets[i] of a struct goes on by
 * steps[i] bytes from sample to sample. */
void ctcbind_repeat(void *structs, int64_t size, int32_t N, const int64_t *offsets, const int64_t *steps,
                    int32_t pointers);

/* As floats, infinite past their range. */
void ctcbind_narrow(const double *values, float *to, int64_t count);

/* How many frames each sample has. */
void ctcbind_set_frames(ctcbind_rows *rows, const int32_t *frames, int32_t N);

/* The same, and the labels of each: they lie one sample after the other, without padding. */
void ctcbind_set_labels(ctcbind_graph *graphs, const int32_t *labels, const int32_t *lengths, const int32_t *frames,
                        int32_t N);

#endif
