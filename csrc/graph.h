/* The lattice of one sample: frames, extended label and what is added to its scores. */
#ifndef CTCBIND_GRAPH_H
#define CTCBIND_GRAPH_H

#include "rows.h"

enum { CTCBIND_GRAPH_CTC = 0, CTCBIND_GRAPH_SIMPLE = 1 };

/* State s of S = 2L + 1 is the blank where s is even, label (s - 1) / 2 where it is odd. Being in state s, of class
 * k, at frame t scores ln y[t][k] - prior[k] + bonus[t][s]. */
typedef struct ctcbind_graph {
    ctcbind_rows rows;
    const int32_t *labels;
    int32_t L, blank, topology;
    const double *prior;        /* C values, finite; NULL: none */
    const double *bonus;        /* element (t, s) stands at t*bonus_t + s*bonus_s, below +inf; NULL: none */
    int64_t bonus_t, bonus_s;
} ctcbind_graph;

/* Whether a path may go from s - 2 to s: over the blank between two labels, which equal ones need. */
static inline int ctcbind_skips(const ctcbind_graph *g, int64_t s)
{
    return (s & 1) && s > 1 && (g->topology == CTCBIND_GRAPH_SIMPLE || g->labels[s >> 1] != g->labels[(s >> 1) - 1]);
}

/* The fewest frames that can carry the labels. */
static inline int64_t ctcbind_required(const ctcbind_graph *g)
{
    int64_t required = g->L;
    if (g->topology != CTCBIND_GRAPH_SIMPLE)
        for (int32_t i = 1; i < g->L; i++) required += g->labels[i] == g->labels[i - 1];
    return required;
}

static inline int ctcbind_has_path(const ctcbind_graph *g) { return g->rows.T >= ctcbind_required(g) && g->rows.T > 0; }

static inline double ctcbind_bonus_at(const ctcbind_graph *g, int64_t t, int64_t s)
{
    return g->bonus ? g->bonus[t * g->bonus_t + s * g->bonus_s] : 0;
}

#endif
