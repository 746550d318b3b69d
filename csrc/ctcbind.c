#include "ctcbind.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void *ctcbind_workspace_new(size_t bytes) { return malloc(bytes ? bytes : 1); }
void ctcbind_workspace_free(void *workspace) { free(workspace); }

static double read_half(uint16_t h)
{
    double m = h & 1023, sign = h >> 15 ? -1.0 : 1.0;
    int e = h >> 10 & 31;
    if (e == 31) return m != 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (e ? ldexp(m + 1024, e - 25) : ldexp(m, -24));
}

static double read_bfloat(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static double read_logit(const ctcbind_problem *p, int64_t at)
{
    switch (p->dtype) {
    case CTCBIND_FLOAT32: return ((const float *)p->logits)[at];
    case CTCBIND_FLOAT64: return ((const double *)p->logits)[at];
    case CTCBIND_FLOAT16: return read_half(((const uint16_t *)p->logits)[at]);
    default: return read_bfloat(((const uint16_t *)p->logits)[at]);
    }
}

/* Round to nearest, ties to even; gradients of a softmax lie in [-1, 1] times the weight. */
static uint16_t half_of(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (isnan(x)) return 0x7e00;
    if (a >= 65520) return sign | 0x7c00;
    if (a < 0x1p-14) return sign | (uint16_t)nearbyint(a * 0x1p24);
    int e;
    double m = nearbyint(frexp(a, &e) * 2048);
    return sign | (uint16_t)(((e + 14) << 10) + ((int)m - 1024));
}

static uint16_t bfloat_of(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (isnan(x)) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void write_grad(const ctcbind_problem *p, int64_t at, double value)
{
    switch (p->dtype) {
    case CTCBIND_FLOAT32: ((float *)p->grad)[at] = (float)value; break;
    case CTCBIND_FLOAT64: ((double *)p->grad)[at] = value; break;
    case CTCBIND_FLOAT16: ((uint16_t *)p->grad)[at] = half_of(value); break;
    default: ((uint16_t *)p->grad)[at] = bfloat_of(value);
    }
}

static void write_loss(const ctcbind_problem *p, int32_t n, double value)
{
    if (value <= 0) value = 0; /* -0.0 among them */
    if (p->dtype == CTCBIND_FLOAT64) ((double *)p->losses)[n] = value;
    else ((float *)p->losses)[n] = (float)value;
}

static double add_logs(double a, double b)
{
    double top = a > b ? a : b;
    return top == -INFINITY ? top : top + log1p(exp((a > b ? b : a) - top));
}

/* ln of the softmax; +inf logits share all the probability, a row of -inf has none for any class. */
static void log_softmax(const ctcbind_problem *p, int64_t at, double *row)
{
    double top = -INFINITY, sum = 0;
    for (int32_t c = 0; c < p->C; c++) {
        row[c] = read_logit(p, at + c * p->logits_c);
        if (row[c] > top || isnan(row[c])) top = row[c];
        if (isnan(top)) break;
    }
    for (int32_t c = 0; c < p->C; c++) {
        if (isnan(top)) row[c] = top;
        else if (row[c] == top) row[c] = top == -INFINITY ? top : 0;
        else row[c] -= top;
        sum += exp(row[c]);
    }
    if (sum > 0)
        for (int32_t c = 0; c < p->C; c++) row[c] -= log(sum);
}

static void fill_grad(const ctcbind_problem *p, int32_t n, int32_t from, int32_t to, double value)
{
    if (p->grad)
        for (int64_t t = from; t < to; t++)
            for (int64_t c = 0; c < p->C; c++)
                write_grad(p, t * p->grad_t + n * p->grad_n + c * p->grad_c, value);
}

static size_t sample_doubles(const ctcbind_problem *p, int32_t n)
{
    size_t S = 2 * (size_t)p->label_lengths[n] + 1, T = (size_t)p->input_lengths[n], C = (size_t)p->C;
    return T * C + T * S + 2 * S + C;
}

size_t ctcbind_workspace_size(const ctcbind_problem *p)
{
    size_t most = 0;
    for (int32_t n = 0; n < p->N; n++) {
        size_t need = sample_doubles(p, n);
        if (need > most) most = need;
    }
    return most * sizeof(double);
}

static void run_sample(const ctcbind_problem *p, int32_t n, const int32_t *labels, double *work)
{
    int64_t L = p->label_lengths[n], S = 2 * L + 1, T = p->input_lengths[n], C = p->C;
    int simple = p->topology == CTCBIND_TOPOLOGY_SIMPLE;
    double *logy = work, *alpha = logy + T * C, *beta = alpha + T * S, *next = beta + S, *sums = next + S;
    double weight = p->weights ? p->weights[n] : 1;
    fill_grad(p, n, (int32_t)T, p->T, 0);
    int64_t needed = L;
    for (int64_t i = 1; i < L && !simple; i++) needed += labels[i] == labels[i - 1];
    if (T < needed || T == 0) {
        write_loss(p, n, L ? (double)INFINITY : 0);
        fill_grad(p, n, 0, (int32_t)T, 0);
        return;
    }
    for (int64_t t = 0; t < T; t++) {
        log_softmax(p, t * p->logits_t + n * p->logits_n, logy + t * C);
        if (isnan(logy[t * C])) {
            write_loss(p, n, (double)NAN);
            fill_grad(p, n, 0, (int32_t)T, (double)NAN);
            return;
        }
    }
#define CLASS(s) ((s) & 1 ? labels[(s) >> 1] : p->blank)
#define SKIPS(s) (((s) & 1) && (s) > 1 && (simple || labels[(s) >> 1] != labels[((s) >> 1) - 1]))
#define STAYS(s) (!simple || !((s) & 1))
    for (int64_t t = 0; t < T; t++)
        for (int64_t s = 0; s < S; s++) {
            const double *before = alpha + (t - 1) * S;
            double sum = t == 0 ? (s < 2 ? 0 : -INFINITY) : STAYS(s) ? before[s] : -INFINITY;
            if (t && s > 0) sum = add_logs(sum, before[s - 1]);
            if (t && SKIPS(s)) sum = add_logs(sum, before[s - 2]);
            alpha[t * S + s] = sum + logy[t * C + CLASS(s)];
        }
    const double *last = alpha + (T - 1) * S;
    double log_p = L ? add_logs(last[S - 1], last[S - 2]) : last[0];
    write_loss(p, n, -log_p);
    if (log_p == -INFINITY) {
        fill_grad(p, n, 0, (int32_t)T, 0);
        return;
    }
    if (!p->grad) return;
    for (int64_t t = T - 1; t >= 0; t--) {
        for (int64_t s = 0; s < S; s++) {
            if (t == T - 1) {
                beta[s] = s >= S - 2 ? 0 : -INFINITY;
                continue;
            }
            const double *y = logy + (t + 1) * C;
            double sum = STAYS(s) ? next[s] + y[CLASS(s)] : -INFINITY;
            if (s + 1 < S) sum = add_logs(sum, next[s + 1] + y[CLASS(s + 1)]);
            if (s + 2 < S && SKIPS(s + 2)) sum = add_logs(sum, next[s + 2] + y[CLASS(s + 2)]);
            beta[s] = sum;
        }
        memset(sums, 0, (size_t)C * sizeof *sums);
        for (int64_t s = 0; s < S; s++) sums[CLASS(s)] += exp(alpha[t * S + s] + beta[s] - log_p);
        for (int64_t c = 0; c < C; c++)
            write_grad(p, t * p->grad_t + n * p->grad_n + c * p->grad_c,
                       weight * (exp(logy[t * C + c]) - sums[c]));
        memcpy(next, beta, (size_t)S * sizeof *next);
    }
}

int ctcbind_loss(const ctcbind_problem *p, void *workspace, size_t workspace_bytes)
{
    size_t need = ctcbind_workspace_size(p);
    void *own = NULL;
    if (p->dtype < 0 || p->dtype > 3 || p->topology < 0 || p->topology > 1) return CTCBIND_INVALID;
    if (!workspace || workspace_bytes < need) {
        own = workspace = malloc(need ? need : 1);
        if (!workspace) return CTCBIND_NO_MEMORY;
    }
    const int32_t *labels = p->labels;
    for (int32_t n = 0; n < p->N; n++) {
        run_sample(p, n, labels, workspace);
        labels += p->label_lengths[n];
    }
    free(own);
    return CTCBIND_OK;
}
