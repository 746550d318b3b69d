/* Forward, backward and occupancy of each sample's lattice, in doubles: state by state, each with an exponent of its
 * own, or, where no state has scores of its own and none is asked for, by the loss of the classes. */
#ifndef CTCBIND_LATTICE_H
#define CTCBIND_LATTICE_H

#include "graph.h"
#include "samples.h"

/* Any pointer may be NULL: then that is not wanted. Equation numbers are those of Graves et al., ICML 2006. */
typedef struct ctcbind_lattice {
    /* T_out rows of S_out values each, -inf (gamma: 0) past the sample's own frames and states */
    void *log_alpha; /* equations 6 to 8 */
    void *log_beta;  /* equations 9 to 11: the score at t is in alpha and in beta */
    void *log_gamma; /* ln of the share of paths that are in s at t */
    void *gamma;
    int64_t T_out, S_out;
    int32_t dtype;         /* of these: CTCBIND_ROWS_FLOAT32 or CTCBIND_ROWS_FLOAT64 */
    int32_t status;        /* CTCBIND_ROWS_NAN where a frame holds a NaN: all is NaN then, if there is a path at all */
    ctcbind_rows_out grad; /* d loss / d logits, float64 where those are and float32 else; zeros past the sample's own
                              frames, and where there is no path */
    double *counts;        /* C: the sum over frames of the share of paths that are in a class */
    double log_z;          /* ln of the sum over all paths; -inf where there is none */
} ctcbind_lattice;

/* The lattices of N samples. CTCBIND_ROWS_OK, or CTCBIND_ROWS_STOPPED; each has a status of its own. */
int ctcbind_lattices(const ctcbind_graph *graphs, ctcbind_lattice *lattices, int32_t N, int32_t threads,
                     ctcbind_ask stop);

#endif
