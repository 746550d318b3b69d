/* libFuzzer's way into what stands beside the loss: lattice, alignment, second order, greedy decoding, beam search and
 * edit distance. Any bytes become one sample that keeps the contracts of their headers; every output is as large as it
 * must be and no larger. tools/fuzz.sh builds and runs it under AddressSanitizer and UndefinedBehaviorSanitizer.
 *
 * Checked: a NaN is reported where there is one, and nowhere else; no result is NaN; no path where none fits; a path is
 * one of the lattice's, and not more probable than all of them; occupancies sum to 1, what the Hessian makes of a
 * vector to 0, and, where float64 log space is exact enough, it is symmetric; labels that are read are classes, and not the blank. */
#include "align.h"
#include "decode.h"
#include "fuzz.h"
#include "lattice.h"
#include "second_order.h"

static const ctcbind_graph *at_hand; /* for the message */
static uint32_t logits_kind;

static void describe(void)
{
    const ctcbind_graph *g = at_hand;
    fprintf(stderr, "\nT %d, C %d, L %d, blank %d, dtype %d, topology %d, logits of kind %u%s%s\n", g->rows.T, g->rows.C,
            g->L, g->blank, g->rows.dtype, g->topology, logits_kind, g->prior ? ", prior" : "", g->bonus ? ", bonus" : "");
}

#define MUST(holds, ...)                                                                                      \
    do {                                                                                                      \
        if (!(holds)) {                                                                                       \
            fprintf(stderr, "does not hold: %s; ", #holds);                                                   \
            fprintf(stderr, __VA_ARGS__);                                                                     \
            describe();                                                                                       \
            abort();                                                                                          \
        }                                                                                                     \
    } while (0)

typedef struct {
    ctcbind_graph graph;
    int nan, tame, added, feasible; /* tame: float64 log space is exact to 1e-6 */
} sample_t;

static double *doubles(int64_t count)
{
    double *at = room((size_t)count * 8);
    for (int64_t i = 0; i < count; i++) at[i] = NAN; /* whatever is not written shows */
    return at;
}

static void must_status(const sample_t *s, int status, const char *call)
{
    MUST(status == CTCBIND_ROWS_OK || (status == CTCBIND_ROWS_NAN && s->nan), "%s returned %d", call, status);
    MUST(status == CTCBIND_ROWS_NAN || !s->nan || !s->feasible, "%s took a NaN", call);
}

/* Room for a gradient, which is float64 for float64 logits and float32 for all others. */
static ctcbind_rows_out gradient(const sample_t *s)
{
    int32_t T = s->graph.rows.T, C = s->graph.rows.C;
    if (s->graph.rows.dtype == CTCBIND_ROWS_FLOAT64)
        return (ctcbind_rows_out){doubles((int64_t)T * C), C, 1, T, C, CTCBIND_ROWS_FLOAT64};
    float *grad = room((size_t)T * (size_t)C * sizeof *grad);
    for (int64_t i = 0; i < (int64_t)T * C; i++) grad[i] = NAN;
    return (ctcbind_rows_out){grad, C, 1, T, C, CTCBIND_ROWS_FLOAT32};
}

static double at(const ctcbind_rows_out *grad, int64_t i)
{
    return grad->dtype == CTCBIND_ROWS_FLOAT64 ? ((double *)grad->data)[i] : (double)((float *)grad->data)[i];
}

/* By the loss of the classes, as nothing is asked for of the states: the same as with them. */
static void check_classes(const sample_t *s, const ctcbind_lattice *states)
{
    int64_t T = s->graph.rows.T, C = s->graph.rows.C;
    double *counts = doubles(C), log_z = states->log_z;
    ctcbind_lattice to = {.counts = counts, .log_z = NAN};
    to.grad = gradient(s);
    MUST(ctcbind_lattices(&s->graph, &to, 1, 1, NULL) == CTCBIND_ROWS_OK, "nobody stopped it");
    MUST(to.status == states->status, "status %d, with states %d", to.status, states->status);
    for (int64_t i = 0; i < T * C && to.status == CTCBIND_ROWS_OK; i++) MUST(!isnan(at(&to.grad, i)), "a gradient is NaN");
    if (to.status == CTCBIND_ROWS_OK && s->tame) {
        MUST(to.log_z == log_z || fabs(to.log_z - log_z) <= 1e-9 * (1 + fabs(log_z)), "ln Z %g, %g", to.log_z, log_z);
        for (int64_t c = 0; c < C; c++)
            MUST(fabs(counts[c] - states->counts[c]) < 1e-6 * (double)(T + 1), "%g, %g frames", counts[c], states->counts[c]);
    }
    free(to.grad.data), free(counts);
}

static double check_lattice(const sample_t *s)
{
    const ctcbind_graph *g = &s->graph;
    int64_t T = g->rows.T, C = g->rows.C, S = 2 * (int64_t)g->L + 1;
    double *alpha = doubles(T * S), *beta = doubles(T * S), *log_gamma = doubles(T * S), *shares = doubles(T * S);
    double *counts = doubles(C);
    ctcbind_lattice to = {.log_alpha = alpha, .log_beta = beta, .log_gamma = log_gamma, .gamma = shares, .T_out = T,
                          .S_out = S, .dtype = CTCBIND_ROWS_FLOAT64, .counts = counts, .log_z = NAN};
    to.grad = gradient(s);
    MUST(ctcbind_lattices(g, &to, 1, 1, NULL) == CTCBIND_ROWS_OK, "nobody stopped it");
    must_status(s, to.status, "ctcbind_lattices");
    if (to.status == CTCBIND_ROWS_OK) {
        double all = 0;
        MUST(!isnan(to.log_z), "ln Z is NaN");
        MUST(s->added || to.log_z <= 1e-6, "ln Z is %g", to.log_z);
        MUST(s->feasible || to.log_z == -INFINITY, "ln Z is %g without a path", to.log_z);
        for (int64_t t = 0; t < T; t++) {
            double sum = 0, change = 0;
            for (int64_t i = 0; i < S; i++) {
                double gamma = log_gamma[t * S + i], share = shares[t * S + i];
                MUST(!isnan(gamma) && !isnan(alpha[t * S + i]) && !isnan(beta[t * S + i]),
                     "NaN in state %d of frame %d", (int)i, (int)t);
                MUST(fabs(exp(gamma) - share) < 1e-9, "ln gamma %g, gamma %g", gamma, share);
                sum += share;
            }
            for (int64_t c = 0; c < C; c++) change += at(&to.grad, t * C + c);
            if (to.log_z > -INFINITY) MUST(fabs(sum - 1) < 1e-9, "frame %d sums to %g", (int)t, sum);
            double bound = to.grad.dtype == CTCBIND_ROWS_FLOAT64 ? 1e-9 : 1e-6;
            MUST(fabs(change) < bound * (double)C, "the gradient of frame %d sums to %g", (int)t, change);
        }
        for (int64_t c = 0; c < C; c++) all += counts[c];
        MUST(fabs(all - (to.log_z > -INFINITY ? (double)T : 0)) < 1e-9 * (double)(T + 1), "classes have %g frames", all);
    }
    if (!g->bonus) check_classes(s, &to);
    free(alpha), free(beta), free(log_gamma), free(shares), free(to.grad.data), free(counts);
    return to.status == CTCBIND_ROWS_OK ? to.log_z : NAN;
}

/* Whether a path may stay in a state: a label that is not merged with its repeat lasts one frame. */
static int stays(const ctcbind_graph *g, int64_t state) { return !(state & 1) || g->topology != CTCBIND_GRAPH_SIMPLE; }

static void check_path(const sample_t *s, double log_z)
{
    const ctcbind_graph *g = &s->graph;
    int32_t T = g->rows.T, L = g->L;
    ctcbind_alignment to = {.states = room((size_t)T * 4), .classes = room((size_t)T * 4),
                            .starts = room((size_t)L * 4), .ends = room((size_t)L * 4), .scores = doubles(L),
                            .T_out = T, .L_out = L, .log_p = NAN};
    MUST(ctcbind_alignments(g, &to, 1, 1, NULL) == CTCBIND_ROWS_OK, "nobody stopped it");
    must_status(s, to.status, "ctcbind_alignments");
    if (to.status == CTCBIND_ROWS_OK) {
        MUST(!isnan(to.log_p), "ln p is NaN");
        if (s->tame && !isnan(log_z)) {
            MUST(to.log_p <= log_z || to.log_p - log_z <= 1e-6 * (1 + fabs(log_z)), "ln p %g, ln Z %g", to.log_p, log_z);
            MUST((to.log_p == -INFINITY) == (log_z == -INFINITY), "ln p is %g, ln Z %g", to.log_p, log_z);
        }
        for (int32_t t = 0; t < T; t++) {
            int64_t from = t ? to.states[t - 1] : -1, at = to.states[t];
            if (to.log_p == -INFINITY) {
                MUST(at == -1 && to.classes[t] == -1, "state %d without a path", (int)at);
                continue;
            }
            MUST(at >= 0 && at <= 2 * (int64_t)L, "state %d", (int)at);
            MUST(to.classes[t] == (at & 1 ? g->labels[at / 2] : g->blank), "class %d", (int)to.classes[t]);
            int step = t == 0 ? at < 2 : at == from ? stays(g, at) : at == from + 1;
            MUST(step || (t > 0 && at == from + 2 && ctcbind_skips(g, at)), "frame %d: %d to %d", t, (int)from, (int)at);
        }
        if (T && to.log_p > -INFINITY) MUST(to.states[T - 1] >= 2 * L - 1, "it ends in state %d", to.states[T - 1]);
        for (int32_t i = 0; i < L && to.log_p > -INFINITY; i++) {
            MUST(to.starts[i] < to.ends[i] && to.ends[i] <= T && to.starts[i] >= (i ? to.ends[i - 1] : 0),
                 "label %d takes %d to %d", i, to.starts[i], to.ends[i]);
        }
    }
    free(to.states), free(to.classes), free(to.starts), free(to.ends), free(to.scores);
}

static void check_second_order(const sample_t *s, bytes_t *b)
{
    ctcbind_graph g = s->graph;
    int64_t T = g.rows.T, C = g.rows.C, all = T * C;
    double *v = doubles(all), *product = doubles(all);
    ctcbind_rows along = {v, C, 1, (int32_t)T, (int32_t)C, CTCBIND_ROWS_FLOAT64};
    g.prior = g.bonus = NULL;
    for (int64_t i = 0; i < all; i++) v[i] = ((double)byte(b) - 128) / 32;
    ctcbind_product to = {along, {product, C, 1, (int32_t)T, (int32_t)C, CTCBIND_ROWS_FLOAT64}, 0};
    MUST(ctcbind_products(&g, &to, 1, 1, NULL) == CTCBIND_ROWS_OK, "nobody stopped it");
    must_status(s, to.status, "ctcbind_products");
    for (int64_t t = 0; t < T && to.status == CTCBIND_ROWS_OK; t++) {
        double sum = 0;
        for (int64_t c = 0; c < C; c++) {
            MUST(!isnan(product[t * C + c]), "NaN in frame %d", (int)t);
            sum += product[t * C + c];
        }
        MUST(fabs(sum) < 1e-9 * (double)(C + T), "frame %d sums to %g", (int)t, sum);
    }
    if (all <= 150) {
        double *hessian = room((size_t)(all * all) * 8);
        memset(hessian, 0, (size_t)(all * all) * 8);
        ctcbind_hessian whole = {hessian, T, CTCBIND_ROWS_FLOAT64, 0};
        MUST(ctcbind_hessians(&g, &whole, 1, 1, NULL) == CTCBIND_ROWS_OK, "nobody stopped it");
        must_status(s, whole.status, "ctcbind_hessians");
        for (int64_t i = 0; i < all && whole.status == CTCBIND_ROWS_OK; i++)
            for (int64_t k = 0; k < all; k++) {
                double d = hessian[i * all + k];
                MUST(!isnan(d), "NaN in (%d, %d)", (int)i, (int)k);
                if (s->tame) MUST(fabs(d - hessian[k * all + i]) < 1e-6, "(%d, %d) is %g", (int)i, (int)k, d);
            }
        free(hessian);
    }
    free(v), free(product);
}

static void must_read(const sample_t *s, const int32_t *labels, int32_t count)
{
    MUST(count >= 0 && count <= s->graph.rows.T, "%d labels", count);
    for (int32_t i = 0; i < count; i++)
        MUST(labels[i] >= 0 && labels[i] < s->graph.rows.C && labels[i] != s->graph.blank, "label %d", labels[i]);
}

/* A model that a prefix's length and last label decide; the context says how. */
static double model(void *context, const int32_t *prefix, int32_t length, int32_t same)
{
    uint32_t how = *(uint32_t *)context;
    if (same < 0 || same > (length ? length - 1 : 0)) abort();
    if (how > 250 && length > 3) return NAN;
    if (how > 230 && length && prefix[length - 1] % 2) return -INFINITY;
    return length ? -(double)((uint32_t)prefix[length - 1] * how % 7) * length : 0;
}

static void check_decoders(const sample_t *s, bytes_t *b)
{
    const ctcbind_rows *rows = &s->graph.rows;
    int32_t blank = s->graph.blank, simple = s->graph.topology, T = rows->T;
    ctcbind_reading to = {room((size_t)T * 4), -1, -1, NAN};
    MUST(ctcbind_readings(rows, blank, simple, &to, 1, 1, NULL) == CTCBIND_ROWS_OK, "nobody stopped it");
    MUST(to.status == (s->nan ? CTCBIND_ROWS_NAN : CTCBIND_ROWS_OK), "ctcbind_readings has status %d", to.status);
    if (to.status == CTCBIND_ROWS_OK) {
        must_read(s, to.labels, to.length);
        MUST(to.log_p <= 1e-6, "ln p is %g", to.log_p);
    } else MUST(to.length >= 0 && to.length < T, "NaN in frame %d", to.length);
    free(to.labels);

    uint32_t how = byte(b), prune = byte(b);
    ctcbind_beam_options options = {0};
    options.width = (1 + (int32_t)pick(b, 12)) * (prune % 2 ? 16 : 1); /* wide ones are another way */
    options.n_best = 1 + (int32_t)pick(b, (uint32_t)options.width);
    options.blank = blank;
    options.simple = simple;
    options.log_prune = prune < 128 ? -INFINITY : -(double)(prune - 128) / 16;
    options.lm = how < 100 ? NULL : model;
    options.context = &how;
    ctcbind_beams beams;
    int status = ctcbind_beam_search(rows, &options, &beams);
    MUST(status == CTCBIND_ROWS_OK || (status == CTCBIND_ROWS_NAN && s->nan)
             || (status == CTCBIND_ROWS_STOPPED && how > 250),
         "ctcbind_beam_search returned %d", status);
    if (status == CTCBIND_ROWS_OK) {
        int64_t at = 0;
        MUST(beams.count >= 0 && beams.count <= options.n_best, "%d hypotheses", beams.count);
        for (int32_t i = 0; i < beams.count; at += beams.lengths[i++]) {
            must_read(s, beams.labels + at, beams.lengths[i]);
            MUST(beams.log_p[i] <= 1e-6 && !isnan(beams.score[i]), "ln p %g, score %g", beams.log_p[i], beams.score[i]);
            MUST(!i || beams.score[i] <= beams.score[i - 1], "%g after %g", beams.score[i], beams.score[i - 1]);
        }
        MUST(at == beams.total, "%d labels", (int)beams.total);
    }
    ctcbind_beams_free(&beams);
}

/* A row of the table of distances after the other. */
static int64_t plain_distance(const int32_t *a, int32_t a_length, const int32_t *b, int32_t b_length)
{
    int64_t row[151];
    for (int32_t j = 0; j <= b_length; j++) row[j] = j;
    for (int32_t i = 0; i < a_length; i++) {
        int64_t above = row[0]++;
        for (int32_t j = 0; j < b_length; j++) {
            int64_t best = above + (a[i] != b[j]);
            above = row[j + 1];
            if (above + 1 < best) best = above + 1;
            row[j + 1] = row[j] + 1 < best ? row[j] + 1 : best;
        }
    }
    return row[b_length];
}

static void check_distance(bytes_t *b)
{
    static const int32_t steps[] = {1, 7, 1 << 20, INT32_MAX / 30}; /* the last two: looked up by numbers */
    int32_t words[2][3 * 150], at[2] = {0};
    int64_t lengths[2][3], sum = 0;
    for (int pair = 0; pair < 3; pair++) {
        int32_t step = steps[pick(b, 4)], kinds = 1 + (int32_t)pick(b, 30), first = pick(b, 2) ? 0 : -15 * step;
        int32_t *row[2] = {words[0] + at[0], words[1] + at[1]}, length[2];
        for (int k = 0; k < 2; k++) {
            length[k] = (int32_t)pick(b, 150);
            for (int32_t i = 0; i < length[k]; i++) row[k][i] = first + (int32_t)pick(b, (uint32_t)kinds) * step;
            lengths[k][pair] = length[k];
            at[k] += length[k];
        }
        int64_t one = ctcbind_edit_distance(row[0], length[0], row[1], length[1], NULL);
        int64_t right = plain_distance(row[0], length[0], row[1], length[1]);
        MUST(one == right, "%d edits, not %d", (int)one, (int)right);
        MUST(ctcbind_edit_distance(row[1], length[1], row[0], length[0], NULL) == right, "the other way round");
        sum += right;
    }
    MUST(ctcbind_edits(words[0], lengths[0], words[1], lengths[1], 3, NULL) == sum, "of all");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count)
{
    bytes_t bytes = {data, count, 0xcbf29ce484222325}, *b = &bytes;
    sample_t s = {.tame = 1};
    ctcbind_graph *g = &s.graph;
    uint32_t size = byte(b), kind = pick(b, LOGIT_KINDS), labelled = byte(b), added = byte(b);
    int32_t T = (int32_t)(size < 224 ? pick(b, 20) : pick(b, 150)), C = 1 + (int32_t)pick(b, size < 240 ? 12 : 200);
    g->rows.T = T;
    g->rows.C = C;
    g->rows.dtype = (int32_t)pick(b, 4);
    g->topology = pick(b, 4) == 0;
    g->blank = (int32_t)(byte(b) % (uint32_t)C);
    g->L = C == 1 ? 0 : (int32_t)(byte(b) % ((uint32_t)T + 2));
    at_hand = g;
    logits_kind = kind;
    int32_t *labels = room((size_t)g->L * 4);
    for (int32_t i = 0; i < g->L; i++) {
        labels[i] = (int32_t)((labelled < 64 ? 0 : byte(b)) % (uint32_t)(C - 1));
        labels[i] += labels[i] >= g->blank;
    }
    g->labels = labels;
    const int32_t shape[3] = {T, 1, C};
    array_t x = lay_out(b, g->rows.dtype, shape);
    memset(x.base, 0xff, (size_t)x.count * size_of(g->rows.dtype)); /* NaN between the elements */
    for (int32_t t = 0; t < T; t++)
        for (int32_t c = 0; c < C; c++) {
            unsigned char *at = element(&x, g->rows.dtype, t, 0, c);
            put(at, g->rows.dtype, logit(b, kind));
            double v = get(at, g->rows.dtype);
            s.nan |= isnan(v);
            s.tame &= fabs(v) <= 1e6 || v == -INFINITY;
        }
    g->rows.data = x.base + (size_t)x.origin * size_of(g->rows.dtype);
    g->rows.stride_t = x.stride[0];
    g->rows.stride_c = x.stride[2];

    int64_t S = 2 * (int64_t)g->L + 1;
    double *prior = NULL, *bonus = NULL;
    if (added & 1 && added > 128) {
        g->prior = prior = doubles(C);
        for (int32_t c = 0; c < C; c++) prior[c] = -(double)byte(b) / 16;
    }
    if (added & 2 && added > 128) {
        g->bonus = bonus = doubles(T * S);
        g->bonus_t = added & 4 ? 1 : S;
        g->bonus_s = added & 4 ? T : 1;
        for (int64_t i = 0; i < T * S; i++) {
            uint32_t v = byte(b);
            bonus[i] = v > 252 ? -INFINITY : ((double)v - 128) / 32;
        }
    }
    s.added = prior || bonus;
    s.feasible = T >= ctcbind_required(g);
    check_path(&s, check_lattice(&s));
    check_second_order(&s, b);
    check_decoders(&s, b);
    check_distance(b);
    free(labels), free(x.base), free(prior), free(bonus);
    return 0;
}
