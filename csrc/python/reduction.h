/* From losses of samples to that of the batch: the same as ctcbind/reduction.py, to the same bits. */
#ifndef CTCBIND_REDUCTION_H
#define CTCBIND_REDUCTION_H

#include "ctcbind.h"

enum { REDUCE_NONE, REDUCE_SUM, REDUCE_BATCH_MEAN, REDUCE_LABEL_MEAN };

/* What each sample counts in the reduced loss, where that is a mean. */
void ctcbind_sample_weights(const ctcbind_problem *problem, int reduction, double *weights);

/* The weighted sum of the losses, rounded once. */
double ctcbind_reduced(const ctcbind_problem *problem);

/* Infinite losses, and the gradients of their samples, become 0. */
void ctcbind_zero_infinities(const ctcbind_problem *problem);

#endif
