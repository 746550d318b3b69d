/* The loss of a sample is the sum over t of logsumexp(x_t), less ln of the sum over paths of e^(their logits). Its
 * Hessian is that of the first term, the covariance of the classes drawn from each softmax, less that of the second:
 * the covariance of the indicators "the path is in class c at t". */
#include "second_order.h"

#include <stdlib.h>

#include "log_space.h"
#include "size.h"
#include "trellis.h"

static int has_path(const ctcbind_graph *g) { return g->rows.T >= ctcbind_required(g) && g->rows.T > 0; }

/* --- along a direction ----------------------------------------------------------------------------------------- */

/* n labels and n blanks, as logarithms, and their derivatives along the direction. */
typedef struct duals {
    double *value, *slope;
} duals;

typedef struct work {
    ctcbind_trellis v;
    double *means;      /* T: of the direction under the softmax */
    double *slopes;     /* T * K: d ln softmax along the direction */
    duals emit, rest;
    duals next[2];      /* n + 1 labels, n + 1 blanks, the last of each -inf */
    duals alpha;        /* T rows of -inf, n labels, n blanks */
} work;

/* ln(e^a + e^b + e^c): the slope is the mean of theirs, weighted by their shares. */
static inline void add_duals(double a, double a_slope, double b, double b_slope, double c, double c_slope,
                             double *value, double *slope)
{
    double high = a > b ? a : b, less = a > b ? b : a;
    double high_slope = a > b ? a_slope : b_slope, less_slope = a > b ? b_slope : a_slope;
    double top = high > c ? high : c, middle = high > c ? c : high, from = ctcbind_from(top);
    double top_slope = high > c ? high_slope : c_slope, middle_slope = high > c ? c_slope : high_slope;
    double less_share = ctcbind_exp(less - from), middle_share = ctcbind_exp(middle - from);
    double rest = less_share + middle_share;
    double sum = top_slope + (less_share * less_slope + middle_share * middle_slope);
    *value = top + ctcbind_log1p(rest);
    *slope = top < -DBL_MAX ? 0 : sum / (1 + rest);
}

/* labels[-1] is read, of values and of slopes. */
CTCBIND_CLONES static void advance(const double *restrict labels, const double *restrict blanks,
                                   const double *restrict label_slopes, const double *restrict blank_slopes,
                                   const double *restrict skip, double stay, int64_t n, double *restrict value,
                                   double *restrict slope)
{
    for (int64_t i = 0; i < n; i++) {
        double before = labels[i - 1], before_slope = label_slopes[i - 1], from = blanks[i], from_slope = blank_slopes[i];
        add_duals(labels[i] + stay, label_slopes[i], from, from_slope, before + skip[i], before_slope, &value[i],
                  &slope[i]);
        add_duals(from, from_slope, before, before_slope, -INFINITY, 0, &value[n + i], &slope[n + i]);
    }
}

/* labels[n], blanks[n] and skip[n] are read. */
CTCBIND_CLONES static void retreat(const double *restrict labels, const double *restrict blanks,
                                   const double *restrict label_slopes, const double *restrict blank_slopes,
                                   const double *restrict skip, double stay, int64_t n, double *restrict value,
                                   double *restrict slope)
{
    for (int64_t i = 0; i < n; i++) {
        double same = labels[i], same_slope = label_slopes[i];
        add_duals(same + stay, same_slope, blanks[i + 1], blank_slopes[i + 1], labels[i + 1] + skip[i + 1],
                  label_slopes[i + 1], &value[i], &slope[i]);
        add_duals(blanks[i], blank_slopes[i], same, same_slope, -INFINITY, 0, &value[n + i], &slope[n + i]);
    }
}

CTCBIND_CLONES static void add(double *restrict to, const double *restrict more, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] += more[i];
}

CTCBIND_CLONES static void weigh(double *restrict value, const double *restrict slope, double top, int64_t count,
                                 double *restrict slopes)
{
    for (int64_t i = 0; i < count; i++) {
        value[i] = ctcbind_exp(value[i] - top);
        slopes[i] = value[i] * slope[i];
    }
}

CTCBIND_CLONES static void turn(double *restrict value, const double *restrict slope, double sum, double mean,
                                int64_t count)
{
    for (int64_t i = 0; i < count; i++) value[i] = value[i] / sum * (slope[i] - mean);
}

/* What is to be taken from each state's class, in place of `value`: the derivative of its share. Each frame is
 * measured by its own sum, not by Z: large scores round, and not alike in all frames. */
static void differentiate(double *value, const double *slope, double top, int64_t count, double *room)
{
    weigh(value, slope, top, count, room);
    double sum = ctcbind_sum(value, count);
    turn(value, slope, sum, ctcbind_sum(room, count) / sum, count);
}

/* The mean of the direction under each softmax, and what is left of it for the classes of states. */
static void centre(work *p, const ctcbind_rows *along, double *direction)
{
    const ctcbind_trellis *v = &p->v;
    int32_t C = along->C;
    for (int64_t t = 0; t < v->T && !ctcbind_sample_stopped(C); t++) {
        double mean = 0;
        ctcbind_read_row(&v->g->rows, (int32_t)t, v->row);
        ctcbind_take_off(v->row, C, v->norms[t]);
        ctcbind_exps(v->row, C, v->row);
        ctcbind_read_row(along, (int32_t)t, direction);
        for (int32_t c = 0; c < C; c++) mean += v->row[c] * direction[c];
        for (int64_t k = 0; k < v->K; k++) p->slopes[t * v->K + k] = direction[v->classes[k]] - mean;
        p->means[t] = mean;
    }
}

static void emissions(work *p, int64_t t)
{
    ctcbind_trellis_spread(&p->v, p->v.scores, t, -INFINITY, p->emit.value);
    ctcbind_trellis_spread(&p->v, p->slopes, t, 0, p->emit.slope);
}

/* Whether there is a path. */
static int forward(work *p)
{
    const ctcbind_trellis *v = &p->v;
    int64_t n = v->n, width = 2 * n + 1;
    for (int64_t t = 0; t < v->T; t++) {
        if (ctcbind_sample_stopped(2 * n)) return 0;
        double *value = p->alpha.value + t * width + 1, *slope = p->alpha.slope + t * width + 1;
        const double *values = value - width, *slopes = slope - width;
        value[-1] = -INFINITY;
        slope[-1] = 0;
        emissions(p, t);
        if (t) advance(values, values + n, slopes, slopes + n, v->skip, v->stay, n, value, slope);
        else {
            for (int64_t i = 0; i < 2 * n; i++) value[i] = -INFINITY, slope[i] = 0;
            value[n] = 0;
            if (v->L) value[0] = 0;
        }
        add(value, p->emit.value, 2 * n);
        add(slope, p->emit.slope, 2 * n);
    }
    const double *last = p->alpha.value + (v->T - 1) * width + 1;
    return last[n + v->L] > -INFINITY || (v->L && last[v->L - 1] > -INFINITY);
}

static void backward(work *p, const ctcbind_rows *along, double *direction, const ctcbind_rows_out *out)
{
    const ctcbind_trellis *v = &p->v;
    int64_t n = v->n, nans;
    int32_t C = along->C;
    for (int64_t i = 0; i < 2 * n; i++) p->rest.value[i] = -INFINITY, p->rest.slope[i] = 0;
    p->rest.value[n + v->L] = 0;
    if (v->L) p->rest.value[v->L - 1] = 0;
    for (int64_t t = v->T - 1; t >= 0 && !ctcbind_sample_stopped(2 * n + C); t--) {
        if (t < v->T - 1)
            retreat(p->next[0].value, p->next[1].value, p->next[0].slope, p->next[1].slope, v->skip, v->stay, n,
                    p->rest.value, p->rest.slope);
        emissions(p, t);
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < n; i++) {
                p->next[k].value[i] = p->rest.value[k * n + i] + p->emit.value[k * n + i];
                p->next[k].slope[i] = p->rest.slope[k * n + i] + p->emit.slope[k * n + i];
            }
        add(p->rest.value, p->alpha.value + t * (2 * n + 1) + 1, 2 * n);
        add(p->rest.slope, p->alpha.slope + t * (2 * n + 1) + 1, 2 * n);
        double top = ctcbind_largest(p->rest.value, 2 * n, &nans);
        ctcbind_read_row(&v->g->rows, (int32_t)t, v->row);
        ctcbind_take_off(v->row, C, v->norms[t]);
        ctcbind_exps(v->row, C, v->row);
        ctcbind_read_row(along, (int32_t)t, direction);
        for (int32_t c = 0; c < C; c++) v->row[c] = v->row[c] * (direction[c] - p->means[t]) + 0; /* never -0 */
        if (top > -INFINITY) {
            differentiate(p->rest.value, p->rest.slope, top, 2 * n, p->emit.value);
            ctcbind_trellis_subtract(v, p->rest.value, v->row);
        }
        ctcbind_write_row(out, t, v->row);
    }
}

static duals take_duals(double **left, int64_t count)
{
    duals taken = {*left, *left + count};
    *left += 2 * count;
    return taken;
}

static int multiply(const ctcbind_graph *g, const ctcbind_rows *along, const ctcbind_rows_out *out)
{
    work p;
    int64_t T = g->rows.T, n = (int64_t)g->L + 1, C = g->rows.C, K = n < C ? n : C;
    int status = ctcbind_trellis_open(&p.v, g, C + T + T * K + 2 * (4 * n + 2 * (n + 1) + T * (2 * n + 1)));
    if (status == CTCBIND_ROWS_OK) {
        double *left = p.v.room, *direction = left;
        p.means = direction + C;
        p.slopes = p.means + T;
        left = p.slopes + T * K;
        p.emit = take_duals(&left, 2 * n);
        p.rest = take_duals(&left, 2 * n);
        for (int k = 0; k < 2; k++) {
            p.next[k] = take_duals(&left, n + 1);
            p.next[k].value[n] = -INFINITY;
            p.next[k].slope[n] = 0;
        }
        p.alpha = take_duals(&left, T * (2 * n + 1));
        centre(&p, along, direction);
        if (forward(&p)) backward(&p, along, direction, out);
        else ctcbind_fill_rows(out, 0, T, 0);
    } else if (status == CTCBIND_ROWS_NAN) ctcbind_fill_rows(out, 0, T, NAN);
    ctcbind_trellis_close(&p.v);
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
    int path = has_path(g);
    ctcbind_fill_rows(&to->out, path ? g->rows.T : 0, to->out.T, 0);
    to->status = path ? multiply(g, &to->along, &to->out) : CTCBIND_ROWS_OK;
}

int ctcbind_products(const ctcbind_graph *graphs, ctcbind_product *all, int32_t N, int32_t threads, ctcbind_ask stop)
{
    products b = {graphs, all};
    return ctcbind_each_sample(N, threads, stop, multiply_one, &b);
}

/* --- all of it ------------------------------------------------------------------------------------------------- */

typedef struct chain {
    const ctcbind_graph *g;
    int64_t T, C, S;
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
    const ctcbind_hessian *out;
} chain;

static void put(const chain *h, int64_t t, int64_t c, int64_t u, int64_t d, double value)
{
    int64_t at = ((t * h->C + c) * h->out->T_out + u) * h->C + d;
    if (h->out->dtype == CTCBIND_ROWS_FLOAT32) ((float *)h->out->data)[at] = (float)value;
    else ((double *)h->out->data)[at] = value;
}

/* The lattice as a Markov chain of its posterior: no logarithms from here on. 0 where there is no path. */
static int make_chain(chain *h)
{
    const ctcbind_graph *g = h->g;
    int64_t T = h->T, C = h->C, S = h->S;
    for (int64_t t = 0; t < T; t++) {
        if (ctcbind_sample_stopped(S)) return 0;
        for (int64_t s = 0; s < S; s++) {
            const double *before = h->alpha + (t ? t - 1 : 0) * S;
            double into = s < 2 ? 0 : -INFINITY;
            if (t) {
                into = ctcbind_stays(g, s) ? before[s] : -INFINITY;
                if (s) into = ctcbind_add_two(into, before[s - 1]);
                if (ctcbind_skips(g, s)) into = ctcbind_add_two(into, before[s - 2]);
            }
            h->alpha[t * S + s] = into + h->scores[t * C + ctcbind_class_of(g, s)];
        }
    }
    const double *last = h->alpha + (T - 1) * S;
    double log_z = g->L ? ctcbind_add_two(last[S - 1], last[S - 2]) : last[0];
    if (log_z == -INFINITY) return 0;
    for (int64_t t = T - 1; t >= 0; t--) {
        if (ctcbind_sample_stopped(8 * S)) return 0;
        double *gamma = h->gamma + t * S, top = -INFINITY, sum = 0;
        for (int64_t s = 0; s < S; s++) {
            double *move = h->moves + (t * S + s) * 3, rest = s >= S - 2 ? 0 : -INFINITY;
            const double *next = h->beta + (t < T - 1 ? t + 1 : t) * S;
            move[0] = move[1] = move[2] = -INFINITY;
            if (t < T - 1) {
                if (ctcbind_stays(g, s)) move[0] = next[s];
                if (s + 1 < S) move[1] = next[s + 1];
                if (s + 2 < S && ctcbind_skips(g, s + 2)) move[2] = next[s + 2];
                rest = ctcbind_add_three(move[0], move[1], move[2]);
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
    for (int64_t c = 0; c < h->C; c++)
        for (int64_t d = 0; d < h->C; d++)
            put(h, t, c, t, d, p[c] * p[d] - y[c] * y[d] + (c == d ? y[c] - p[c] : 0));
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
        if (u % 16 == 0 && ctcbind_sample_stopped(16 * (reach - low))) return;
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
            put(h, t, c, u, d, 0 - covariance); /* never -0 */
            put(h, u, d, t, c, 0 - covariance);
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

static int all_rows(const ctcbind_rows *rows, double *scores)
{
    ctcbind_norm norm;
    for (int64_t t = 0; t < rows->T; t++) {
        if (ctcbind_sample_stopped(rows->C)) return CTCBIND_ROWS_STOPPED;
        if (!ctcbind_log_softmax(rows, (int32_t)t, scores + t * rows->C, &norm)) return CTCBIND_ROWS_NAN;
    }
    return CTCBIND_ROWS_OK;
}

static int64_t scratch_doubles(int64_t T, int64_t C, int64_t S) { return 2 * T * C + 6 * T * S + 2 * S + C; }

int64_t ctcbind_hessian_bytes(int64_t T, int64_t L, int64_t C)
{
    if (T < L || T <= 0) return 0;
    return scratch_doubles(T, C, 2 * L + 1) * (int64_t)sizeof(double) + C * (int64_t)sizeof(int32_t);
}

static int fill_hessian(const ctcbind_graph *g, const ctcbind_hessian *out)
{
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    if (!has_path(g)) return CTCBIND_ROWS_OK;
    double *scratch = calloc(ctcbind_size((uint64_t)scratch_doubles(T, C, S)), sizeof *scratch);
    int32_t *seen = malloc((size_t)C * sizeof *seen);
    int status = CTCBIND_ROWS_NO_MEMORY;
    if (scratch && seen) {
        chain h = {.g = g, .T = T, .C = C, .S = S, .scores = scratch, .seen = seen, .out = out};
        h.counts = h.scores + T * C;
        h.alpha = h.counts + T * C;
        h.beta = h.alpha + T * S;
        h.gamma = h.beta + T * S;
        h.moves = h.gamma + T * S;
        h.flow = h.moves + 3 * T * S;
        h.pair = h.flow + 2 * S;
        status = all_rows(&g->rows, h.scores);
        if (status == CTCBIND_ROWS_OK && make_chain(&h)) {
            for (int64_t t = 0; t < T; t++) ctcbind_exps(h.scores + t * C, (int32_t)C, h.scores + t * C);
            note_classes(&h);
            for (int64_t t = 0; t < T && !ctcbind_sample_stopped(C * C); t++) {
                same_frame(&h, t);
                for (int32_t i = 0; i < h.kinds; i++) later_frames(&h, t, h.seen[i]);
            }
        }
        for (int64_t t = 0; t < T && status == CTCBIND_ROWS_NAN; t++)
            for (int64_t c = 0; c < C; c++)
                for (int64_t u = 0; u < T; u++)
                    for (int64_t d = 0; d < C; d++) put(&h, t, c, u, d, NAN);
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
