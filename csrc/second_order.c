/* The loss of a sample is the sum over t of logsumexp(x_t), less ln of the sum over paths of e^(their logits). Its
 * Hessian is that of the first term, the covariance of the classes drawn from each softmax, less that of the second:
 * the covariance of the indicators "the path is in class c at t". */
#include "second_order.h"

#include <stdlib.h>

typedef struct dual {
    double value, slope; /* of a logarithm, and its derivative along v: 0 where value is -inf */
} dual;

static const dual NOTHING = {-INFINITY, 0};

/* ln(e^a + e^b): the slope is the mean of theirs, weighted by their shares. */
static dual add_pair(dual a, dual b)
{
    if (b.value > a.value) {
        dual swap = a;
        a = b;
        b = swap;
    }
    if (b.value == -INFINITY) return a;
    double gap = b.value - a.value, share = gap > -700 ? exp(gap) : 0, sum = 1 + share;
    return (dual){a.value + log(sum), (a.slope + share * b.slope) / sum};
}

static dual add_duals(dual a, dual b, dual c)
{
    return add_pair(add_pair(a, b), c);
}

static dual times(dual a, double value, double slope)
{
    if (a.value == -INFINITY || value == -INFINITY) return NOTHING;
    return (dual){a.value + value, a.slope + slope};
}

static int has_path(const ctcbind_graph *g) { return g->rows.T >= ctcbind_required(g) && g->rows.T > 0; }

/* ln softmax of all frames; 0 where one holds a NaN. */
static int all_rows(const ctcbind_rows *rows, double *scores)
{
    for (int64_t t = 0; t < rows->T; t++)
        if (!ctcbind_log_softmax(rows, (int32_t)t, scores + t * rows->C)) return 0;
    return 1;
}

/* --- along a direction ----------------------------------------------------------------------------------------- */

/* v less its mean under the softmax: the derivative of ln softmax. */
static void centre(const ctcbind_rows *along, const double *scores, double *slopes)
{
    int64_t C = along->C;
    for (int64_t t = 0; t < along->T; t++) {
        const double *row = scores + t * C;
        double *slope = slopes + t * C, mean = 0;
        ctcbind_read_row(along, (int32_t)t, slope);
        for (int64_t c = 0; c < C; c++) mean += exp(row[c]) * slope[c];
        for (int64_t c = 0; c < C; c++) slope[c] -= mean;
    }
}

static void forward(const ctcbind_graph *g, const double *scores, const double *slopes, dual *alpha)
{
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    for (int64_t t = 0; t < T; t++) {
        dual *now = alpha + t * S;
        const dual *before = t ? now - S : now;
        for (int64_t s = 0; s < S; s++) {
            int64_t at = t * C + ctcbind_class_of(g, s);
            dual into = s < 2 ? (dual){0, 0} : NOTHING;
            if (t)
                into = add_duals(ctcbind_stays(g, s) ? before[s] : NOTHING, s ? before[s - 1] : NOTHING,
                                 ctcbind_skips(g, s) ? before[s - 2] : NOTHING);
            now[s] = times(into, scores[at], slopes[at]);
        }
    }
}

static void subtract_counts(const ctcbind_graph *g, const double *scores, const double *slopes, const dual *alpha,
                            dual *rest, dual *next, double *out)
{
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    for (int64_t t = T - 1; t >= 0; t--) {
        for (int64_t s = 0; s < S; s++) {
            if (t == T - 1) rest[s] = s >= S - 2 ? (dual){0, 0} : NOTHING;
            else
                rest[s] = add_duals(ctcbind_stays(g, s) ? next[s] : NOTHING, s + 1 < S ? next[s + 1] : NOTHING,
                                    s + 2 < S && ctcbind_skips(g, s + 2) ? next[s + 2] : NOTHING);
        }
        double top = -INFINITY, sum = 0, slope = 0;
        for (int64_t s = 0; s < S; s++) {
            int64_t at = t * C + ctcbind_class_of(g, s);
            next[s] = times(rest[s], scores[at], slopes[at]);
            rest[s] = times(alpha[t * S + s], rest[s].value, rest[s].slope);
            if (rest[s].value > top) top = rest[s].value;
        }
        if (top == -INFINITY) continue;
        /* Each frame is measured by its own sum, not by Z: large scores round, and not alike in all frames. */
        for (int64_t s = 0; s < S; s++) {
            rest[s].value = exp(rest[s].value - top);
            sum += rest[s].value;
            slope += rest[s].value * rest[s].slope;
        }
        for (int64_t s = 0; s < S; s++)
            out[t * C + ctcbind_class_of(g, s)] -= rest[s].value / sum * (rest[s].slope - slope / sum);
    }
}

int ctcbind_hvp(const ctcbind_graph *g, const ctcbind_rows *along, double *out)
{
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    memset(out, 0, (size_t)(T * C) * sizeof *out);
    if (!has_path(g)) return CTCBIND_ROWS_OK;
    double *scores = malloc((size_t)(2 * T * C) * sizeof *scores);
    dual *alpha = malloc((size_t)(T * S + 2 * S) * sizeof *alpha);
    int status = CTCBIND_ROWS_NO_MEMORY;
    if (scores && alpha) {
        status = all_rows(&g->rows, scores) ? CTCBIND_ROWS_OK : CTCBIND_ROWS_NAN;
        if (status == CTCBIND_ROWS_OK) {
            double *slopes = scores + T * C;
            centre(along, scores, slopes);
            forward(g, scores, slopes, alpha);
            const dual *last = alpha + (T - 1) * S;
            if (last[S - 1].value > -INFINITY || (g->L && last[S - 2].value > -INFINITY)) {
                for (int64_t i = 0; i < T * C; i++) out[i] = exp(scores[i]) * slopes[i];
                subtract_counts(g, scores, slopes, alpha, alpha + T * S, alpha + T * S + S, out);
            }
        }
    }
    free(scores);
    free(alpha);
    return status;
}

/* --- all of it ------------------------------------------------------------------------------------------------- */

typedef struct chain {
    const ctcbind_graph *g;
    int64_t T, C, S, T_out;
    double *scores; /* T * C: ln softmax, later softmax */
    double *alpha;  /* T * S */
    double *beta;   /* T * S, with the score at t */
    double *moves;  /* T * S * 3: of the paths in s at t, the share that go to s, s + 1, s + 2 */
    double *gamma;  /* T * S */
    double *counts; /* T * C */
    double *flow;   /* 2 * S */
    double *pair;   /* C */
    int32_t *seen;  /* C: the classes on the paths, each once */
    int32_t kinds;
    double *out;
} chain;

static double *block(const chain *h, int64_t t, int64_t c, int64_t u)
{
    return h->out + ((t * h->C + c) * h->T_out + u) * h->C;
}

/* The lattice as a Markov chain of its posterior: no logarithms from here on. 0 where there is no path. */
static int make_chain(chain *h)
{
    const ctcbind_graph *g = h->g;
    int64_t T = h->T, C = h->C, S = h->S;
    for (int64_t t = 0; t < T; t++)
        for (int64_t s = 0; s < S; s++) {
            const double *before = h->alpha + (t ? t - 1 : 0) * S;
            double into = s < 2 ? 0 : -INFINITY;
            if (t) {
                into = ctcbind_stays(g, s) ? before[s] : -INFINITY;
                if (s) into = ctcbind_add_logs(into, before[s - 1]);
                if (ctcbind_skips(g, s)) into = ctcbind_add_logs(into, before[s - 2]);
            }
            h->alpha[t * S + s] = into + h->scores[t * C + ctcbind_class_of(g, s)];
        }
    const double *last = h->alpha + (T - 1) * S;
    double log_z = g->L ? ctcbind_add_logs(last[S - 1], last[S - 2]) : last[0];
    if (log_z == -INFINITY) return 0;
    for (int64_t t = T - 1; t >= 0; t--) {
        double *gamma = h->gamma + t * S, top = -INFINITY, sum = 0;
        for (int64_t s = 0; s < S; s++) {
            double *move = h->moves + (t * S + s) * 3, rest = s >= S - 2 ? 0 : -INFINITY;
            const double *next = h->beta + (t < T - 1 ? t + 1 : t) * S;
            move[0] = move[1] = move[2] = -INFINITY;
            if (t < T - 1) {
                if (ctcbind_stays(g, s)) move[0] = next[s];
                if (s + 1 < S) move[1] = next[s + 1];
                if (s + 2 < S && ctcbind_skips(g, s + 2)) move[2] = next[s + 2];
                rest = ctcbind_add_logs(ctcbind_add_logs(move[0], move[1]), move[2]);
            }
            for (int k = 0; k < 3; k++) move[k] = rest == -INFINITY ? 0 : exp(move[k] - rest);
            h->beta[t * S + s] = rest + h->scores[t * C + ctcbind_class_of(g, s)];
            gamma[s] = h->alpha[t * S + s] + rest;
            if (gamma[s] > top) top = gamma[s];
        }
        for (int64_t s = 0; s < S; s++) sum += gamma[s] = top == -INFINITY ? 0 : exp(gamma[s] - top);
        for (int64_t s = 0; s < S; s++) {
            if (sum > 0) gamma[s] /= sum;
            h->counts[t * C + ctcbind_class_of(g, s)] += gamma[s];
        }
    }
    return 1;
}

/* What is drawn from one softmax at t, and the classes that paths are in at t. */
static void same_frame(const chain *h, int64_t t)
{
    const double *y = h->scores + t * h->C, *p = h->counts + t * h->C;
    for (int64_t c = 0; c < h->C; c++) {
        double *to = block(h, t, c, t);
        for (int64_t d = 0; d < h->C; d++) to[d] = p[c] * p[d] - y[c] * y[d];
        to[c] += y[c] - p[c];
    }
}

/* Of the paths in class c at t, where they are at each later frame. */
static void later_frames(const chain *h, int64_t t, int32_t c)
{
    int64_t S = h->S, low = S, high = -1;
    double *now = h->flow, *then = h->flow + S;
    for (int64_t s = 0; s < S; s++) {
        now[s] = ctcbind_class_of(h->g, s) == c ? h->gamma[t * S + s] : 0;
        if (now[s] == 0) continue;
        if (s < low) low = s;
        high = s;
    }
    if (high < 0) return;
    for (int64_t u = t + 1; u < h->T; u++) {
        const double *moves = h->moves + (u - 1) * S * 3, *p = h->counts + u * h->C;
        int64_t reach = high + 2 < S ? high + 2 : S - 1;
        for (int64_t s = low; s <= reach; s++) then[s] = 0;
        for (int64_t s = low; s <= high; s++)
            for (int k = 0; k < 3 && s + k < S; k++) then[s + k] += now[s] * moves[s * 3 + k];
        high = reach;
        double *swap = now;
        now = then;
        then = swap;
        for (int32_t i = 0; i < h->kinds; i++) h->pair[h->seen[i]] = 0;
        for (int64_t s = low; s <= high; s++) h->pair[ctcbind_class_of(h->g, s)] += now[s];
        for (int32_t i = 0; i < h->kinds; i++) {
            int32_t d = h->seen[i];
            double covariance = h->pair[d] - h->counts[t * h->C + c] * p[d];
            block(h, t, c, u)[d] = -covariance;
            block(h, u, d, t)[c] = -covariance;
        }
    }
}

static void note_classes(chain *h)
{
    h->kinds = 0;
    for (int64_t c = 0; c < h->C; c++) h->pair[c] = 0;
    for (int64_t s = 0; s < h->S; s++) {
        int32_t c = ctcbind_class_of(h->g, s);
        if (h->pair[c] == 0) h->seen[h->kinds++] = c;
        h->pair[c] = 1;
    }
}

int ctcbind_hessian(const ctcbind_graph *g, double *out, int64_t T_out)
{
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    if (!has_path(g)) return CTCBIND_ROWS_OK;
    double *scratch = calloc((size_t)(2 * T * C + 6 * T * S + 2 * S + C), sizeof *scratch);
    int32_t *seen = malloc((size_t)C * sizeof *seen);
    int status = CTCBIND_ROWS_NO_MEMORY;
    if (scratch && seen) {
        chain h = {.g = g, .T = T, .C = C, .S = S, .T_out = T_out, .scores = scratch, .seen = seen, .out = out};
        h.counts = h.scores + T * C;
        h.alpha = h.counts + T * C;
        h.beta = h.alpha + T * S;
        h.gamma = h.beta + T * S;
        h.moves = h.gamma + T * S;
        h.flow = h.moves + 3 * T * S;
        h.pair = h.flow + 2 * S;
        status = all_rows(&g->rows, h.scores) ? CTCBIND_ROWS_OK : CTCBIND_ROWS_NAN;
        if (status == CTCBIND_ROWS_OK && make_chain(&h)) {
            for (int64_t i = 0; i < T * C; i++) h.scores[i] = exp(h.scores[i]);
            note_classes(&h);
            for (int64_t t = 0; t < T; t++) {
                same_frame(&h, t);
                for (int32_t i = 0; i < h.kinds; i++) later_frames(&h, t, h.seen[i]);
            }
        }
    }
    free(scratch);
    free(seen);
    return status;
}
