/* The best path through the lattice of each sample (Viterbi), without a table of all frames by all states. */
#ifndef CTCBIND_ALIGN_H
#define CTCBIND_ALIGN_H

#include <stddef.h>

#include "graph.h"
#include "samples.h"

typedef struct ctcbind_alignment {
    int32_t *states;        /* T_out: the state of each frame; -1 where there is no path, and past the sample's own */
    int32_t *classes;       /* T_out: the class of that state; -1 */
    int32_t *starts, *ends; /* L_out: the first frame of each label, and the one after its last; -1 */
    double *scores;         /* L_out: the mean of ln y over the frames of each label; NaN */
    int64_t T_out, L_out;
    double log_p;           /* the score of the path; -inf where there is none */
    int32_t status;         /* CTCBIND_ROWS_NAN, and log_p NaN, where a frame holds one */
} ctcbind_alignment;

/* Bytes of scratch that one sample takes of so many frames, labels and classes. */
size_t ctcbind_align_bytes(int64_t T, int64_t L, int64_t C);

/* Of N samples. Of equally good paths the one that, read from its end, is in the last label rather than the blank after
 * it, stays where it can, and else comes from the nearest state. CTCBIND_ROWS_OK, or CTCBIND_ROWS_STOPPED. */
int ctcbind_alignments(const ctcbind_graph *graphs, ctcbind_alignment *alignments, int32_t N, int32_t threads,
                       ctcbind_ask stop);

#endif
