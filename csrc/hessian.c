/* All elements of the Hessian. */
#include "second_order.h"

#include <stdlib.h>

#include "chain.h"
#include "size.h"

typedef struct work {
    ctcbind_chain chain;
    int64_t T, C;
    double *softmax;   /* T * C */
    double *counts;    /* T * C: the share of paths that are in a class */
    double *shares;    /* T frames of n labels, n blanks */
    double *row;       /* C */
    double *flows[2];  /* 0, n labels, n blanks */
    double *pair;      /* C */
    int32_t *seen;     /* C: the classes on the paths, each once */
    int32_t kinds;
    const ctcbind_hessian *out;
} work;

static int64_t place(const work *p, int64_t t, int64_t c, int64_t u)
{
    return ((t * p->C + c) * p->out->T_out + u) * p->C;
}

static void put(const work *p, int64_t at, double value)
{
    if (p->out->dtype == CTCBIND_ROWS_FLOAT32) ((float *)p->out->data)[at] = (float)value;
    else ((double *)p->out->data)[at] = value;
}

/* How many are in the labels and blanks of a span, out of the frame before, where labels[span.low - 1] is looked at. */
CTCBIND_CLONES static void flow(ctcbind_moves m, const double *restrict labels, const double *restrict blanks,
                                ctcbind_span span, double *restrict to, double *restrict to_blanks)
{
    const double *restrict stay = m.stay, *restrict to_blank = m.to_blank, *restrict skip = m.skip;
    const double *restrict to_label = m.to_label, *restrict wait = m.wait;
    for (int64_t i = span.low; i < span.high; i++) {
        double label = labels[i] * stay[i] + blanks[i] * to_label[i] + labels[i - 1] * skip[i - 1];
        double blank = blanks[i] * wait[i] + labels[i - 1] * to_blank[i - 1];
        to[i] = label < CTCBIND_NO_SHARE ? 0 : label;
        to_blanks[i] = blank < CTCBIND_NO_SHARE ? 0 : blank;
    }
}

CTCBIND_CLONES static void scale(double *values, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++) values[i] *= factor;
}

/* All but where paths go from each class at each frame: softmax, shares and counts. */
static int spread(work *p)
{
    ctcbind_chain *h = &p->chain;
    const ctcbind_graph *g = h->g;
    int64_t n = h->n, T = p->T, nans;
    int32_t C = (int32_t)p->C;
    for (int64_t t = T - 1; t >= 0; t--) {
        double *softmax = p->softmax + t * C;
        if (ctcbind_sample_stopped(2 * n + C)) return CTCBIND_ROWS_STOPPED;
        ctcbind_read_row(&g->rows, (int32_t)t, p->row);
        double top = ctcbind_largest(p->row, C, &nans);
        if (nans) return CTCBIND_ROWS_NAN;
        ctcbind_take_off(p->row, C, (ctcbind_norm){top, 0});
        ctcbind_exps(p->row, C, softmax);
        ctcbind_chain_back(h, t, p->row, softmax);
        scale(softmax, C, 1 / ctcbind_sum(softmax, C));
    }
    ctcbind_chain_back(h, -1, NULL, NULL);
    double *before = p->flows[0] + 1, *now = p->flows[1] + 1;
    before[n] = 1;
    for (int64_t t = 0; t < T && ctcbind_chain_has_path(h); t++) {
        if (ctcbind_sample_stopped(2 * n)) return CTCBIND_ROWS_STOPPED;
        double *counts = p->counts + t * C, *shares = p->shares + t * 2 * n;
        ctcbind_span span = ctcbind_chain_span(h, t);
        int64_t count = span.high - span.low;
        flow(ctcbind_chain_moves(h, t - 1), before, before + n, span, now, now + n);
        double factor = 1 / ctcbind_chain_sum(now, n, span);
        memset(shares, 0, (size_t)(2 * n) * sizeof *shares);
        for (int64_t k = 0, at = span.low; k < 2; k++, at += n) {
            scale(now + at, count, factor);
            memcpy(shares + at, now + at, (size_t)count * sizeof *shares);
        }
        for (int64_t i = span.low; i < span.high && i < h->L; i++) counts[g->labels[i]] += shares[i];
        counts[g->blank] += ctcbind_sum(shares + n + span.low, count);
        double *last = before;
        before = now;
        now = last;
    }
    return CTCBIND_ROWS_OK;
}

/* What is drawn from one softmax at t, and the classes that paths are in at t. */
static void same_frame(const work *p, int64_t t)
{
    const double *y = p->softmax + t * p->C, *counts = p->counts + t * p->C;
    for (int64_t c = 0; c < p->C; c++)
        for (int64_t d = 0; d < p->C; d++)
            put(p, place(p, t, c, t) + d, counts[c] * counts[d] - y[c] * y[d] + (c == d ? y[c] - counts[c] : 0));
}

/* Of the paths in class c at t, where they are at each later frame. */
static void later_frames(const work *p, int64_t t, int32_t c)
{
    const ctcbind_chain *h = &p->chain;
    const ctcbind_graph *g = h->g;
    int64_t n = h->n;
    ctcbind_span span = {n, 0};
    const double *shares = p->shares + t * 2 * n;
    double *now = p->flows[0] + 1, *then = p->flows[1] + 1, count = p->counts[t * p->C + c];
    for (int64_t i = 0; i < n; i++) {
        now[i] = i < h->L && g->labels[i] == c ? shares[i] : 0;
        now[n + i] = g->blank == c ? shares[n + i] : 0;
        if (now[i] == 0 && now[n + i] == 0) continue;
        if (i < span.low) span.low = i;
        span.high = i + 1;
    }
    if (span.high == 0) return;
    then[span.low - 1] = 0;
    for (int64_t u = t + 1; u < p->T; u++) {
        const double *counts = p->counts + u * p->C;
        ctcbind_span all = ctcbind_chain_span(h, u);
        if (u % 16 == 0 && ctcbind_sample_stopped(32 * (span.high - span.low))) return;
        if (span.high < n) now[span.high] = now[n + span.high] = 0, span.high++;
        if (span.low < all.low) span.low = all.low;
        flow(ctcbind_chain_moves(h, u - 1), now, now + n, span, then, then + n);
        double *last = now;
        now = then;
        then = last;
        for (int32_t i = 0; i < p->kinds; i++) p->pair[p->seen[i]] = 0;
        for (int64_t i = span.low; i < span.high && i < h->L; i++) p->pair[g->labels[i]] += now[i];
        p->pair[g->blank] += ctcbind_sum(now + n + span.low, span.high - span.low);
        for (int32_t i = 0; i < p->kinds; i++) {
            int32_t d = p->seen[i];
            put(p, place(p, t, c, u) + d, 0 - (p->pair[d] - count * counts[d])); /* never -0 */
        }
    }
}

/* The other half: what is at t and u is at u and t as well. Each row of u lies in pages of its own, which the system
 * may have to find first: to find one counts as so many states. */
static void mirror(const work *p, int64_t t)
{
    enum { PAGE = 512 };
#define MIRROR(type) \
    do { \
        type *all = p->out->data; \
        for (int32_t i = 0; i < p->kinds; i++) \
            for (int32_t k = 0; k < p->kinds; k++) \
                all[place(p, u, p->seen[i], t) + p->seen[k]] = all[place(p, t, p->seen[k], u) + p->seen[i]]; \
    } while (0)
    for (int64_t u = t + 1; u < p->T && !ctcbind_sample_stopped(p->C * (p->C + PAGE)); u++) {
        if (p->out->dtype == CTCBIND_ROWS_FLOAT32) MIRROR(float);
        else MIRROR(double);
    }
#undef MIRROR
}

static void note_classes(work *p)
{
    const ctcbind_graph *g = p->chain.g;
    p->kinds = 0;
    for (int64_t c = 0; c < p->C; c++) p->pair[c] = 0;
    for (int64_t i = 0; i <= g->L; i++) {
        int32_t c = i < g->L ? g->labels[i] : g->blank;
        if (p->pair[c] == 0) p->seen[p->kinds++] = c;
        p->pair[c] = 1;
    }
}

static int64_t scratch_doubles(int64_t T, int64_t L, int64_t C)
{
    int64_t n = L + 1;
    return ctcbind_chain_doubles(T + 1, L) + 2 * T * C + 2 * T * n + 2 * C + 2 * (2 * n + 1);
}

int64_t ctcbind_hessian_bytes(int64_t T, int64_t L, int64_t C)
{
    if (T < L || T <= 0) return 0;
    return scratch_doubles(T, L, C) * (int64_t)sizeof(double) + C * (int64_t)sizeof(int32_t);
}

static void fill_with_nan(const work *p)
{
    for (int64_t t = 0; t < p->T; t++)
        for (int64_t c = 0; c < p->C; c++)
            for (int64_t u = 0; u < p->T; u++)
                for (int64_t d = 0; d < p->C; d++) put(p, place(p, t, c, u) + d, NAN);
}

static int fill_in(work *p)
{
    int status = spread(p);
    if (status == CTCBIND_ROWS_NAN) fill_with_nan(p);
    if (status != CTCBIND_ROWS_OK || !ctcbind_chain_has_path(&p->chain)) return status;
    note_classes(p);
    for (int64_t t = 0; t < p->T && !ctcbind_sample_stopped(p->C * p->C); t++) {
        same_frame(p, t);
        for (int32_t i = 0; i < p->kinds; i++) later_frames(p, t, p->seen[i]);
        mirror(p, t);
    }
    return status;
}

static int fill_hessian(const ctcbind_graph *g, const ctcbind_hessian *out)
{
    int64_t T = g->rows.T, C = g->rows.C, n = (int64_t)g->L + 1;
    if (!ctcbind_has_path(g)) return CTCBIND_ROWS_OK;
    double *scratch = malloc(ctcbind_size((uint64_t)scratch_doubles(T, g->L, C) * sizeof *scratch)), *left = scratch;
    int32_t *seen = malloc((size_t)C * sizeof *seen);
    int status = CTCBIND_ROWS_NO_MEMORY;
    if (scratch && seen) {
        work p = {.T = T, .C = C, .seen = seen, .out = out};
        ctcbind_chain_open(&p.chain, g, T + 1, ctcbind_take(&left, ctcbind_chain_doubles(T + 1, g->L)));
        p.softmax = ctcbind_take(&left, T * C);
        p.counts = ctcbind_take_zeros(&left, T * C);
        p.shares = ctcbind_take(&left, 2 * T * n);
        p.row = ctcbind_take(&left, C);
        p.pair = ctcbind_take(&left, C);
        for (int k = 0; k < 2; k++) p.flows[k] = ctcbind_take_zeros(&left, 2 * n + 1);
        status = fill_in(&p);
    }
    free(scratch);
    free(seen);
    return status;
}

typedef struct hessians {
    const ctcbind_graph *graphs;
    ctcbind_hessian *out;
} hessians;

static void fill_one(void *arg, int32_t which)
{
    const hessians *b = arg;
    b->out[which].status = fill_hessian(b->graphs + which, b->out + which);
}

int ctcbind_hessians(const ctcbind_graph *graphs, ctcbind_hessian *out, int32_t N, int32_t threads, ctcbind_ask stop)
{
    hessians b = {graphs, out};
    return ctcbind_each_sample(N, threads, stop, fill_one, &b);
}
