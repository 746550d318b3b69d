/* The best path through the lattice of one sample (Viterbi), without a table of all frames by all states. */
#ifndef CTCBIND_ALIGN_H
#define CTCBIND_ALIGN_H

#include <stddef.h>

#include "graph.h"

typedef struct ctcbind_alignment {
    int32_t *states;        /* T: the state of each frame; -1 where there is no path */
    int32_t *starts, *ends; /* L: the first frame of each label, and the one after its last; -1 */
    double *scores;         /* L: the mean of ln y over the frames of each label; NaN */
    double log_p;           /* the score of the path; -inf where there is none */
} ctcbind_alignment;

/* Bytes of scratch that ctcbind_align takes for so many frames, labels and classes. */
size_t ctcbind_align_bytes(int64_t T, int64_t L, int64_t C);

/* Of equally good paths the one that, read from its end, is in the last label rather than the blank after it, stays
 * where it can, and else comes from the nearest state. CTCBIND_ROWS_NAN where a frame holds a NaN. */
int ctcbind_align(const ctcbind_graph *graph, ctcbind_alignment *alignment);

#endif
