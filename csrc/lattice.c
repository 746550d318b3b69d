#include "lattice.h"

#include "ctcbind.h"
#include "log_space.h"
#include "trellis.h"

typedef struct lattice {
    ctcbind_trellis v;
    double *emit;    /* n labels, n blanks */
    double *rest;    /* the same */
    double *shares;  /* the same */
    double *shared;  /* K: the share of each class */
    double *next[2]; /* beta of a frame: n + 1 labels, n + 1 blanks, the last of each -inf */
    double *alpha;   /* T rows of -inf, n labels, n blanks */
} lattice;

/* --- the recursions -------------------------------------------------------------------------------------------- */

/* labels[-1] is read. */
CTCBIND_CLONES static void advance(const double *restrict labels, const double *restrict blanks,
                                   const double *restrict skip, const double *restrict emit, double stay, int64_t n,
                                   double *restrict to)
{
    for (int64_t i = 0; i < n; i++) {
        double before = labels[i - 1], from = blanks[i];
        to[i] = ctcbind_add_three(labels[i] + stay, from, before + skip[i]) + emit[i];
        to[n + i] = ctcbind_add_two(from, before) + emit[n + i];
    }
}

/* What can follow each state: labels[n], blanks[n] and skip[n] are read. */
CTCBIND_CLONES static void retreat(const double *restrict labels, const double *restrict blanks,
                                   const double *restrict skip, double stay, int64_t n, double *restrict rest)
{
    for (int64_t i = 0; i < n; i++) {
        double same = labels[i];
        rest[i] = ctcbind_add_three(same + stay, blanks[i + 1], labels[i + 1] + skip[i + 1]);
        rest[n + i] = ctcbind_add_two(blanks[i], same);
    }
}

/* beta, and ln of the paths through each state in place of rest. */
CTCBIND_CLONES static void meet(const double *restrict alpha, const double *restrict emit, int64_t n,
                                double *restrict rest, double *restrict labels, double *restrict blanks)
{
    for (int64_t i = 0; i < n; i++) labels[i] = rest[i] + emit[i];
    for (int64_t i = 0; i < n; i++) blanks[i] = rest[n + i] + emit[n + i];
    for (int64_t i = 0; i < 2 * n; i++) rest[i] += alpha[i];
}

CTCBIND_CLONES static void weigh(const double *restrict rest, double top, int64_t count, double *restrict shares)
{
    for (int64_t i = 0; i < count; i++) shares[i] = ctcbind_exp(rest[i] - top);
}

CTCBIND_CLONES static void scale(double *values, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++) values[i] *= factor;
}

CTCBIND_CLONES static void shift(double *values, int64_t count, double top, double log_sum)
{
    for (int64_t i = 0; i < count; i++) values[i] = values[i] - top - log_sum;
}

/* --- results --------------------------------------------------------------------------------------------------- */

#define STORE(type) \
    do { \
        type *row = (type *)array + t * to->S_out; \
        for (int64_t i = 0; i < L; i++) { \
            row[2 * i] = (type)values[n + i]; \
            row[2 * i + 1] = (type)values[i]; \
        } \
        row[2 * L] = (type)values[n + L]; \
    } while (0)

/* States of one frame, in their order. */
static void store(const ctcbind_trellis *v, const ctcbind_lattice *to, void *array, int64_t t, const double *values)
{
    int64_t L = v->L, n = v->n;
    if (!array) return;
    if (to->dtype == CTCBIND_ROWS_FLOAT32) STORE(float);
    else STORE(double);
}

/* One value for the states from..end - 1 of one frame. */
static void fill(const ctcbind_lattice *to, void *array, int64_t t, int64_t from, int64_t end, double value)
{
    if (!array) return;
    for (int64_t i = t * to->S_out + from; i < t * to->S_out + end; i++) {
        if (to->dtype == CTCBIND_ROWS_FLOAT32) ((float *)array)[i] = (float)value;
        else ((double *)array)[i] = value;
    }
}

static void fill_all(const ctcbind_lattice *to, int64_t t, int64_t from, int64_t end, double sums, double shares)
{
    fill(to, to->log_alpha, t, from, end, sums);
    fill(to, to->log_beta, t, from, end, sums);
    fill(to, to->log_gamma, t, from, end, log(shares));
    fill(to, to->gamma, t, from, end, shares);
}

/* What the share of paths in each of the classes that states have makes of counts and gradient. */
static void use_shares(const ctcbind_trellis *v, ctcbind_lattice *to, int64_t t, const double *of_classes)
{
    for (int64_t k = 0; k < v->K && to->counts; k++) to->counts[v->classes[k]] -= of_classes[k];
    if (to->grad.data) ctcbind_trellis_write(v, t, of_classes, &to->grad);
}

/* --- one sample, in log space ---------------------------------------------------------------------------------- */

static void emissions(const lattice *own, int64_t t)
{
    const ctcbind_trellis *v = &own->v;
    const ctcbind_graph *g = v->g;
    ctcbind_trellis_spread(v, v->scores, t, -INFINITY, own->emit);
    if (!g->bonus) return;
    const double *bonus = g->bonus + t * g->bonus_t;
    for (int64_t i = 0; i < v->L; i++) own->emit[i] += bonus[(2 * i + 1) * g->bonus_s];
    for (int64_t i = 0; i <= v->L; i++) own->emit[v->n + i] += bonus[2 * i * g->bonus_s];
}

static double forward(lattice *own)
{
    const ctcbind_trellis *v = &own->v;
    int64_t n = v->n, width = 2 * n + 1;
    for (int64_t t = 0; t < v->T; t++) {
        if (ctcbind_sample_stopped(2 * n)) return -INFINITY;
        double *now = own->alpha + t * width + 1, *before = now - width;
        now[-1] = -INFINITY;
        emissions(own, t);
        if (t) advance(before, before + n, v->skip, own->emit, v->stay, n, now);
        else {
            for (int64_t i = 0; i < 2 * n; i++) now[i] = -INFINITY;
            now[n] = own->emit[n];
            if (v->L) now[0] = own->emit[0];
        }
    }
    const double *last = own->alpha + (v->T - 1) * width + 1;
    return v->L ? ctcbind_add_two(last[n + v->L], last[v->L - 1]) : last[n];
}

/* Each frame is measured by its own sum, not by ln Z: large scores round, and not alike in all frames. */
static void weigh_frame(lattice *own, ctcbind_lattice *to, int64_t t, double top)
{
    const ctcbind_trellis *v = &own->v;
    int64_t n = v->n;
    weigh(own->rest, top, 2 * n, own->shares);
    double sum = ctcbind_sum(own->shares, 2 * n);
    if (to->log_gamma) {
        shift(own->rest, 2 * n, top, log(sum));
        store(v, to, to->log_gamma, t, own->rest);
    }
    scale(own->shares, 2 * n, 1 / sum);
    store(v, to, to->gamma, t, own->shares);
    if (!to->counts && !to->grad.data) return;
    ctcbind_trellis_gather(v, own->shares, own->shared);
    use_shares(v, to, t, own->shared);
}

static void backward(lattice *own, ctcbind_lattice *to)
{
    const ctcbind_trellis *v = &own->v;
    int64_t n = v->n, nans;
    for (int64_t i = 0; i < 2 * n; i++) own->rest[i] = -INFINITY;
    own->rest[n + v->L] = 0;
    if (v->L) own->rest[v->L - 1] = 0;
    for (int64_t t = v->T - 1; t >= 0 && !ctcbind_sample_stopped(2 * n); t--) {
        const double *alpha = own->alpha + t * (2 * n + 1) + 1;
        if (t < v->T - 1) retreat(own->next[0], own->next[1], v->skip, v->stay, n, own->rest);
        emissions(own, t);
        meet(alpha, own->emit, n, own->rest, own->next[0], own->next[1]);
        double top = ctcbind_largest(own->rest, 2 * n, &nans);
        store(v, to, to->log_alpha, t, alpha);
        if (to->log_beta) {
            memcpy(own->shares, own->next[0], (size_t)n * sizeof(double));
            memcpy(own->shares + n, own->next[1], (size_t)n * sizeof(double));
            store(v, to, to->log_beta, t, own->shares);
        }
        if (top > -INFINITY && to->log_z > -INFINITY) weigh_frame(own, to, t, top);
        else {
            fill(to, to->log_gamma, t, 0, 2 * v->L + 1, -INFINITY);
            fill(to, to->gamma, t, 0, 2 * v->L + 1, 0);
            ctcbind_fill_rows(&to->grad, t, t + 1, 0);
        }
    }
}

static int run_of_states(const ctcbind_graph *g, ctcbind_lattice *to)
{
    lattice own;
    int64_t T = g->rows.T, n = (int64_t)g->L + 1;
    int status = ctcbind_trellis_open(&own.v, g, 7 * n + 2 * (n + 1) + T * (2 * n + 1));
    if (status == CTCBIND_ROWS_OK) {
        own.emit = own.v.room;
        own.rest = own.emit + 2 * n;
        own.shares = own.rest + 2 * n;
        own.shared = own.shares + 2 * n;
        own.next[0] = own.shared + n;
        own.next[1] = own.next[0] + n + 1;
        own.alpha = own.next[1] + n + 1;
        own.next[0][n] = own.next[1][n] = -INFINITY;
        to->log_z = forward(&own);
        backward(&own, to);
    }
    ctcbind_trellis_close(&own.v);
    return status;
}

/* --- one sample, by the loss itself ---------------------------------------------------------------------------- */

/* Without bonuses the states of a class score alike. */
static int is_of_classes(const ctcbind_graph *g, const ctcbind_lattice *to)
{
    int of_states = to->log_alpha || to->log_beta || to->log_gamma || to->gamma;
    return !g->bonus && !of_states;
}

/* The loss of the states' classes, with their scores for logits; d loss / d scores where `grad` is not NULL. */
static int loss_of_classes(const ctcbind_trellis *v, int32_t threads, double *grad, double *loss)
{
    int32_t T = (int32_t)v->T, L = v->g->L, K = (int32_t)v->K;
    ctcbind_problem problem = {
        .logits = v->scores, .logits_t = K, .logits_n = K, .logits_c = 1, /* */
        .grad = grad,        .grad_t = K,   .grad_n = K,   .grad_c = 1,   /* */
        .losses = loss,      .labels = v->place,           .label_lengths = &L, .input_lengths = &T,
        .T = T, .N = 1, .C = K, .blank = v->place[L], .threads = threads, .dtype = CTCBIND_FLOAT64,
        .topology = v->g->topology == CTCBIND_GRAPH_SIMPLE ? CTCBIND_TOPOLOGY_SIMPLE : CTCBIND_TOPOLOGY_CTC,
        .stop = ctcbind_sample_interrupted,
    };
    int status = ctcbind_loss(&problem, NULL, 0);
    return status == CTCBIND_OK        ? CTCBIND_ROWS_OK
           : status == CTCBIND_STOPPED ? CTCBIND_ROWS_STOPPED
                                       : CTCBIND_ROWS_NO_MEMORY;
}

/* The softmax that the loss takes of a frame's scores, and ln of their sum, which it takes off. */
static double softmax(const double *scores, int32_t K, double *to)
{
    int64_t nans;
    double top = ctcbind_largest(scores, K, &nans), sum;
    memcpy(to, scores, (size_t)K * sizeof *to);
    shift(to, K, top, 0);
    ctcbind_exps(to, K, to);
    sum = ctcbind_sum(to, K);
    scale(to, K, 1 / sum);
    return top + log(sum);
}

static int run_of_classes(const ctcbind_graph *g, ctcbind_lattice *to, int32_t threads)
{
    ctcbind_trellis v;
    int64_t T = g->rows.T, C = g->rows.C, n = (int64_t)g->L + 1, most = n < C ? n : C;
    int wanted = to->grad.data || to->counts;
    int status = ctcbind_trellis_open(&v, g, (wanted ? T * most : 0) + most);
    double *shares = v.room, *grad = shares + most, taken_off = 0, loss = INFINITY;
    if (status == CTCBIND_ROWS_OK) status = loss_of_classes(&v, threads, wanted ? grad : NULL, &loss);
    if (status == CTCBIND_ROWS_OK && loss == INFINITY) ctcbind_fill_rows(&to->grad, 0, T, 0);
    for (int64_t t = 0; t < T && status == CTCBIND_ROWS_OK && loss < INFINITY && !ctcbind_sample_stopped(C); t++) {
        taken_off += softmax(v.scores + t * v.K, (int32_t)v.K, shares);
        if (!wanted) continue;
        for (int64_t k = 0; k < v.K; k++) {
            double share = shares[k] - grad[t * v.K + k];
            shares[k] = share > 0 ? share : 0;
        }
        use_shares(&v, to, t, shares);
    }
    to->log_z = taken_off - loss;
    ctcbind_trellis_close(&v);
    return status;
}

/* --- a batch --------------------------------------------------------------------------------------------------- */

/* Where a frame holds a NaN; without a path the loss has none, whatever the logits. */
static void spoil(const ctcbind_graph *g, ctcbind_lattice *to)
{
    double shares = g->rows.T < ctcbind_required(g) ? 0 : (double)NAN;
    to->log_z = log(shares);
    for (int64_t t = 0; t < g->rows.T; t++) fill_all(to, t, 0, 2 * (int64_t)g->L + 1, NAN, shares);
    ctcbind_fill_rows(&to->grad, 0, g->rows.T, shares);
    for (int32_t c = 0; c < g->rows.C && to->counts; c++) to->counts[c] = shares;
}

typedef struct batch {
    const ctcbind_graph *graphs;
    ctcbind_lattice *to;
    int32_t threads; /* that one sample may use */
} batch;

static void run_one(void *arg, int32_t which)
{
    const batch *b = arg;
    const ctcbind_graph *g = b->graphs + which;
    ctcbind_lattice *to = b->to + which;
    int64_t T = g->rows.T, S = 2 * (int64_t)g->L + 1;
    for (int64_t t = 0; t < to->T_out; t++) fill_all(to, t, t < T ? S : 0, to->S_out, -INFINITY, 0);
    ctcbind_fill_rows(&to->grad, T, to->grad.T, 0);
    for (int32_t c = 0; c < g->rows.C && to->counts; c++) to->counts[c] = 0;
    to->log_z = g->L ? -INFINITY : 0;
    to->status = !T                     ? CTCBIND_ROWS_OK
                 : is_of_classes(g, to) ? run_of_classes(g, to, b->threads)
                                        : run_of_states(g, to);
    if (to->status == CTCBIND_ROWS_NAN) spoil(g, to);
    for (int32_t c = 0; c < g->rows.C && to->counts; c++) to->counts[c] = 0 - to->counts[c]; /* what was subtracted */
}

int ctcbind_lattices(const ctcbind_graph *graphs, ctcbind_lattice *lattices, int32_t N, int32_t threads,
                     ctcbind_ask stop)
{
    batch b = {graphs, lattices, N == 1 ? threads : 1};
    return ctcbind_each_sample(N, threads, stop, run_one, &b);
}
