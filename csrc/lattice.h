/* Forward, backward and occupancy of one sample's lattice in log space, in double. */
#ifndef CTCBIND_LATTICE_H
#define CTCBIND_LATTICE_H

#include "graph.h"

/* Any pointer may be NULL: then that is not wanted. Element (t, s) stands at t*stride + s. Equation numbers are those
 * of Graves et al., ICML 2006. */
typedef struct ctcbind_lattice {
    int64_t stride;
    double *log_alpha; /* equations 6 to 8 */
    double *log_beta;  /* equations 9 to 11: the score at t is in alpha and in beta */
    double *log_gamma; /* ln of the share of paths that are in s at t */
    double *counts;    /* T * C: the sum of gamma over the states of a class */
    double *softmax;   /* T * C */
    double log_z;      /* ln of the sum over all paths; -inf where there is none */
} ctcbind_lattice;

/* CTCBIND_ROWS_NAN where a frame holds a NaN; nothing is written then. */
int ctcbind_lattice_run(const ctcbind_graph *graph, ctcbind_lattice *lattice);

#endif
