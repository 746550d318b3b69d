/* libFuzzer's way into csrc/: any bytes become a problem that keeps the contract of ctcbind.h, and what must hold of
 * every result is checked. tools/fuzz.sh builds and runs it under AddressSanitizer and UndefinedBehaviorSanitizer.
 *
 * Checked: the same bits from one thread and several, from clean and dirty scratch and outputs, from losses alone; every
 * element of the gradient written and nothing between them; loss >= 0; NaN only from NaN, in its own sample; gradient 0
 * where no path exists and past the input length; rows of the gradient that sum to 0; and, where float64 log space is
 * itself exact enough to judge, loss and gradient against that. */
#include "ctcbind.h"
#include "fuzz.h"

static const ctcbind_problem *at_hand; /* for the message */
static uint32_t logits_kind;

static void describe(void)
{
    const ctcbind_problem *p = at_hand;
    fprintf(stderr, "\nT %d, N %d, C %d, blank %d, dtype %d, topology %d, %d threads, %s, logits of kind %u, lengths", p->T,
            p->N, p->C, p->blank, p->dtype, p->topology, p->threads, ctcbind_isa(), logits_kind);
    for (int32_t n = 0; n < p->N; n++) fprintf(stderr, " %d/%d", p->label_lengths[n], p->input_lengths[n]);
    fprintf(stderr, "\n");
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

/* --- float64 log space ------------------------------------------------------------------------------------------- */

static double add(double a, double b)
{
    double top = a > b ? a : b;
    return top == -INFINITY ? top : top + log1p(exp((a > b ? b : a) - top));
}

/* ln y of the rows in place of x, [T][C]; then loss and gradient in place of that. */
static double exact(double *x, int64_t T, int64_t C, const int32_t *labels, int64_t L, int32_t blank, int simple)
{
    int64_t S = 2 * L + 1;
    double *alpha = room((size_t)(T * S) * 8), *beta = room((size_t)S * 8), *next = room((size_t)S * 8);
    double *occupied = room((size_t)C * 8), p;
    for (int64_t t = 0; t < T; t++) {
        double *row = x + t * C, top = row[0], sum = 0;
        for (int64_t c = 1; c < C; c++) top = row[c] > top ? row[c] : top;
        for (int64_t c = 0; c < C; c++) sum += exp(row[c] - top);
        for (int64_t c = 0; c < C; c++) row[c] = row[c] - top - log(sum);
    }
#define CLASS(s) ((s) % 2 ? labels[(s) / 2] : blank)
#define SKIPS(s) ((s) % 2 && (s) > 2 && (simple || labels[(s) / 2] != labels[(s) / 2 - 1]))
    for (int64_t t = 0; t < T; t++)
        for (int64_t s = 0; s < S; s++) {
            double *to = alpha + t * S + s, *from = to - S;
            if (t == 0) *to = s < 2 ? 0 : -INFINITY;
            else {
                *to = simple && s % 2 ? -INFINITY : *from;
                if (s > 0) *to = add(*to, from[-1]);
                if (SKIPS(s)) *to = add(*to, from[-2]);
            }
            *to += x[t * C + CLASS(s)];
        }
    p = alpha[T * S - 1];
    if (S > 1) p = add(p, alpha[T * S - 2]);
    for (int64_t t = T - 1; t >= 0 && p > -INFINITY; t--) {
        for (int64_t s = S - 1; s >= 0; s--) {
            if (t == T - 1) {
                beta[s] = s >= S - 2 ? 0 : -INFINITY;
                continue;
            }
            beta[s] = simple && s % 2 ? -INFINITY : next[s];
            if (s + 1 < S) beta[s] = add(beta[s], next[s + 1]);
            if (s + 2 < S && SKIPS(s + 2)) beta[s] = add(beta[s], next[s + 2]);
        }
        memset(occupied, 0, (size_t)C * 8);
        for (int64_t s = 0; s < S; s++) {
            occupied[CLASS(s)] += exp(alpha[t * S + s] + beta[s] - p);
            next[s] = beta[s] + x[t * C + CLASS(s)];
        }
        for (int64_t c = 0; c < C; c++) x[t * C + c] = exp(x[t * C + c]) - occupied[c];
    }
    free(alpha);
    free(beta);
    free(next);
    free(occupied);
    return -p;
}

/* --- what must hold of a sample ---------------------------------------------------------------------------------- */

/* Half a unit in the last place of a stored gradient, relative, and half its smallest step. */
static const double stored[4] = {0x1p-24, 0x1p-53, 0x1p-11, 0x1p-8}, smallest[4] = {0x1p-150, 0, 0x1p-25, 0x1p-134};

static void check_sample(const ctcbind_problem *p, int32_t n, const int32_t *labels, const array_t *x, const array_t *g,
                         double loss)
{
    int32_t T = p->input_lengths[n], L = p->label_lengths[n], C = p->C, d = p->dtype;
    double weight = p->weights ? p->weights[n] : 1, most = 0, *rows = room((size_t)T * (size_t)C * 8);
    double eps = d == CTCBIND_FLOAT64 ? 0x1p-52 : 0x1p-23;
    int nan = 0, infinite = 0, minus = 0, feasible;
    int64_t need = L;
    for (int32_t i = 1; i < L && p->topology == CTCBIND_TOPOLOGY_CTC; i++) need += labels[i] == labels[i - 1];
    feasible = T >= need;
    for (int32_t t = 0; t < T; t++)
        for (int32_t c = 0; c < C; c++) {
            double v = rows[(int64_t)t * C + c] = get(element(x, d, t, n, c), d);
            nan |= isnan(v);
            infinite |= v == INFINITY;
            minus |= v == -INFINITY;
            if (fabs(v) < INFINITY && fabs(v) > most) most = fabs(v);
        }
    for (int32_t t = T; t < p->T; t++)
        for (int32_t c = 0; c < C; c++)
            MUST(get(element(g, d, t, n, c), d) == 0, "sample %d, row %d past its %d", n, t, T);
    MUST(isnan(loss) == (nan && feasible), "sample %d, loss %g", n, loss);
    MUST(isnan(loss) || loss >= 0, "sample %d, loss %g", n, loss);
    MUST(!signbit(loss) || isnan(loss), "sample %d, loss %g", n, loss);
    if (!feasible) MUST(loss == INFINITY, "sample %d, loss %g", n, loss);
    if (!infinite && !minus && !nan && feasible && most < 1e30) MUST(loss < INFINITY, "sample %d", n);
    for (int32_t t = 0; t < T; t++) {
        double sum = 0, size = 0;
        for (int32_t c = 0; c < C; c++) {
            double v = get(element(g, d, t, n, c), d);
            MUST(isnan(v) == isnan(loss), "sample %d, row %d, class %d: gradient %g", n, t, c, v);
            if (!feasible) MUST(v == 0, "sample %d, row %d, class %d: gradient %g", n, t, c, v);
            MUST(isnan(v) || fabs(v) <= fabs(weight) * (1 + 16 * eps + 2 * stored[d]) + smallest[d],
                 "sample %d, row %d, class %d: gradient %g, weight %g", n, t, c, v, weight);
            sum += v;
            size += fabs(v);
        }
        /* each term of the softmax and of the occupancies is rounded a few times, their sums log2 or C times */
        double bound = fabs(weight) * (C + L + 16) * eps + size * stored[d] + C * smallest[d];
        MUST(isnan(sum) || fabs(sum) <= bound, "sample %d, row %d: gradient sums to %g, bound %g", n, t, sum, bound);
    }
    if (!nan && !infinite && feasible && T > 0 && most <= 1e6) {
        double right = 0;
        int empty = 0; /* a row of -inf: no class has any probability, and nothing to judge */
        for (int32_t t = 0; t < T; t++) {
            int some = 0;
            for (int32_t c = 0; c < C; c++) some |= rows[(int64_t)t * C + c] > -INFINITY;
            empty |= !some;
        }
        if (empty) right = INFINITY;
        else right = exact(rows, T, C, labels, L, p->blank, p->topology);
        /* float64 rounds sums as large as T * most, and a path's probability by as much */
        double noise = 8 * DBL_EPSILON * (most + 10) * T, limit = d == CTCBIND_FLOAT64 ? 1e-13 : 1e-6;
        double near = limit * (right > 1 ? right : 1) + noise;
        if (right == INFINITY) MUST(loss == INFINITY, "sample %d: loss %g, not inf", n, loss);
        else MUST(fabs(loss - (right > 0 ? right : 0)) <= near, "sample %d: loss %.17g, not %.17g", n, loss, right);
        for (int32_t t = 0; t < T; t++)
            for (int32_t c = 0; c < C; c++) {
                double v = get(element(g, d, t, n, c), d), w = right == INFINITY ? 0 : weight * rows[(int64_t)t * C + c];
                double off = fabs(weight) * (2 * limit + 2 * noise) + stored[d] * fabs(w) * 2 + smallest[d];
                MUST(fabs(v - w) <= off, "sample %d, row %d, class %d: gradient %.17g, not %.17g", n, t, c, v, w);
            }
    }
    free(rows);
}

/* --- the problem ------------------------------------------------------------------------------------------------- */

static void *run(ctcbind_problem *p, int scratch, int fill)
{
    size_t bytes = ctcbind_workspace_size(p), size = p->dtype == CTCBIND_FLOAT64 ? 8 : 4;
    void *workspace = scratch < 0 ? NULL : room(bytes), *losses = room((size_t)p->N * size);
    if (workspace) memset(workspace, scratch, bytes);
    memset(losses, fill, (size_t)p->N * size);
    p->losses = losses;
    int status = ctcbind_loss(p, workspace, workspace ? bytes : 0);
    MUST(status == CTCBIND_OK, "status %d", status);
    free(workspace);
    return losses;
}

static void check_untouched(const array_t *a, int32_t dtype, const int32_t *shape, int fill)
{
    size_t size = size_of(dtype), bytes = (size_t)a->count * size;
    unsigned char *owned = calloc(bytes ? bytes : 1, 1);
    if (!owned) abort();
    for (int32_t t = 0; t < shape[0]; t++)
        for (int32_t n = 0; n < shape[1]; n++)
            for (int32_t c = 0; c < shape[2]; c++) memset(owned + (element(a, dtype, t, n, c) - a->base), 1, size);
    for (size_t i = 0; i < bytes; i++) MUST(owned[i] || a->base[i] == fill, "byte %zu beside the gradient", i);
    free(owned);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t count)
{
    bytes_t bytes = {data, count, 0xcbf29ce484222325}, *b = &bytes;
    ctcbind_problem p = {0};
    uint32_t size = byte(b);
    p.dtype = (int32_t)pick(b, 4);
    p.topology = pick(b, 4) == 0;
    p.T = (int32_t)(size < 192 ? pick(b, 20) : size < 248 ? pick(b, 70) : 60 + byte(b) / 2);
    p.N = (int32_t)(size % 8 || size >= 192 ? 1 + pick(b, 2) : pick(b, 9));
    p.C = (int32_t)(size < 232 ? 1 + pick(b, 20) : size < 250 ? 1 + pick(b, 180) : 500 + byte(b));
    p.blank = (int32_t)(byte(b) % (uint32_t)p.C);
    int threads = 1 + (int)pick(b, 4);
    uint32_t kind = pick(b, LOGIT_KINDS), weighted = byte(b), labelled = byte(b);
    const int32_t shape[3] = {p.T, p.N, p.C};

    int32_t *input_lengths = room((size_t)p.N * 4), *label_lengths = room((size_t)p.N * 4);
    double *weights = weighted > 128 ? room((size_t)p.N * 8) : NULL;
    int64_t total = 0, at = 0;
    for (int32_t n = 0; n < p.N; n++) {
        uint32_t t = byte(b), l = byte(b);
        input_lengths[n] = t < 128 ? p.T : (int32_t)(t % ((uint32_t)p.T + 1));
        label_lengths[n] = p.C == 1 ? 0 : (int32_t)(l % ((uint32_t)input_lengths[n] / (l < 160 ? 2 : 1) + 2));
        if (weights) weights[n] = ((double)byte(b) - 64) / 32;
        total += label_lengths[n];
    }
    int32_t *labels = room((size_t)total * 4);
    for (int64_t i = 0; i < total; i++) {
        uint32_t c = labelled < 64 ? 0 : labelled < 128 ? pick(b, 2) : p.C > 256 ? byte(b) * 3 : byte(b);
        labels[i] = (int32_t)(c % (uint32_t)(p.C - 1));
        labels[i] += labels[i] >= p.blank;
    }
    array_t x = lay_out(b, p.dtype, shape), g = lay_out(b, p.dtype, shape), g2 = g;
    g2.base = room((size_t)g.count * size_of(p.dtype));
    memset(x.base, 0xff, (size_t)x.count * size_of(p.dtype)); /* NaN between the elements */
    for (int32_t t = 0; t < p.T; t++)
        for (int32_t n = 0; n < p.N; n++)
            for (int32_t c = 0; c < p.C; c++)
                put(element(&x, p.dtype, t, n, c), p.dtype, t < input_lengths[n] ? logit(b, kind) : NAN);

    p.logits = x.base + (size_t)x.origin * size_of(p.dtype);
    p.logits_t = x.stride[0], p.logits_n = x.stride[1], p.logits_c = x.stride[2];
    p.grad_t = g.stride[0], p.grad_n = g.stride[1], p.grad_c = g.stride[2];
    p.labels = labels;
    p.label_lengths = label_lengths;
    p.input_lengths = input_lengths;
    p.weights = weights;
    at_hand = &p;
    logits_kind = kind;

    memset(g.base, 0xa5, (size_t)g.count * size_of(p.dtype));
    memset(g2.base, 0x5a, (size_t)g.count * size_of(p.dtype));
    p.grad = g.base + (size_t)g.origin * size_of(p.dtype);
    p.threads = threads;
    void *losses = run(&p, 0xff, 0xa5);
    check_untouched(&g, p.dtype, shape, 0xa5);
    p.grad = g2.base + (size_t)g.origin * size_of(p.dtype);
    p.threads = 1;
    void *serial = run(&p, 0, 0x5a);
    check_untouched(&g2, p.dtype, shape, 0x5a);
    p.grad = NULL;
    p.threads = threads;
    void *alone = run(&p, -1, 0x11);
    size_t bytes_of_losses = (size_t)p.N * (p.dtype == CTCBIND_FLOAT64 ? 8 : 4);
    MUST(!memcmp(losses, serial, bytes_of_losses), "%d threads gave other losses than one", threads);
    MUST(!memcmp(losses, alone, bytes_of_losses), "losses alone are not those with gradients");

    for (int32_t n = 0; n < p.N; at += label_lengths[n++]) {
        for (int32_t t = 0; t < p.T; t++)
            for (int32_t c = 0; c < p.C; c++)
                MUST(!memcmp(element(&g, p.dtype, t, n, c), element(&g2, p.dtype, t, n, c), size_of(p.dtype)),
                     "gradient of (%d, %d, %d) with %d threads is not that with one", t, n, c, threads);
        double loss = p.dtype == CTCBIND_FLOAT64 ? ((double *)losses)[n] : (double)((float *)losses)[n];
        check_sample(&p, n, labels + at, &x, &g, loss);
    }
    free(losses);
    free(serial);
    free(alone);
    free(x.base);
    free(g.base);
    free(g2.base);
    free(labels);
    free(input_lengths);
    free(label_lengths);
    free(weights);
    return 0;
}
