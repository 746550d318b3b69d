#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "flush.h"
#include "lattice.h"
#include "size.h"
#include "xla_batch.h"

typedef struct {
    ctcbind_xla_batch batch;
    const xla_buffer *bonus, *prior;          /* NULL: none */
    xla_buffer *losses, *grad, *counts, *gamma; /* the first alone, or all but the last may be not NULL */
    int64_t S, share;                         /* states of the longest label; samples that have one prior */
    double weight;
    int32_t topology;
} call_t;

/* What is made for a call, in one piece of memory; the last three with the frames that count in front. */
enum { GRAPHS, LATTICES, PRIORS, BONUS, COUNTS, LOGITS, GRAD, GAMMA, PARTS };

/* The i-th of (..., last, ...) with `count` dimensions of the logits before it, NULL unless it is one. */
static xla_buffer *array(const ctcbind_xla_batch *b, const xla_values *values, int64_t i, int64_t count, int64_t last,
                         int dtype)
{
    xla_buffer *found = ctcbind_xla_buffer(values, i, count + (last > 0), dtype);
    if (!found || !ctcbind_xla_same_dims(b->logits, found, count)) return NULL;
    return !last || found->dims[count] == last ? found : NULL;
}

static const xla_buffer *added(const ctcbind_xla_batch *b, const xla_values *in, int64_t i, int64_t count, int64_t last)
{
    const xla_buffer *wide = array(b, in, i, count, last, XLA_FLOAT64);
    return wide ? wide : array(b, in, i, count, last, XLA_FLOAT32);
}

static int decode(ctcbind_xla_batch *b, const xla_values *in, const xla_values *out, const xla_attributes *options)
{
    call_t *c = (call_t *)b;
    int64_t front = b->logits->rank - 2, next = 4;
    int dtype = b->logits->dtype;
    c->S = 2 * b->L + 1;
    c->share = b->logits->dims[front - 1];
    if (next < in->size && (c->bonus = added(b, in, next, front + 1, c->S))) next++;
    if (next < in->size && (c->prior = added(b, in, next, front - 1, b->C))) next++;
    if (next < in->size) return 0;

    const int32_t *topology = ctcbind_xla_option(options, "topology", XLA_INT32);
    const double *weight = ctcbind_xla_option(options, "weight", XLA_FLOAT64);
    if (!topology || !weight) return 0;
    c->topology = *topology;
    c->weight = *weight;

    int64_t most = c->bonus ? 4 : 3;
    if (out->size != 1 && out->size != 3 && out->size != most) return 0;
    if (!(c->losses = array(b, out, 0, front, 0, dtype))) return 0;
    if (out->size == 1) return 1;
    if (!(c->grad = array(b, out, 1, front + 1, b->C, dtype))) return 0;
    if (!(c->counts = array(b, out, 2, front, b->C, dtype))) return 0;
    return out->size == 3 || (c->gamma = array(b, out, 3, front + 1, c->S, dtype));
}

static double value(const xla_buffer *of, int64_t i)
{
    return of->dtype == XLA_FLOAT64 ? ((const double *)of->data)[i] : ((const float *)of->data)[i];
}

static void store(xla_buffer *to, int64_t i, double number)
{
    if (to->dtype == XLA_FLOAT64) ((double *)to->data)[i] = number;
    else ctcbind_narrow(&number, (float *)to->data + i, 1);
}

/* --- what is added, in the words of ctcbind/scores.py ----------------------------------------------------------- */

/* What a path collects over its frames must be a number: the most of it, the logits come on top. */
static void *check_sum(const ctcbind_xla_batch *b, const char *what, double most)
{
    if (most <= 1e300 / (double)b->T) return NULL;
    return ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT,
                              "InvalidInput: %s comes to %.9g; over T = %lld frames that leaves the range of float64",
                              what, most, (long long)b->T);
}

/* Past a sample's own frames and states nothing is read. */
static void *check_bonus(const call_t *c)
{
    const ctcbind_xla_batch *b = &c->batch;
    const float *padded = b->frame_paddings->data;
    double most = 0;
    for (int64_t n = 0; n < b->N; n++)
        for (int64_t t = 0; t < b->T; t++)
            for (int64_t s = 0; s <= 2 * b->label_lengths[n] && padded[n * b->T + t] == 0; s++) {
                double bonus = value(c->bonus, (n * b->T + t) * c->S + s);
                if (bonus == -INFINITY) continue;
                if (!(bonus < INFINITY))
                    return ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT,
                                              "InvalidInput: path_bonus[%lld][%lld][%lld] is %s; it must be finite, or "
                                              "-inf to forbid the state",
                                              (long long)n, (long long)t, (long long)s, isnan(bonus) ? "nan" : "inf");
                if (fabs(bonus) > most) most = fabs(bonus);
            }
    return check_sum(b, "path_bonus", most);
}

/* Of prior m, whose values times the weight go to `to`. */
static void *read_prior(const call_t *c, int64_t m, double *to)
{
    const ctcbind_xla_batch *b = &c->batch;
    double low = INFINITY, top = -INFINITY, sum = 0, most = 0;
    for (int64_t k = 0; k < b->C; k++) {
        double prior = value(c->prior, m * b->C + k);
        if (!isfinite(prior))
            return ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT, "InvalidInput: log_prior[%lld] is %s; it must be finite",
                                      (long long)k, isnan(prior) ? "nan" : prior > 0 ? "inf" : "-inf");
        low = fmin(low, prior);
        top = fmax(top, prior);
        sum += prior;
        to[k] = prior * c->weight;
        most = fmax(most, fabs(to[k]));
    }
    if (b->C > 1 && low >= 0 && top < 2 && fabs(sum - 1) < 1e-3)
        return ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT,
                                  "InvalidInput: log_prior lies between %.3g and %.3g and sums to %.3g: these are "
                                  "probabilities; pass their logarithms, numpy.log(prior)",
                                  low, top, sum);
    return check_sum(b, "log_prior times prior_weight", most);
}

/* --- the call -------------------------------------------------------------------------------------------------- */

static size_t row_of(const call_t *c, int64_t width) { return (size_t)width * c->batch.size; }

/* The memory, and its parts: NULL those that are not needed. NULL if there is not so much. */
static void *take_room(const call_t *c, void *parts[PARTS])
{
    const ctcbind_xla_batch *b = &c->batch;
    uint64_t N = (uint64_t)b->N, frames = N * (uint64_t)b->T, total = 0;
    int doubles = c->bonus && c->bonus->dtype == XLA_FLOAT64;
    uint64_t bytes[PARTS] = {
        [GRAPHS] = N * sizeof(ctcbind_graph),
        [LATTICES] = N * sizeof(ctcbind_lattice),
        [PRIORS] = c->prior ? N / (uint64_t)c->share * (uint64_t)b->C * sizeof(double) : 0,
        [BONUS] = c->bonus && (b->moved || !doubles) ? frames * (uint64_t)c->S * sizeof(double) : 0,
        [COUNTS] = c->counts ? N * (uint64_t)b->C * sizeof(double) : 0,
        [LOGITS] = b->moved ? frames * row_of(c, b->C) : 0,
        [GRAD] = b->moved && c->grad ? frames * row_of(c, b->C) : 0,
        [GAMMA] = b->moved && c->gamma ? frames * row_of(c, c->S) : 0,
    };
    for (int i = 0; i < PARTS; i++) total += bytes[i] = (bytes[i] + 15) / 16 * 16;
    unsigned char *room = malloc(ctcbind_size(total)), *next = room;
    for (int i = 0; i < PARTS && room; next += bytes[i++]) parts[i] = bytes[i] ? next : NULL;
    return room;
}

/* In doubles, with the frames that count in front if they are not. */
static void read_bonus(const call_t *c, double *to)
{
    const ctcbind_xla_batch *b = &c->batch;
    const float *padded = b->frame_paddings->data;
    for (int64_t n = 0; n < b->N; n++) {
        double *row = to + n * b->T * c->S;
        for (int64_t t = 0; t < b->T; t++) {
            if (padded[n * b->T + t] != 0) continue;
            for (int64_t s = 0; s < c->S; s++) row[s] = value(c->bonus, (n * b->T + t) * c->S + s);
            row += c->S;
        }
    }
}

static void *run(const call_t *c, void *const parts[PARTS])
{
    const ctcbind_xla_batch *b = &c->batch;
    ctcbind_graph *graphs = parts[GRAPHS];
    ctcbind_lattice *to = parts[LATTICES];
    const double *bonus = parts[BONUS] ? parts[BONUS] : c->bonus ? c->bonus->data : NULL;
    const unsigned char *logits = parts[LOGITS] ? parts[LOGITS] : b->logits->data;
    unsigned char *grad = parts[GRAD] ? parts[GRAD] : c->grad ? c->grad->data : NULL;
    unsigned char *gamma = parts[GAMMA] ? parts[GAMMA] : c->gamma ? c->gamma->data : NULL;
    int32_t T = (int32_t)b->T, C = (int32_t)b->C, N = (int32_t)b->N;
    int32_t dtype = b->size == 8 ? CTCBIND_ROWS_FLOAT64 : CTCBIND_ROWS_FLOAT32;
    size_t wide = (size_t)T * row_of(c, C), of_states = (size_t)T * row_of(c, c->S);
    for (int32_t n = 0; n < N; n++) {
        graphs[n] = (ctcbind_graph){
            .rows = {.data = logits + (size_t)n * wide, .stride_t = C, .stride_c = 1, .C = C, .dtype = dtype},
            .blank = b->blank,
            .topology = c->topology,
            .prior = c->prior ? (double *)parts[PRIORS] + n / c->share * C : NULL,
            .bonus = bonus ? bonus + (int64_t)n * T * c->S : NULL,
            .bonus_t = c->S,
            .bonus_s = 1,
        };
        to[n] = (ctcbind_lattice){
            .gamma = gamma ? gamma + (size_t)n * of_states : NULL,
            .T_out = T,
            .S_out = c->S,
            .dtype = dtype,
            .counts = c->counts ? (double *)parts[COUNTS] + (int64_t)n * C : NULL,
        };
        if (grad)
            to[n].grad = (ctcbind_rows_out){
                .data = grad + (size_t)n * wide, .stride_t = C, .stride_c = 1, .T = T, .C = C, .dtype = dtype};
    }
    ctcbind_set_labels(graphs, b->packed, b->label_lengths, b->input_lengths, N);
    ctcbind_lattices(graphs, to, N, ctcbind_xla_threads_for(b), NULL);

    for (int32_t n = 0; n < N; n++) {
        if (to[n].status == CTCBIND_ROWS_NO_MEMORY)
            return ctcbind_xla_refuse(b, XLA_RESOURCE_EXHAUSTED, "no memory for the lattice");
        double loss = 0 - to[n].log_z;
        if (!c->bonus && !c->prior && loss <= 0) loss = 0; /* rounding can leave it a hair below, and never -0 */
        store(c->losses, n, loss);
        for (int32_t k = 0; k < C && c->counts; k++) store(c->counts, (int64_t)n * C + k, to[n].counts[k]);
    }
    if (parts[GRAD]) ctcbind_xla_back(b, grad, c->grad->data, row_of(c, C));
    if (parts[GAMMA]) ctcbind_xla_back(b, gamma, c->gamma->data, row_of(c, c->S));
    return NULL;
}

static void *compute(const ctcbind_xla_batch *b)
{
    const call_t *c = (const call_t *)b;
    void *parts[PARTS], *room = NULL, *error = ctcbind_xla_without_kernels(b);
    unsigned mode = flush_nothing(); /* as on the other threads */
    if (!error && c->bonus) error = check_bonus(c);
    if (!error && !(room = take_room(c, parts)))
        error = ctcbind_xla_refuse(b, XLA_RESOURCE_EXHAUSTED, "no memory for the samples");
    for (int64_t m = 0; m < b->N / c->share && c->prior && !error; m++)
        error = read_prior(c, m, (double *)parts[PRIORS] + m * b->C);
    if (!error) {
        size_t frames = (size_t)(b->N * b->T);
        if (c->grad) ctcbind_xla_large_pages(c->grad->data, frames * row_of(c, b->C));
        if (c->gamma) ctcbind_xla_large_pages(c->gamma->data, frames * row_of(c, c->S));
        if (parts[BONUS]) read_bonus(c, parts[BONUS]);
        if (parts[LOGITS]) ctcbind_xla_to_front(b, b->logits->data, parts[LOGITS], row_of(c, b->C));
        error = run(c, parts);
    }
    flush_end(mode);
    free(room);
    return error;
}

void *ctcbind_xla_lattice(void *call)
{
    static const ctcbind_xla_function function = {"lattice", decode, compute};
    call_t c = {.bonus = NULL};
    return ctcbind_xla_answer(call, &c.batch, &function);
}
