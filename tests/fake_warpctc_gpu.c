/* A warp-ctc that was built with CUDA, on host memory: what it computes on its "device" it computes as the real one
 * does, faults and all, as far as they are known (facts of the CPU library, whose source shares them): the cost of a
 * sample without a path is 0 and its gradient is not written, nor is any past the input length; probabilities have a
 * floor; more than 639 labels are refused. It notes the stream, and writes the whole workspace. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int loc;
    union {
        unsigned int num_threads;
        void *stream;
    };
    int blank_label;
} Options;

/* by which a build with CUDA is known */
__attribute__((section(".nv_fatbin"), used)) static const int fatbin = 1;

int64_t fake_stream = -1, fake_calls, fake_on_host;

static double log_add(double a, double b) {
    if (a == -INFINITY) return b;
    if (b == -INFINITY) return a;
    double m = a > b ? a : b;
    return m + log1p(exp((a < b ? a : b) - m));
}

static size_t bytes_of(const int *label_lengths, const int *input_lengths, int N) {
    size_t most = 0;
    for (int n = 0; n < N; n++) {
        size_t here = (size_t)(2 * label_lengths[n] + 1) * (size_t)(input_lengths[n] + 1);
        most = here > most ? here : most;
    }
    return 64 + 8 * most;
}

#define READ(i) (wide ? ((const double *)x)[i] : (double)((const float *)x)[i])

static double sample(const void *x, void *g, int wide, const int *labels, int L, int T, int A, int N, int n, int blank) {
    int S = 2 * L + 1, repeats = 0;
    double lowest = wide ? log(DBL_MIN) : log(FLT_MIN), logp = -INFINITY;
    for (int i = 1; i < L; i++) repeats += labels[i] == labels[i - 1];
    if (L + repeats > T) return 0;
    double *y = malloc(sizeof(double) * (size_t)T * (size_t)A), *a = malloc(sizeof(double) * (size_t)(T * S));
    double *b = malloc(sizeof(double) * (size_t)(T * S)), *o = malloc(sizeof(double) * (size_t)A);
#define LABEL(s) ((s) % 2 ? labels[(s) / 2] : blank)
#define SKIPS(s) ((s) > 1 && (s) % 2 && labels[(s) / 2] != labels[(s) / 2 - 1])
    for (int t = 0; t < T; t++) {
        double top = -INFINITY, sum = 0;
        for (int c = 0; c < A; c++) top = fmax(top, READ(((size_t)t * N + n) * A + c));
        for (int c = 0; c < A; c++) sum += exp(READ(((size_t)t * N + n) * A + c) - top);
        for (int c = 0; c < A; c++) {
            double v = READ(((size_t)t * N + n) * A + c) - top - log(sum);
            y[t * A + c] = v < lowest ? lowest : v; /* NaN stays */
        }
        for (int s = 0; s < S; s++) {
            double v = t ? a[(t - 1) * S + s] : s < 2 ? 0 : -INFINITY;
            if (t && s) v = log_add(v, a[(t - 1) * S + s - 1]);
            if (t && SKIPS(s)) v = log_add(v, a[(t - 1) * S + s - 2]);
            a[t * S + s] = v + y[t * A + LABEL(s)];
        }
    }
    for (int t = T - 1; t >= 0; t--)
        for (int s = 0; s < S; s++) {
            double v = t == T - 1 ? (s >= S - 2 ? 0 : -INFINITY) : b[(t + 1) * S + s] + y[(t + 1) * A + LABEL(s)];
            if (t < T - 1 && s + 1 < S) v = log_add(v, b[(t + 1) * S + s + 1] + y[(t + 1) * A + LABEL(s + 1)]);
            if (t < T - 1 && s + 2 < S && SKIPS(s + 2))
                v = log_add(v, b[(t + 1) * S + s + 2] + y[(t + 1) * A + LABEL(s + 2)]);
            b[t * S + s] = v;
        }
    logp = a[(T - 1) * S + S - 1];
    if (S > 1) logp = log_add(logp, a[(T - 1) * S + S - 2]);
    for (int t = 0; g && t < T; t++) {
        for (int c = 0; c < A; c++) o[c] = -INFINITY;
        for (int s = 0; s < S; s++) o[LABEL(s)] = log_add(o[LABEL(s)], a[t * S + s] + b[t * S + s]);
        for (int c = 0; c < A; c++) {
            double p = exp(y[t * A + c]), v = p - (o[c] == 0 ? 0 : exp(o[c] - logp)); /* 0.0: nothing written */
            if (wide) ((double *)g)[((size_t)t * N + n) * A + c] = v;
            else ((float *)g)[((size_t)t * N + n) * A + c] = (float)v;
        }
    }
    free(y), free(a), free(b), free(o);
    return -logp;
}

static int compute(int wide, const void *x, void *g, const int *labels, const int *label_lengths,
                   const int *input_lengths, int A, int N, void *costs, void *workspace, Options o) {
    fake_calls++;
    if (o.loc) fake_stream = (int64_t)(intptr_t)o.stream;
    else fake_on_host++;
    for (int n = 0; n < N; n++)
        if (o.loc && label_lengths[n] > 639) return 4;
    memset(workspace, 0xA5, bytes_of(label_lengths, input_lengths, N));
    for (int n = 0; n < N; labels += label_lengths[n], n++) {
        double cost = sample(x, g, wide, labels, label_lengths[n], input_lengths[n], A, N, n, o.blank_label);
        if (wide) ((double *)costs)[n] = cost;
        else ((float *)costs)[n] = (float)cost;
    }
    return 0;
}

int get_warpctc_version(void) { return 2 + 0 * fatbin; }
const char *ctcGetStatusString(int status) { return status == 4 ? "unknown error" : "another"; }
int compute_ctc_loss(const float *x, float *g, const int *l, const int *ll, const int *il, int a, int m, float *c,
                     void *w, Options o) {
    return compute(0, x, g, l, ll, il, a, m, c, w, o);
}
int compute_ctc_loss_double(const double *x, double *g, const int *l, const int *ll, const int *il, int a, int m,
                            double *c, void *w, Options o) {
    return compute(1, x, g, l, ll, il, a, m, c, w, o);
}
int get_workspace_size(const int *ll, const int *il, int a, int m, Options o, size_t *s) {
    (void)a, (void)o;
    *s = bytes_of(ll, il, m);
    return 0;
}
int get_workspace_size_double(const int *ll, const int *il, int a, int m, Options o, size_t *s) {
    return get_workspace_size(ll, il, a, m, o, s);
}
