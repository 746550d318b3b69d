/* Lattices, products, best paths, readings and beams of random batches, in arrays without a byte to spare, on several
 * threads. Prints how many samples had a path; says where what must hold does not. */
#include <stdio.h>
#include <stdlib.h>

#include "align.h"
#include "decode.h"
#include "lattice.h"
#include "second_order.h"

enum { BATCHES = 400, MOST = 5, THREADS = 3 };

static uint64_t state;

static int32_t below(int32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((state >> 33) % (uint64_t)n);
}

static double between(double low, double high) { return low + (high - low) * below(1 << 20) / (1 << 20); }

static void *room(int64_t count, size_t size)
{
    void *taken = malloc((size_t)count * size + (count == 0));
    if (!taken) exit(3);
    return memset(taken, 0x7b, (size_t)count * size);
}

static void must(int holds, const char *what, int batch)
{
    if (!holds) printf("batch %d: %s\n", batch, what);
}

static double element(const void *array, int32_t dtype, int64_t at)
{
    return dtype == CTCBIND_ROWS_FLOAT32 ? ((const float *)array)[at] : ((const double *)array)[at];
}

/* One sample: what is given, and room for all results. */
typedef struct sample {
    void *logits, *log_alpha, *log_beta, *log_gamma, *gamma, *grad, *along, *product, *hessian;
    int32_t *labels, *states, *classes, *starts, *ends, *read;
    double *bonus, *counts, *scores;
} sample;

static void fill(sample *k, ctcbind_graph *g, int32_t dtype, int32_t topology, int32_t T_out, int32_t S_out, int32_t C)
{
    size_t size = dtype == CTCBIND_ROWS_FLOAT32 ? sizeof(float) : sizeof(double);
    int32_t T = below(T_out + 1), L = below(S_out / 2 + 1), wide = below(4) == 0 ? 200 : 3;
    if (below(3)) L = L < T / 2 ? L : T / 2;
    k->logits = room((int64_t)T * C, size);
    for (int64_t i = 0; i < (int64_t)T * C; i++) {
        double x = below(40) == 0 ? -INFINITY : below(900) == 0 ? (double)NAN : between(-wide, wide);
        if (dtype == CTCBIND_ROWS_FLOAT32) ((float *)k->logits)[i] = (float)x;
        else ((double *)k->logits)[i] = x;
    }
    k->along = room((int64_t)T * C, size);
    for (int64_t i = 0; i < (int64_t)T * C; i++) {
        if (dtype == CTCBIND_ROWS_FLOAT32) ((float *)k->along)[i] = (float)between(-1, 1);
        else ((double *)k->along)[i] = between(-1, 1);
    }
    k->labels = room(L, sizeof(int32_t));
    for (int32_t i = 0; i < L; i++) k->labels[i] = 1 + below(C - 1);
    k->bonus = room((int64_t)T * (2 * L + 1), sizeof(double));
    for (int64_t i = 0; i < (int64_t)T * (2 * L + 1); i++) k->bonus[i] = below(30) ? between(-2, 2) : -INFINITY;
    g->rows = (ctcbind_rows){.data = k->logits, .stride_t = C, .stride_c = 1, .T = T, .C = C, .dtype = dtype};
    g->labels = k->labels;
    g->L = L;
    g->topology = topology;
    int64_t cells = (int64_t)T_out * S_out, values = (int64_t)T_out * C;
    k->log_alpha = room(cells, size);
    k->log_beta = room(cells, size);
    k->log_gamma = room(cells, size);
    k->gamma = room(cells, size);
    k->grad = room(values, size);
    k->product = room(values, size);
    k->hessian = calloc((size_t)(values * values) + 1, size);
    k->counts = room(C, sizeof(double));
    k->states = room(T_out, sizeof(int32_t));
    k->classes = room(T_out, sizeof(int32_t));
    k->read = room(T, sizeof(int32_t));
    k->starts = room(S_out / 2, sizeof(int32_t));
    k->ends = room(S_out / 2, sizeof(int32_t));
    k->scores = room(S_out / 2, sizeof(double));
}

static void drop(sample *k)
{
    void *all[] = {k->logits, k->log_alpha, k->log_beta, k->log_gamma, k->gamma, k->grad, k->along, k->product,
                   k->hessian, k->labels, k->states, k->classes, k->starts, k->ends, k->read, k->bonus, k->counts,
                   k->scores};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static int never(void) { return 0; }
static int at_once(void) { return 1; }

/* Shares of a frame add up to 1; what the loss gives to a frame's classes, to 0; nothing is left as it was. */
static void check(const ctcbind_graph *g, const ctcbind_lattice *to, const ctcbind_alignment *path, int batch)
{
    int32_t T = g->rows.T, C = g->rows.C;
    double bound = to->dtype == CTCBIND_ROWS_FLOAT32 ? 1e-5 : 1e-12;
    /* what both take off a frame, ln C at most, is off by some C roundings of a sum that is 1 or more, and for the path
     * by those of floats: IN_FLOATS of tests/beyond.py */
    double sums = T * (C + 8) * 0x1p-53 + (g->rows.dtype == CTCBIND_ROWS_FLOAT32 ? 218 * 0x1p-24 * T * log(C) : 0);
    if (to->status == CTCBIND_ROWS_NAN) {
        must(path->status == CTCBIND_ROWS_NAN || T < ctcbind_required(g), "a NaN is one for all", batch);
        return;
    }
    must((to->log_z > -INFINITY) == (path->log_p > -INFINITY), "a path or none", batch);
    must(path->log_p <= to->log_z + sums + 1e-9 * fabs(to->log_z) || to->log_z == -INFINITY, "one path of all", batch);
    for (int64_t t = 0; t < to->T_out; t++) {
        double shares = 0, change = 0, expected = t < T && to->log_z > -INFINITY;
        for (int64_t s = 0; s < to->S_out; s++) shares += element(to->gamma, to->dtype, t * to->S_out + s);
        for (int64_t c = 0; c < C; c++) change += element(to->grad.data, to->dtype, t * C + c);
        must(fabs(shares - expected) < bound, "shares add up", batch);
        must(fabs(change) < bound, "gradients add up", batch);
    }
}

/* Without bonuses a lattice is computed by the loss of its classes where nothing of its states is wanted, and that is
 * the same. `to` has the states. */
static void check_classes(const ctcbind_graph *g, const ctcbind_lattice *to, int32_t N, int batch)
{
    ctcbind_lattice by[MOST] = {0};
    int32_t C = g->rows.C;
    double bound = to->dtype == CTCBIND_ROWS_FLOAT32 ? 1e-5 : 1e-9;
    for (int32_t n = 0; n < N; n++) {
        by[n] = to[n];
        by[n].log_alpha = by[n].log_beta = by[n].log_gamma = by[n].gamma = NULL;
        by[n].grad.data = room(to->T_out * C, to->dtype == CTCBIND_ROWS_FLOAT32 ? sizeof(float) : sizeof(double));
        by[n].counts = below(4) ? room(C, sizeof(double)) : NULL;
    }
    must(ctcbind_lattices(g, by, N, THREADS, never) == CTCBIND_ROWS_OK, "nobody stopped the classes", batch);
    for (int32_t n = 0; n < N; n++) {
        double here = by[n].log_z, there = to[n].log_z, far = 0;
        must(by[n].status == to[n].status, "the same status", batch);
        must(here == there || (isnan(here) && isnan(there)) || fabs(here - there) < 1e-9 * (1 + fabs(there)), "ln Z",
             batch);
        for (int64_t i = 0; i < to->T_out * C && !isnan(there); i++)
            far = fmax(far, fabs(element(by[n].grad.data, to->dtype, i) - element(to[n].grad.data, to->dtype, i)));
        for (int32_t c = 0; c < C && by[n].counts && !isnan(there); c++)
            far = fmax(far, fabs(by[n].counts[c] - to[n].counts[c]));
        must(far < bound, "the same gradients and counts", batch);
        free(by[n].grad.data), free(by[n].counts);
    }
}

/* The sum over paths alone is the one beside all else: to the last bit, if states have scores of their own. */
static void check_alone(const ctcbind_graph *g, const ctcbind_lattice *to, int32_t N, int batch)
{
    ctcbind_lattice alone[MOST] = {0};
    must(ctcbind_lattices(g, alone, N, THREADS, never) == CTCBIND_ROWS_OK, "nobody stopped the sums", batch);
    for (int32_t n = 0; n < N; n++) {
        must(alone[n].status == to[n].status, "the same status alone", batch);
        must(!memcmp(&alone[n].log_z, &to[n].log_z, sizeof(double)), "ln Z alone", batch);
    }
}

/* The classes of a frame get no more together, however the logits change; and the Hessian times a direction is the
 * product of both. `all` may be NULL. */
static void check_product(const ctcbind_product *one, const ctcbind_hessian *all, int batch)
{
    const ctcbind_rows *along = &one->along;
    int64_t T = along->T, C = along->C;
    int32_t dtype = one->out.dtype;
    double bound = dtype == CTCBIND_ROWS_FLOAT32 ? 1e-4 : 1e-9;
    must(!all || all->status == one->status, "the same status of both", batch);
    if (one->status == CTCBIND_ROWS_NAN) return;
    for (int64_t t = 0; t < one->out.T; t++) {
        double change = 0;
        for (int64_t c = 0; c < C; c++) {
            double here = element(one->out.data, dtype, t * C + c), there = 0;
            change += here;
            for (int64_t i = 0; i < T * C && all; i++)
                there += element(all->data, dtype, (t * C + c) * all->T_out * C + i) * element(along->data, dtype, i);
            must(!all || fabs(here - there) < bound, "the Hessian times a direction", batch);
        }
        must(fabs(change) < bound, "second derivatives add up", batch);
    }
}

/* A language model's score of a label at a place, so that sums of few are exact. */
static double said_of(int32_t place, int32_t c)
{
    return (place * 7 + c * 3) % 11 ? -0.25 * ((place + 5 * c) % 13) : -INFINITY;
}

static double say(void *context, const int32_t *prefix, int32_t length, int32_t same)
{
    double sum = 0;
    (void)context, (void)same;
    for (int32_t i = 0; i < length; i++) sum += said_of(i, prefix[i]);
    return sum;
}

static int say_next(void *context, int32_t count, const int32_t *lengths, const int32_t *labels, double *scores)
{
    int32_t C = *(const int32_t *)context;
    for (int32_t k = 0; k < count; labels += lengths[k++]) {
        must(say(NULL, labels, lengths[k], 0) > -INFINITY, "a prefix that is forbidden has no next label", k);
        for (int32_t c = 0; c < C; c++) scores[k * C + c] = said_of(lengths[k], c);
    }
    return 0;
}

static int end_search(void *context, int32_t count, const int32_t *lengths, const int32_t *labels, double *scores)
{
    (void)context, (void)count, (void)lengths, (void)labels, (void)scores;
    return 1;
}

/* Beams without a language model; with one, asked label by label and for all labels at once; with one that gives up. */
static void check_beams(const ctcbind_rows *rows, int32_t N, int batch)
{
    int32_t C = rows->C;
    ctcbind_beam_options options = {.width = 1 + below(300), .log_prune = below(2) ? -INFINITY : -2, .context = &C};
    options.n_best = options.width;
    ctcbind_beam_options by_label = options, at_once = options, ended = options;
    by_label.lm = say, at_once.lm_next = say_next, ended.lm_next = end_search;
    const ctcbind_beam_options *all[] = {&options, &by_label, &at_once, &ended};
    ctcbind_beams beams[4][MOST] = {0};
    for (int k = 0; k < 4; k++) {
        int status = ctcbind_beam_searches(rows, all[k], beams[k], N, THREADS, never);
        must(status == CTCBIND_ROWS_OK, "nobody stopped it", batch);
        for (int32_t n = 0; n < N; n++)
            for (int32_t i = 1; i < beams[k][n].count; i++)
                must(beams[k][n].score[i] <= beams[k][n].score[i - 1], "beams out of order", batch);
    }
    for (int32_t n = 0; n < N; n++) {
        const ctcbind_beams *a = &beams[1][n], *b = &beams[2][n];
        if (a->status || b->status) continue; /* one before it holds a NaN */
        if (a->count != b->count || a->total != b->total) must(0, "as many with both models", batch);
        else {
            must(!memcmp(a->labels, b->labels, (size_t)a->total * sizeof *a->labels), "the same labels", batch);
            must(!memcmp(a->score, b->score, (size_t)a->count * sizeof *a->score), "the same scores", batch);
        }
    }
    for (int k = 0; k < 4; k++)
        for (int32_t n = 0; n < N; n++) ctcbind_beams_free(&beams[k][n]);
}

static int run(int batch)
{
    int32_t N = 1 + below(MOST), C = 2 + below(below(3) ? 6 : 80), T_out = 1 + below(C < 9 ? 30 : 6);
    int32_t dtype = below(2) ? CTCBIND_ROWS_FLOAT32 : CTCBIND_ROWS_FLOAT64, S_out = 2 * below(T_out) + 1, paths = 0;
    int32_t topology = below(2) ? CTCBIND_GRAPH_CTC : CTCBIND_GRAPH_SIMPLE, scored = below(2);
    double prior[90];
    sample samples[MOST];
    ctcbind_graph plain[MOST] = {0}, graphs[MOST] = {0};
    ctcbind_lattice to[MOST] = {0};
    ctcbind_alignment path[MOST] = {0};
    ctcbind_product product[MOST] = {0};
    ctcbind_hessian hessian[MOST] = {0};
    ctcbind_reading reading[MOST] = {0};
    ctcbind_rows rows[MOST];
    for (int32_t c = 0; c < C; c++) prior[c] = between(-1, 1);
    for (int32_t n = 0; n < N; n++) {
        sample *k = &samples[n];
        fill(k, &plain[n], dtype, topology, T_out, S_out, C);
        graphs[n] = plain[n];
        rows[n] = plain[n].rows;
        if (scored) {
            graphs[n].prior = prior;
            graphs[n].bonus = batch & 1 ? NULL : k->bonus;
            graphs[n].bonus_t = 2 * graphs[n].L + 1;
            graphs[n].bonus_s = 1;
        }
        ctcbind_rows_out grad = {.data = k->grad, .stride_t = C, .stride_c = 1, .T = T_out, .C = C, .dtype = dtype};
        to[n] = (ctcbind_lattice){.log_alpha = k->log_alpha, .log_beta = k->log_beta, .log_gamma = k->log_gamma,
                                  .gamma = k->gamma, .T_out = T_out, .S_out = S_out, .dtype = dtype, .grad = grad,
                                  .counts = k->counts};
        path[n] = (ctcbind_alignment){.states = k->states, .classes = k->classes, .starts = k->starts, .ends = k->ends,
                                      .scores = k->scores, .T_out = T_out, .L_out = S_out / 2};
        grad.data = k->product;
        product[n] = (ctcbind_product){.along = rows[n], .out = grad};
        product[n].along.data = k->along;
        hessian[n] = (ctcbind_hessian){.data = k->hessian, .T_out = T_out, .dtype = dtype};
        reading[n].labels = k->read;
    }
    int done = ctcbind_lattices(graphs, to, N, THREADS, never) | ctcbind_alignments(graphs, path, N, THREADS, NULL) |
               ctcbind_products(plain, product, N, THREADS, never) |
               ctcbind_readings(rows, 0, 0, reading, N, THREADS, never);
    int whole = (int64_t)T_out * C < 200;
    if (whole) done |= ctcbind_hessians(plain, hessian, N, THREADS, never);
    must(done == CTCBIND_ROWS_OK, "nobody stopped it", batch);
    check_beams(rows, N, batch);
    if (!scored || batch & 1) check_classes(graphs, to, N, batch);
    if (graphs[0].bonus) check_alone(graphs, to, N, batch);
    for (int32_t n = 0; n < N; n++) {
        check(&graphs[n], &to[n], &path[n], batch);
        check_product(&product[n], whole ? &hessian[n] : NULL, batch);
        paths += to[n].log_z > -INFINITY;
        drop(&samples[n]);
    }
    return paths;
}

int main(int count, char **words)
{
    int paths = 0;
    state = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    for (int batch = 0; batch < BATCHES; batch++) paths += run(batch);
    must(ctcbind_lattices(NULL, NULL, 0, THREADS, at_once) == CTCBIND_ROWS_OK, "nothing to stop", -1);
    printf("%d\n", paths);
    return 0;
}
