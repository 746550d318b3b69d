/* The native CTC engine. It knows nothing of Python.
 *
 * One call computes -ln p(labels | logits) of every sample of a batch and, when asked, the gradient with
 * respect to the logits. The caller has validated the batch: 0 <= label < C, label != blank,
 * 0 <= input_lengths[n] <= T, every pointer aligned for its type.
 */
#ifndef CTCBIND_H
#define CTCBIND_H

#include <stddef.h>
#include <stdint.h>

enum { CTCBIND_FLOAT32 = 0, CTCBIND_FLOAT64 = 1, CTCBIND_FLOAT16 = 2, CTCBIND_BFLOAT16 = 3 };
enum { CTCBIND_TOPOLOGY_CTC = 0, CTCBIND_TOPOLOGY_SIMPLE = 1 };
/* SMALL: the workspace is too small. INVALID: a number in the problem is out of range, or CTCBIND_ISA names what is not
 * there. */
enum { CTCBIND_OK = 0, CTCBIND_NO_MEMORY = 1, CTCBIND_INVALID = 2, CTCBIND_STOPPED = 3, CTCBIND_SMALL = 4 };

/* Bytes of a number of that dtype. */
static inline size_t ctcbind_bytes_of(int32_t dtype)
{
    return dtype == CTCBIND_FLOAT64 ? 8 : dtype == CTCBIND_FLOAT32 ? 4 : 2;
}

typedef struct ctcbind_problem {
    const void *logits;              /* element (t, n, c) stands at t*logits_t + n*logits_n + c*logits_c */
    int64_t logits_t, logits_n, logits_c; /* strides in elements, of any sign */
    void *grad;                      /* the logits' dtype; every element is written; NULL: losses only */
    int64_t grad_t, grad_n, grad_c;
    void *losses;                    /* N values: double for FLOAT64, else float */
    const int32_t *labels;           /* sample after sample, no padding */
    const int32_t *label_lengths;    /* N */
    const int32_t *input_lengths;    /* N */
    const double *weights;           /* N factors for the gradients; NULL: all 1 */
    int32_t T, N, C, blank;
    int32_t dtype, topology;
    int32_t threads;                 /* at most this many; 1 or less: the calling thread alone */
    int (*stop)(void);               /* NULL, or asked on the calling thread in the course of a long call, some
                                        twenty times a second; anything but 0 ends it, with CTCBIND_STOPPED */
} ctcbind_problem;

/* Bytes of scratch that ctcbind_loss needs for this problem, of whose arrays only the lengths are read; 0 where it
 * would return CTCBIND_INVALID. Calls on several threads at once need a workspace each. */
size_t ctcbind_workspace_size(const ctcbind_problem *problem);

/* Room for a workspace, and its release; NULL where there is no memory. */
void *ctcbind_workspace_new(size_t bytes);
void ctcbind_workspace_free(void *workspace);

/* Runs the problem. The workspace may be NULL, then it is allocated for the call; where it is too small, that is
 * CTCBIND_SMALL, and nothing is computed. Returns CTCBIND_OK or why not. */
int ctcbind_loss(const ctcbind_problem *problem, void *workspace, size_t workspace_bytes);

/* The instruction set in use: avx512, avx2, neon or scalar. CTCBIND_ISA in the environment picks another;
 * "none" if it names one that this build or processor lacks, and then ctcbind_loss returns CTCBIND_INVALID. */
const char *ctcbind_isa(void);

#endif
