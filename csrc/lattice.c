#include "lattice.h"

#include <stdlib.h>

static double add_three(double a, double b, double c)
{
    return ctcbind_add_logs(ctcbind_add_logs(a, b), c);
}

/* The score of each state at frame t, of T * C class scores. */
static void emissions(const ctcbind_graph *g, const double *scores, int64_t t, double *emit)
{
    const double *row = scores + t * g->rows.C;
    int64_t S = 2 * (int64_t)g->L + 1;
    for (int64_t s = 0; s < S; s++) emit[s] = row[ctcbind_class_of(g, s)] + ctcbind_bonus_at(g, t, s);
}

static void forward(const ctcbind_graph *g, const double *scores, double *emit, double *alpha, int64_t stride)
{
    int64_t T = g->rows.T, S = 2 * (int64_t)g->L + 1;
    for (int64_t t = 0; t < T; t++) {
        double *now = alpha + t * stride;
        const double *before = t ? now - stride : now;
        emissions(g, scores, t, emit);
        for (int64_t s = 0; s < S; s++) {
            if (t == 0) {
                now[s] = s < 2 ? emit[s] : -INFINITY;
                continue;
            }
            double stay = ctcbind_stays(g, s) ? before[s] : -INFINITY, from = s ? before[s - 1] : -INFINITY;
            now[s] = emit[s] + add_three(stay, from, ctcbind_skips(g, s) ? before[s - 2] : -INFINITY);
        }
    }
}

/* One frame back: `next` is beta of the frame after, `rest` beta of this one without its own score. */
static void backward(const ctcbind_graph *g, const double *next, double *rest)
{
    int64_t S = 2 * (int64_t)g->L + 1;
    for (int64_t s = 0; s < S; s++) {
        double stay = ctcbind_stays(g, s) ? next[s] : -INFINITY, on = s + 1 < S ? next[s + 1] : -INFINITY;
        rest[s] = add_three(stay, on, s + 2 < S && ctcbind_skips(g, s + 2) ? next[s + 2] : -INFINITY);
    }
}

static void run(const ctcbind_graph *g, ctcbind_lattice *to, const double *scores, double *alpha, int64_t stride,
                double *emit, double *beta, double *rest)
{
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    forward(g, scores, emit, alpha, stride);
    const double *last = alpha + (T - 1) * stride;
    to->log_z = g->L ? ctcbind_add_logs(last[S - 1], last[S - 2]) : last[0];
    if (!to->log_beta && !to->log_gamma && !to->counts) return;
    if (to->counts) memset(to->counts, 0, (size_t)(T * C) * sizeof *to->counts);
    for (int64_t t = T - 1; t >= 0; t--) {
        if (t == T - 1)
            for (int64_t s = 0; s < S; s++) rest[s] = s >= S - 2 ? 0 : -INFINITY;
        else backward(g, beta, rest);
        emissions(g, scores, t, emit);
        double top = -INFINITY, sum = 0;
        for (int64_t s = 0; s < S; s++) {
            beta[s] = rest[s] + emit[s];
            if (to->log_beta) to->log_beta[t * to->stride + s] = beta[s];
            rest[s] += alpha[t * stride + s];
            if (rest[s] > top) top = rest[s];
        }
        /* Each frame is measured by its own sum, not by ln Z: large scores round, and not alike in all frames. */
        if (top == -INFINITY || to->log_z == -INFINITY) {
            for (int64_t s = 0; s < S && to->log_gamma; s++) to->log_gamma[t * to->stride + s] = -INFINITY;
            continue;
        }
        for (int64_t s = 0; s < S; s++) sum += emit[s] = exp(rest[s] - top);
        double log_sum = log(sum);
        for (int64_t s = 0; s < S && to->log_gamma; s++) to->log_gamma[t * to->stride + s] = rest[s] - top - log_sum;
        for (int64_t s = 0; s < S && to->counts; s++) to->counts[t * C + ctcbind_class_of(g, s)] += emit[s] / sum;
    }
}

int ctcbind_lattice_run(const ctcbind_graph *g, ctcbind_lattice *to)
{
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    int64_t own_alpha = to->log_alpha ? 0 : T * S;
    to->log_z = g->L ? -INFINITY : 0;
    if (T == 0) return CTCBIND_ROWS_OK;
    double *scratch = malloc((size_t)(T * C + own_alpha + 3 * S) * sizeof *scratch);
    if (!scratch) return CTCBIND_ROWS_NO_MEMORY;
    double *scores = scratch, *emit = scores + T * C, *beta = emit + S, *rest = beta + S, *alpha = rest + S;
    for (int64_t t = 0; t < T; t++)
        if (!ctcbind_log_softmax(&g->rows, (int32_t)t, scores + t * C)) {
            free(scratch);
            return CTCBIND_ROWS_NAN;
        }
    if (to->softmax)
        for (int64_t i = 0; i < T * C; i++) to->softmax[i] = exp(scores[i]);
    if (g->prior)
        for (int64_t i = 0; i < T * C; i++) scores[i] -= g->prior[i % C];
    run(g, to, scores, own_alpha ? alpha : to->log_alpha, own_alpha ? S : to->stride, emit, beta, rest);
    free(scratch);
    return CTCBIND_ROWS_OK;
}
