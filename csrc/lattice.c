#include "lattice.h"

#include "ctcbind.h"
#include "powers.h"
#include "trellis.h"

typedef struct lattice {
    ctcbind_trellis v;
    ctcbind_powers classes; /* K */
    ctcbind_powers emit;    /* n labels, n blanks */
    ctcbind_powers rest;    /* the same: what can follow each state */
    ctcbind_powers through; /* the same: the paths through it */
    ctcbind_powers next;    /* beta of a frame, its emission in it: n + 1 labels, n + 1 blanks, the last of each 0 */
    ctcbind_powers alpha;   /* T rows of 0, n labels, n blanks */
    double *shares;         /* n labels, n blanks */
    double *shared;         /* K: the share of each class */
} lattice;

/* --- the recursions -------------------------------------------------------------------------------------------- */

/* Mantissas and exponents are passed alone: so compilers believe that they do not overlap, and make vectors of them. */

CTCBIND_CLONES static void split_off(const double *restrict scores, int64_t count, double *restrict rest,
                                     double *restrict exponent)
{
    for (int64_t i = 0; i < count; i++) exponent[i] = ctcbind_split_off(scores[i], rest + i);
}

static void split(const double *scores, int64_t count, double *mantissa, double *exponent)
{
    split_off(scores, count, mantissa, exponent);
    ctcbind_exps(mantissa, (int32_t)count, mantissa);
}

static void add_strided(const double *from, int64_t step, int64_t count, double *restrict to)
{
    if (step == 2)
        for (int64_t i = 0; i < count; i++) to[i] += from[2 * i];
    else
        for (int64_t i = 0; i < count; i++) to[i] += from[i * step];
}

/* n labels, n blanks; label -1 is read. */
CTCBIND_CLONES static void advance(const double *restrict labels, const double *restrict of_labels,
                                   const double *restrict skip, const double *restrict e, const double *restrict of_e,
                                   double stay, int64_t n, double *restrict to, double *restrict of)
{
    const double *blanks = labels + n, *of_blanks = of_labels + n;
    for (int64_t i = 0; i < n; i++) {
        double own = of_labels[i] + stay, blank = of_blanks[i], last = of_labels[i - 1] + skip[i];
        double high = own > blank ? own : blank, top = high > last ? high : last, from = ctcbind_from(top);
        double sum = labels[i] * ctcbind_power(own - from) + blanks[i] * ctcbind_power(blank - from) +
                     labels[i - 1] * ctcbind_power(last - from);
        of[i] = top + of_e[i] + ctcbind_normalise(sum * e[i], to + i);
    }
    to += n, of += n, e += n, of_e += n;
    for (int64_t i = 0; i < n; i++) {
        double blank = of_blanks[i], last = of_labels[i - 1], top = blank > last ? blank : last;
        double from = ctcbind_from(top);
        double sum = blanks[i] * ctcbind_power(blank - from) + labels[i - 1] * ctcbind_power(last - from);
        of[i] = top + of_e[i] + ctcbind_normalise(sum * e[i], to + i);
    }
}

/* What can follow each state: n labels, n blanks. Of labels and blanks n + 1 are read, one array after the other. */
CTCBIND_CLONES static void retreat(const double *restrict labels, const double *restrict of_labels,
                                   const double *restrict skip, double stay, int64_t n, double *restrict to,
                                   double *restrict of)
{
    const double *blanks = labels + n + 1, *of_blanks = of_labels + n + 1;
    for (int64_t i = 0; i < n; i++) {
        double own = of_labels[i] + stay, blank = of_blanks[i + 1], next = of_labels[i + 1] + skip[i + 1];
        double high = own > blank ? own : blank, top = high > next ? high : next, from = ctcbind_from(top);
        double sum = labels[i] * ctcbind_power(own - from) + blanks[i + 1] * ctcbind_power(blank - from) +
                     labels[i + 1] * ctcbind_power(next - from);
        of[i] = top + ctcbind_normalise(sum, to + i);
    }
    to += n, of += n;
    for (int64_t i = 0; i < n; i++) {
        double blank = of_blanks[i], next = of_labels[i], top = blank > next ? blank : next, from = ctcbind_from(top);
        double sum = blanks[i] * ctcbind_power(blank - from) + labels[i] * ctcbind_power(next - from);
        of[i] = top + ctcbind_normalise(sum, to + i);
    }
}

CTCBIND_CLONES static void multiply(const double *restrict a, const double *restrict b, int64_t count,
                                    double *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = a[i] * b[i];
}

CTCBIND_CLONES static void add(const double *restrict a, const double *restrict b, int64_t count, double *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = a[i] + b[i];
}

CTCBIND_CLONES static void weigh(const double *restrict mantissa, const double *restrict exponent, double top,
                                 int64_t count, double *restrict shares)
{
    for (int64_t i = 0; i < count; i++) shares[i] = mantissa[i] * ctcbind_power(exponent[i] - top);
}

/* Not by the inverse: the share of a state that is alone is 1. */
CTCBIND_CLONES static void divide(double *values, int64_t count, double by)
{
    for (int64_t i = 0; i < count; i++) values[i] /= by;
}

/* ln of each, 4^top * sum taken out. */
CTCBIND_CLONES static void logarithms(const double *restrict mantissa, const double *restrict exponent, int64_t count,
                                      double top, double log_sum, double *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = ctcbind_ln(mantissa[i], exponent[i] - top) - log_sum;
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

/* --- one sample, state by state -------------------------------------------------------------------------------- */

static ctcbind_powers at(ctcbind_powers of, int64_t i) { return (ctcbind_powers){of.mantissa + i, of.exponent + i}; }

static void emissions(const lattice *own, int64_t t)
{
    const ctcbind_trellis *v = &own->v;
    const ctcbind_graph *g = v->g;
    if (!g->bonus) { /* the states of a class are alike */
        split(v->scores + t * v->K, v->K, own->classes.mantissa, own->classes.exponent);
        ctcbind_trellis_spread(v, own->classes.mantissa, 0.5, own->emit.mantissa);
        ctcbind_trellis_spread(v, own->classes.exponent, -INFINITY, own->emit.exponent);
        return;
    }
    double *scores = own->shares;
    const double *bonus = g->bonus + t * g->bonus_t;
    ctcbind_trellis_spread(v, v->scores + t * v->K, -INFINITY, scores);
    add_strided(bonus + g->bonus_s, 2 * g->bonus_s, v->L, scores);
    add_strided(bonus, 2 * g->bonus_s, v->n, scores + v->n);
    for (int64_t at = 0; at < 2 * v->n; at += v->n)
        split(scores + at, v->n, own->emit.mantissa + at, own->emit.exponent + at);
}

static double forward(lattice *own)
{
    const ctcbind_trellis *v = &own->v;
    int64_t n = v->n, width = 2 * n + 1;
    ctcbind_powers now = at(own->alpha, 1), e = own->emit;
    for (int64_t t = 0; t < v->T; t++) {
        if (ctcbind_sample_stopped(2 * n)) return -INFINITY;
        now = at(own->alpha, t * width + 1);
        now.mantissa[-1] = 0.5, now.exponent[-1] = -INFINITY;
        emissions(own, t);
        if (t)
            advance(now.mantissa - width, now.exponent - width, v->skip, e.mantissa, e.exponent, v->stay, n,
                    now.mantissa, now.exponent);
        else {
            for (int64_t i = 0; i < 2 * n; i++) now.mantissa[i] = 0.5, now.exponent[i] = -INFINITY;
            now.mantissa[n] = e.mantissa[n], now.exponent[n] = e.exponent[n];
            if (v->L) now.mantissa[0] = e.mantissa[0], now.exponent[0] = e.exponent[0];
        }
    }
    double blank = ctcbind_ln(now.mantissa[n + v->L], now.exponent[n + v->L]);
    if (!v->L) return blank;
    return ctcbind_add_two(blank, ctcbind_ln(now.mantissa[v->L - 1], now.exponent[v->L - 1]));
}

/* Each frame is measured by its own sum, not by Z: large scores round, and not alike in all frames. */
static void weigh_frame(lattice *own, ctcbind_lattice *to, int64_t t, double top)
{
    const ctcbind_trellis *v = &own->v;
    int64_t n = v->n;
    weigh(own->through.mantissa, own->through.exponent, top, 2 * n, own->shares);
    double sum = ctcbind_sum(own->shares, 2 * n);
    divide(own->shares, 2 * n, sum);
    store(v, to, to->gamma, t, own->shares);
    if (to->counts || to->grad.data) {
        ctcbind_trellis_gather(v, own->shares, own->shared);
        use_shares(v, to, t, own->shared);
    }
    if (!to->log_gamma) return;
    logarithms(own->through.mantissa, own->through.exponent, 2 * n, top, ctcbind_ln(sum, 0), own->shares);
    store(v, to, to->log_gamma, t, own->shares);
}

/* n labels, and n blanks so many numbers after the first label. */
static void store_log(lattice *own, const ctcbind_lattice *to, void *array, int64_t t, ctcbind_powers of, int64_t step)
{
    int64_t n = own->v.n;
    if (!array) return;
    logarithms(of.mantissa, of.exponent, n, 0, 0, own->shares);
    logarithms(of.mantissa + step, of.exponent + step, n, 0, 0, own->shares + n);
    store(&own->v, to, array, t, own->shares);
}

static void backward(lattice *own, ctcbind_lattice *to)
{
    const ctcbind_trellis *v = &own->v;
    int64_t n = v->n, nans;
    ctcbind_powers rest = own->rest, next = own->next, e = own->emit;
    rest.mantissa[n + v->L] = 1, rest.exponent[n + v->L] = 0;
    if (v->L) rest.mantissa[v->L - 1] = 1, rest.exponent[v->L - 1] = 0;
    for (int64_t t = v->T - 1; t >= 0 && !ctcbind_sample_stopped(2 * n); t--) {
        ctcbind_powers alpha = at(own->alpha, t * (2 * n + 1) + 1);
        if (t < v->T - 1)
            retreat(next.mantissa, next.exponent, v->skip, v->stay, n, rest.mantissa, rest.exponent);
        emissions(own, t);
        for (int64_t k = 0; k < 2; k++) {
            multiply(rest.mantissa + k * n, e.mantissa + k * n, n, next.mantissa + k * (n + 1));
            add(rest.exponent + k * n, e.exponent + k * n, n, next.exponent + k * (n + 1));
        }
        store_log(own, to, to->log_alpha, t, alpha, n);
        store_log(own, to, to->log_beta, t, next, n + 1);
        multiply(rest.mantissa, alpha.mantissa, 2 * n, own->through.mantissa);
        add(rest.exponent, alpha.exponent, 2 * n, own->through.exponent);
        double top = ctcbind_largest(own->through.exponent, 2 * n, &nans);
        if (top > -INFINITY && to->log_z > -INFINITY) weigh_frame(own, to, t, top);
        else {
            fill(to, to->log_gamma, t, 0, 2 * v->L + 1, -INFINITY);
            fill(to, to->gamma, t, 0, 2 * v->L + 1, 0);
            ctcbind_fill_rows(&to->grad, t, t + 1, 0);
        }
    }
}

/* Whether anything is wanted of states. */
static int is_of_states(const ctcbind_lattice *to)
{
    return to->log_alpha || to->log_beta || to->log_gamma || to->gamma;
}

static int run_of_states(const ctcbind_graph *g, ctcbind_lattice *to)
{
    lattice own;
    int64_t T = g->rows.T, n = (int64_t)g->L + 1, states = T * (2 * n + 1);
    int status = ctcbind_trellis_open(&own.v, g, 2 * (n + 3 * 2 * n + 2 * (n + 1) + states) + 3 * n);
    if (status == CTCBIND_ROWS_OK) {
        double *left = own.v.room;
        own.classes = ctcbind_take_powers(&left, n);
        own.emit = ctcbind_take_powers(&left, 2 * n);
        own.rest = ctcbind_take_powers(&left, 2 * n);
        own.through = ctcbind_take_powers(&left, 2 * n);
        own.next = ctcbind_take_powers(&left, 2 * (n + 1));
        own.alpha = (ctcbind_powers){ctcbind_take(&left, states), ctcbind_take(&left, states)};
        own.shares = ctcbind_take(&left, 2 * n);
        own.shared = ctcbind_take(&left, n);
        to->log_z = forward(&own);
        if (is_of_states(to) || to->grad.data || to->counts) backward(&own, to);
    }
    ctcbind_trellis_close(&own.v);
    return status;
}

/* --- one sample, by the loss itself ---------------------------------------------------------------------------- */

/* Without bonuses the states of a class score alike. */
static int is_of_classes(const ctcbind_graph *g, const ctcbind_lattice *to) { return !g->bonus && !is_of_states(to); }

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
    ctcbind_norm norm;
    ctcbind_norm_row(scores, K, &norm);
    ctcbind_softmax(scores, K, norm, to);
    return norm.top + norm.log_sum;
}

static int run_of_classes(const ctcbind_graph *g, ctcbind_lattice *to, int32_t threads)
{
    ctcbind_trellis v;
    int64_t T = g->rows.T, C = g->rows.C, n = (int64_t)g->L + 1, most = n < C ? n : C;
    int wanted = to->grad.data || to->counts;
    int status = ctcbind_trellis_open(&v, g, (wanted ? T * most : 0) + most);
    double *shares = v.room, *grad = NULL, taken_off = 0, loss = INFINITY;
    if (status == CTCBIND_ROWS_OK && wanted) grad = shares + most;
    if (status == CTCBIND_ROWS_OK) status = loss_of_classes(&v, threads, grad, &loss);
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
