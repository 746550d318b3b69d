/* The Hessian times a direction. */
#include "second_order.h"

#include <stdlib.h>

#include "chain.h"
#include "size.h"

/* d (share of the paths that are in a state at t) is the covariance of being there and of what the direction adds to a
 * path's score: a sum over its frames, of which those up to t and those after it are independent, given the state. Each
 * frame's mean under the softmax is taken off the direction. */
typedef struct work {
    ctcbind_chain chain;
    int32_t wide;                   /* C, and classes without any probability that fill the last vector */
    double *row, *exps, *direction; /* so many */
    double *tops, *sums;            /* T: the largest logit, and the sum of e^(logit - largest) */
    double *means;                  /* T: of the direction under the softmax */
    double *slopes;     /* n: what the direction adds to the labels of a frame */
    double *later;      /* frames of n labels, n blanks, a block of them: the mean of what is added after it */
    double *from[2];    /* n + 1 labels, n + 1 blanks: that, and what is added at the frame */
    int64_t block;      /* frames: moves and later means of one block are kept, others are found again */
    double *saved;      /* before the last frame of each block: what it takes to go back through it, 6(n + 1) */
    double *shares[2];  /* 0, n labels, n blanks: of all paths */
    double *earlier[2]; /* 0, n labels, n blanks: the mean of what was added up to the frame, times the share */
    double *changes;    /* n labels, n blanks */
} work;

CTCBIND_CLONES static void look_ahead(ctcbind_moves m, const double *restrict labels, const double *restrict blanks,
                                      const double *restrict slopes, double slope, int64_t n, ctcbind_span span,
                                      double *restrict later, double *restrict from_labels,
                                      double *restrict from_blanks)
{
    const double *restrict stay = m.stay, *restrict to_blank = m.to_blank, *restrict skip = m.skip;
    const double *restrict to_label = m.to_label, *restrict wait = m.wait;
    for (int64_t i = span.low; i < span.high; i++) {
        double label = stay[i] * labels[i] + to_blank[i] * blanks[i + 1] + skip[i] * labels[i + 1];
        double blank = wait[i] * blanks[i] + to_label[i] * labels[i];
        later[i] = label;
        later[n + i] = blank;
        from_labels[i] = label + slopes[i];
        from_blanks[i] = blank + slope;
    }
}

/* labels[-1] is 0. */
CTCBIND_CLONES static void go_on(ctcbind_moves m, const double *restrict shares, const double *restrict earlier,
                                 const double *restrict slopes, double slope, const double *restrict later, int64_t n,
                                 ctcbind_span span, double *restrict to, double *restrict to_earlier,
                                 double *restrict changes)
{
    const double *restrict stay = m.stay, *restrict to_blank = m.to_blank, *restrict skip = m.skip;
    const double *restrict to_label = m.to_label, *restrict wait = m.wait;
    for (int64_t i = span.low; i < span.high; i++) {
        double from = shares[i] * stay[i] + shares[n + i] * to_label[i] + shares[i - 1] * skip[i - 1];
        double sum = earlier[i] * stay[i] + earlier[n + i] * to_label[i] + earlier[i - 1] * skip[i - 1];
        double share = from < CTCBIND_NO_SHARE ? 0 : from, all = from < CTCBIND_NO_SHARE ? 0 : sum + share * slopes[i];
        to[i] = share;
        to_earlier[i] = all;
        changes[i] = all + share * later[i];
    }
    for (int64_t i = span.low; i < span.high; i++) {
        double from = shares[n + i] * wait[i] + shares[i - 1] * to_blank[i - 1];
        double sum = earlier[n + i] * wait[i] + earlier[i - 1] * to_blank[i - 1];
        double share = from < CTCBIND_NO_SHARE ? 0 : from, all = from < CTCBIND_NO_SHARE ? 0 : sum + share * slope;
        to[n + i] = share;
        to_earlier[n + i] = all;
        changes[n + i] = all + share * later[n + i];
    }
}

CTCBIND_CLONES static void take_off_mean(const double *restrict shares, double mean, double scale, int64_t n,
                                         ctcbind_span span, double *restrict changes)
{
    for (int64_t k = 0; k < 2; k++, shares += n, changes += n)
        for (int64_t i = span.low; i < span.high; i++) changes[i] = (changes[i] - mean * shares[i]) * scale;
}

CTCBIND_CLONES static void weigh(const double *restrict direction, int32_t C, double *restrict exps)
{
    for (int32_t c = 0; c < C; c++) exps[c] *= direction[c];
}

CTCBIND_CLONES static void of_softmax(const double *restrict direction, double mean, double scale, int32_t C,
                                      double *restrict exps)
{
    for (int32_t c = 0; c < C; c++) exps[c] = exps[c] * scale * (direction[c] - mean) + 0; /* never -0 */
}

CTCBIND_CLONES static void of_labels(const double *restrict values, const int32_t *restrict labels, ctcbind_span span,
                                     double less, double *restrict to)
{
    for (int64_t i = span.low; i < span.high; i++) to[i] = values[labels[i]] - less;
}

/* What the direction adds to the states of frame t: to labels in `slopes`, to the blank as result. */
static double slopes_at(work *p, int64_t t, ctcbind_span span)
{
    const ctcbind_graph *g = p->chain.g;
    if (span.high > g->L) span.high = g->L;
    of_labels(p->direction, g->labels, span, p->means[t], p->slopes);
    return p->direction[g->blank] - p->means[t];
}

static void swap(double *pair[2])
{
    double *first = pair[0];
    pair[0] = pair[1];
    pair[1] = first;
}

static double *later_at(const work *p, int64_t t)
{
    return p->later + t % p->block * 2 * p->chain.n;
}

/* Frame t on the way back, for the first time or again. */
static int back(work *p, const ctcbind_rows *along, int64_t t, int again)
{
    ctcbind_chain *h = &p->chain;
    int64_t n = h->n, nans = 0;
    int32_t C = p->wide;
    ctcbind_read_row(&h->g->rows, (int32_t)t, p->row);
    if (!again) p->tops[t] = ctcbind_largest(p->row, C, &nans);
    if (nans) return CTCBIND_ROWS_NAN;
    ctcbind_take_off(p->row, C, (ctcbind_norm){p->tops[t], 0});
    ctcbind_exps(p->row, C, p->exps);
    ctcbind_chain_back(h, t, p->row, p->exps);
    ctcbind_read_row(along, (int32_t)t, p->direction);
    if (!again) {
        p->sums[t] = ctcbind_sum(p->exps, C);
        weigh(p->direction, C, p->exps);
        p->means[t] = ctcbind_sum(p->exps, C) / p->sums[t];
    }
    ctcbind_span span = ctcbind_chain_span(h, t);
    double slope = slopes_at(p, t, span), *next = p->from[0], *now = p->from[1];
    look_ahead(ctcbind_chain_moves(h, t), next, next + n + 1, p->slopes, slope, n, span, later_at(p, t), now,
               now + n + 1);
    swap(p->from);
    return CTCBIND_ROWS_OK;
}

static int backward(work *p, const ctcbind_rows *along)
{
    ctcbind_chain *h = &p->chain;
    int64_t n = h->n;
    for (int64_t t = h->T - 1; t >= 0; t--) {
        if (ctcbind_sample_stopped(2 * n + p->wide)) return CTCBIND_ROWS_STOPPED;
        if (t == h->T - 1 || (t + 1) % p->block == 0) {
            double *saved = p->saved + t / p->block * 6 * (n + 1);
            ctcbind_chain_save(h, saved);
            memcpy(saved + 4 * (n + 1), p->from[0], (size_t)(2 * (n + 1)) * sizeof *saved);
        }
        int status = back(p, along, t, 0);
        if (status != CTCBIND_ROWS_OK) return status;
    }
    ctcbind_chain_back(h, -1, NULL, NULL);
    return CTCBIND_ROWS_OK;
}

/* The block that begins at frame t. The moves into it are still there, from the block before. */
static void back_again(work *p, const ctcbind_rows *along, int64_t t)
{
    int64_t n = p->chain.n, end = t + p->block < p->chain.T ? t + p->block : p->chain.T;
    const double *saved = p->saved + t / p->block * 6 * (n + 1);
    ctcbind_chain_restore(&p->chain, saved);
    for (int k = 0; k < 2; k++) memcpy(p->from[k], saved + 4 * (n + 1), (size_t)(2 * (n + 1)) * sizeof *saved);
    for (int64_t u = end - 1; u >= t && !ctcbind_sample_stopped(2 * n + p->wide); u--) back(p, along, u, 1);
}

/* Each frame is measured by the sum of its own shares. */
static void forward(work *p, const ctcbind_rows *along, const ctcbind_rows_out *out)
{
    const ctcbind_graph *g = p->chain.g;
    int64_t n = p->chain.n;
    int32_t C = p->wide;
    p->shares[0][1 + n] = 1;
    for (int64_t t = 0; t < p->chain.T && !ctcbind_sample_stopped(2 * n + C); t++) {
        double *shares = p->shares[1] + 1;
        if (t && t % p->block == 0) back_again(p, along, t);
        ctcbind_read_row(along, (int32_t)t, p->direction);
        ctcbind_span span = ctcbind_chain_span(&p->chain, t);
        double slope = slopes_at(p, t, span);
        go_on(ctcbind_chain_moves(&p->chain, t - 1), p->shares[0] + 1, p->earlier[0] + 1, p->slopes, slope,
              later_at(p, t), n, span, shares, p->earlier[1] + 1, p->changes);
        double scale = 1 / ctcbind_chain_sum(shares, n, span), mean = ctcbind_chain_sum(p->changes, n, span) * scale;
        take_off_mean(shares, mean, scale, n, span, p->changes);
        ctcbind_read_row(&g->rows, (int32_t)t, p->row);
        ctcbind_take_off(p->row, C, (ctcbind_norm){p->tops[t], 0});
        ctcbind_exps(p->row, C, p->exps);
        of_softmax(p->direction, p->means[t], 1 / p->sums[t], C, p->exps);
        for (int64_t i = span.low; i < span.high && i < g->L; i++) p->exps[g->labels[i]] -= p->changes[i];
        p->exps[g->blank] -= ctcbind_sum(p->changes + n + span.low, span.high - span.low);
        ctcbind_write_row(out, t, p->exps);
        swap(p->shares);
        swap(p->earlier);
    }
}

/* So much is kept of one block, which a cache holds, and of a sample that is one block. What lies farther away takes
 * longer than to find it again. */
enum { BLOCK_BYTES = 1 << 19, WHOLE_BYTES = 1 << 24 };

static int64_t block_of(int64_t T, int64_t n)
{
    int64_t bytes = 7 * n * (int64_t)sizeof(double), some = BLOCK_BYTES / bytes;
    if (T * bytes <= WHOLE_BYTES) return T;
    return some > 16 ? some : 16;
}

static int multiply(const ctcbind_graph *g, const ctcbind_rows *along, const ctcbind_rows_out *out)
{
    work p;
    int64_t T = g->rows.T, n = (int64_t)g->L + 1, C = g->rows.C, wide = C > INT32_MAX - 7 ? C : (C + 7) / 8 * 8;
    int64_t block = block_of(T, n), chain = ctcbind_chain_doubles(block + 1, g->L);
    int64_t frames = 3 * T + block * 2 * n + (T + block - 1) / block * 6 * (n + 1);
    int64_t frame = 3 * wide + n + 4 * (n + 1) + 4 * (2 * n + 1) + 2 * n;
    double *scratch = malloc(ctcbind_size((uint64_t)(chain + frames + frame) * sizeof *scratch));
    double *left = scratch;
    p.wide = (int32_t)wide;
    p.block = block;
    if (!scratch) return CTCBIND_ROWS_NO_MEMORY;
    ctcbind_chain_open(&p.chain, g, block + 1, ctcbind_take(&left, chain));
    p.row = ctcbind_take(&left, wide);
    p.exps = ctcbind_take(&left, wide);
    p.direction = ctcbind_take_zeros(&left, wide);
    for (int64_t c = C; c < wide; c++) p.row[c] = -INFINITY;
    p.tops = ctcbind_take(&left, T);
    p.sums = ctcbind_take(&left, T);
    p.means = ctcbind_take(&left, T);
    p.slopes = ctcbind_take_zeros(&left, n);
    p.later = ctcbind_take(&left, block * 2 * n);
    p.saved = ctcbind_take(&left, (T + block - 1) / block * 6 * (n + 1));
    for (int k = 0; k < 2; k++) {
        p.from[k] = ctcbind_take_zeros(&left, 2 * (n + 1));
        p.shares[k] = ctcbind_take_zeros(&left, 2 * n + 1);
        p.earlier[k] = ctcbind_take_zeros(&left, 2 * n + 1);
    }
    p.changes = ctcbind_take(&left, 2 * n);
    int status = backward(&p, along);
    if (status == CTCBIND_ROWS_NAN) ctcbind_fill_rows(out, 0, T, NAN);
    else if (status == CTCBIND_ROWS_OK && ctcbind_chain_has_path(&p.chain)) forward(&p, along, out);
    else if (status == CTCBIND_ROWS_OK) ctcbind_fill_rows(out, 0, T, 0);
    free(scratch);
    return status;
}

typedef struct products {
    const ctcbind_graph *graphs;
    ctcbind_product *all;
} products;

static void multiply_one(void *arg, int32_t which)
{
    const products *b = arg;
    const ctcbind_graph *g = b->graphs + which;
    ctcbind_product *to = b->all + which;
    int path = ctcbind_has_path(g);
    ctcbind_fill_rows(&to->out, path ? g->rows.T : 0, to->out.T, 0);
    to->status = path ? multiply(g, &to->along, &to->out) : CTCBIND_ROWS_OK;
}

int ctcbind_products(const ctcbind_graph *graphs, ctcbind_product *all, int32_t N, int32_t threads, ctcbind_ask stop)
{
    products b = {graphs, all};
    return ctcbind_each_sample(N, threads, stop, multiply_one, &b);
}
