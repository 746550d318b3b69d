/* The states of one sample's lattice as arrays: labels and blanks apart, n = L + 1 of each, so that what a state is
 * reached from is at the same place of other rows, or one before it. Blank i is before label i; label L is none, and
 * never reached. */
#ifndef CTCBIND_TRELLIS_H
#define CTCBIND_TRELLIS_H

#include "graph.h"
#include "kernel.h"

typedef struct ctcbind_trellis {
    const ctcbind_graph *g;
    ctc_sample rows;      /* its rows, as kernels read them */
    int64_t T, L, n, K;   /* K: the classes that states have, each once */
    double stay;          /* 0, or -inf where a label lasts one frame */
    ctcbind_norm *norms;  /* T: what is taken off the logits */
    double *scores;       /* T * K: of those classes */
    double *row;          /* C: for the kernel */
    double *skip;         /* n + 1: 0 where label i may follow the one before it directly, else -inf */
    int32_t *place;       /* n: of each label and of the blank, which of the K classes */
    int32_t *classes;     /* K */
    double *room;         /* what was asked for beside all of that */
} ctcbind_trellis;

/* The classes that states have, each once, and which of them each label has, and at last the blank. Returns how many
 * there are. `seen` is room for C numbers. */
int64_t ctcbind_list_classes(const ctcbind_graph *g, int32_t *classes, int32_t *place, int32_t *seen);

/* Of a sample with frames, with room for so many doubles more. CTCBIND_ROWS_OK; NO_MEMORY; NAN where a frame holds one;
 * STOPPED. ctcbind_trellis_close in any case. */
int ctcbind_trellis_open(ctcbind_trellis *v, const ctcbind_graph *g, int64_t doubles);
void ctcbind_trellis_close(ctcbind_trellis *v);

/* What states have of K values of their classes: n of labels, n of blanks, `none` for the label that is none. */
void ctcbind_trellis_spread(const ctcbind_trellis *v, const double *of_classes, double none, double *to);

/* The shares of those K classes from those of states, which are as above. */
void ctcbind_trellis_gather(const ctcbind_trellis *v, const double *shares, double *of_classes);

/* Writes the softmax of frame t less these shares of K classes. */
void ctcbind_trellis_write(const ctcbind_trellis *v, int64_t t, const double *of_classes, const ctcbind_rows_out *out);

#endif
