/* The paths of one sample as a Markov chain: of those in a state at a frame, the shares that go to each state of the
 * next. Whoever follows them needs no logarithms, and no probabilities but these.
 *
 * The states of a frame are kept as labels and blanks apart, n = L + 1 of each: blank i is before label i, and label L
 * is none. Before frame 0 there is one more frame, at which all paths are in blank 0. */
#ifndef CTCBIND_CHAIN_H
#define CTCBIND_CHAIN_H

#include "graph.h"
#include "powers.h"

/* Shares, n of each array, one array after the other. So there is a number before each but the first, and element -1,
 * for the label before the first, may be read there. */
typedef struct ctcbind_moves {
    double *stay, *to_blank, *skip; /* from label i: to itself, to blank i + 1, to label i + 1 */
    double *to_label, *wait;        /* from blank i: to label i, to itself */
} ctcbind_moves;

typedef struct ctcbind_chain {
    const ctcbind_graph *g;
    int64_t T, L, n;
    int64_t kept;        /* frames: the last whose moves were found */
    double *moves;       /* so many times 5n */
    double *skip;        /* n + 1: 0 where label i may follow the one before it directly, else -inf */
    ctcbind_powers ends; /* beta: all ends of paths from each state of a frame on, its own emission among them; of n + 1
                            labels and n + 1 blanks, the last of each 0 */
    ctcbind_powers room; /* for those of the frame before */
    ctcbind_powers emit; /* n labels */
} ctcbind_chain;

/* Of a sample with frames, in a room of so many doubles; T + 1 is all that can be kept. */
int64_t ctcbind_chain_doubles(int64_t kept, int64_t L);
void ctcbind_chain_open(ctcbind_chain *h, const ctcbind_graph *g, int64_t kept, double *room);

/* Labels, and blanks, low..high - 1: no others of a frame are reached from the first frame and can reach the last. */
typedef struct ctcbind_span {
    int64_t low, high;
} ctcbind_span;

static inline ctcbind_span ctcbind_chain_span(const ctcbind_chain *h, int64_t t)
{
    int64_t late = h->L - h->T + t; /* labels before it must be over, for the rest to have a frame each */
    return (ctcbind_span){late > 0 ? late : 0, t + 1 < h->n ? t + 1 : h->n};
}

/* The sum of n labels and n blanks, of those in the span. */
static inline double ctcbind_chain_sum(const double *values, int64_t n, ctcbind_span span)
{
    int64_t count = span.high - span.low;
    return ctcbind_sum(values + span.low, count) + ctcbind_sum(values + n + span.low, count);
}

/* The moves out of frame t, for t from T - 1 down to -1: scores[c] is ln of what class c is emitted with at t, up to a
 * constant, and none is above 0; exps[c] is e^scores[c], as ctcbind_exps has it. At -1 they are not looked at. */
void ctcbind_chain_back(ctcbind_chain *h, int64_t t, const double *scores, const double *exps);

/* To go back from the same frame once more: 4(n + 1) doubles. */
void ctcbind_chain_save(const ctcbind_chain *h, double *to);
void ctcbind_chain_restore(ctcbind_chain *h, const double *from);

/* Whether there is a path: after all of that. */
int ctcbind_chain_has_path(const ctcbind_chain *h);

ctcbind_moves ctcbind_chain_moves(const ctcbind_chain *h, int64_t t);

#endif
