/* What may become the next beam of a search, and the best `width` of it. They are kept in order where it is narrow;
 * else up to 2 * width are, of which the worse half goes each time. */
#ifndef CTCBIND_CANDIDATES_H
#define CTCBIND_CANDIDATES_H

#include <math.h>
#include <stdint.h>

#include "samples.h"

typedef struct ctcbind_candidate {
    double score, lm;
    int32_t slot, label;         /* label NONE: the beam in this slot stays */
    int32_t order;               /* the first come wins a tie */
} ctcbind_candidate;

typedef struct ctcbind_candidates {
    ctcbind_candidate *found;    /* room for 2 * width */
    int64_t width, count, full;  /* with `full` of them the bar is raised: width at first, then 2 * width */
    double bar;                  /* the score that the next candidate has to exceed */
    int32_t come;
    int32_t looked_at;           /* since it was asked whether to stop */
} ctcbind_candidates;

static inline void ctcbind_candidates_begin(ctcbind_candidates *c)
{
    c->count = c->come = 0;
    c->full = c->width;
    c->bar = -INFINITY;
}

/* After `more` of them were looked at: whether to leave the search. */
static inline int ctcbind_candidates_stopped(ctcbind_candidates *c, int32_t more)
{
    enum { BETWEEN = 1024 }; /* so many before it is asked: a frame of a wide beam may take seconds */
    if ((c->looked_at += more) < BETWEEN) return 0;
    c->looked_at = 0;
    return ctcbind_sample_stopped(64 * BETWEEN);
}

/* One whose score exceeds the bar. */
void ctcbind_take_candidate(ctcbind_candidates *c, double score, double lm, int32_t slot, int32_t label);

static inline void ctcbind_offer(ctcbind_candidates *c, double score, double lm, int32_t slot, int32_t label)
{
    if (score > c->bar) ctcbind_take_candidate(c, score, lm, slot, label);
}

/* The best `width` in order: by merging, with what is behind them as room. NULL where the search is stopped. */
const ctcbind_candidate *ctcbind_candidates_in_order(ctcbind_candidates *c);

#endif
