/* The loss of the fake libcudnn. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cudnn.h"

long hazards, poisoned;

EXPORT long fake_hazards(void) { return hazards; }
EXPORT long fake_poisoned(void) { return poisoned; }

static double log_add(double a, double b) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == -INFINITY) return b;
    if (b == -INFINITY) return a;
    double m = a > b ? a : b;
    return m + log1p(exp((a < b ? a : b) - m));
}

/* -ln p of one sample; gradient rows t < T get y - (occupancy of their labels), or without the softmax inside
 * -occupancy / y, and y where the occupancy is 0, as 9.19 writes it. The recursion is in log space, but from softmax
 * values in float32, as the real one holds them: a probability below its range is lost. So is the occupancy of a class
 * whose paths, counting its y twice, have a probability whose logarithm is 0 in float32. */
static double sample_loss(const float *x, const int *xs, float *g, const int *gs, int T, int A, const int *labels,
                          int L, int norm) {
    int S = 2 * L + 1;
    double *logy = malloc(sizeof(double) * (size_t)T * (size_t)A);
    double *alpha = malloc(sizeof(double) * (size_t)T * (size_t)S);
    double *beta = malloc(sizeof(double) * (size_t)T * (size_t)S);
    double *occupancy = malloc(sizeof(double) * (size_t)A);
    for (int t = 0; t < T; t++) {
        double top = -INFINITY, sum = 0;
        for (int a = 0; a < A; a++) top = fmax(top, x[(int64_t)t * xs[0] + (int64_t)a * xs[2]]);
        for (int a = 0; a < A; a++) sum += exp((double)x[(int64_t)t * xs[0] + (int64_t)a * xs[2]] - top);
        for (int a = 0; a < A; a++) {
            double v = x[(int64_t)t * xs[0] + (int64_t)a * xs[2]];
            logy[(int64_t)t * A + a] = log(norm ? (float)(exp(v - top) / sum) : v);
        }
    }
#define LABEL(s) ((s) % 2 ? labels[(s) / 2] : 0)
#define SKIPS(s) ((s) > 1 && (s) % 2 && labels[(s) / 2] != labels[(s) / 2 - 1])
    for (int t = 0; t < T; t++)
        for (int s = 0; s < S; s++) {
            double v = -INFINITY;
            if (t == 0) v = s < 2 ? 0 : -INFINITY;
            else {
                const double *before = alpha + (int64_t)(t - 1) * S;
                v = before[s];
                if (s > 0) v = log_add(v, before[s - 1]);
                if (SKIPS(s)) v = log_add(v, before[s - 2]);
            }
            alpha[(int64_t)t * S + s] = v + logy[(int64_t)t * A + LABEL(s)];
        }
    for (int t = T - 1; t >= 0; t--)
        for (int s = S - 1; s >= 0; s--) {
            double v = -INFINITY;
            if (t == T - 1) v = s >= S - 2 ? 0 : -INFINITY;
            else {
                const double *after = beta + (int64_t)(t + 1) * S, *y = logy + (int64_t)(t + 1) * A;
                v = after[s] + y[LABEL(s)];
                if (s + 1 < S) v = log_add(v, after[s + 1] + y[LABEL(s + 1)]);
                if (s + 2 < S && SKIPS(s + 2)) v = log_add(v, after[s + 2] + y[LABEL(s + 2)]);
            }
            beta[(int64_t)t * S + s] = v;
        }
    double logp = log_add(alpha[(int64_t)(T - 1) * S + S - 1], alpha[(int64_t)(T - 1) * S + S - 2]);
    for (int t = 0; g && t < T; t++) {
        for (int a = 0; a < A; a++) occupancy[a] = 0;
        for (int s = 0; s < S; s++) {
            double v = alpha[(int64_t)t * S + s] + beta[(int64_t)t * S + s] - logp;
            if (v != -INFINITY) occupancy[LABEL(s)] += exp(v);
        }
        for (int a = 0; a < A; a++) {
            double ln = logy[(int64_t)t * A + a], y = exp(ln), of = occupancy[a];
            if (of > 0 && fabs(log(of) + logp + ln) < 3e-8) of = 0;
            g[(int64_t)t * gs[0] + (int64_t)a * gs[2]] = (float)(norm ? y - of : of > 0 ? -of / y : y);
        }
    }
    free(logy);
    free(alpha);
    free(beta);
    free(occupancy);
    return -logp;
}

static size_t needed(const object *probs, int longest, int gradients) {
    size_t states = (size_t)probs->dims[0] * (size_t)probs->dims[1] * (size_t)(2 * longest + 1);
    return 256 + states * sizeof(float) * (gradients ? 2 : 1);
}

static enum status refuse(object *handle, object *probs, object *grads, int algo, object *ctc, const char **why) {
    *why = "not alive";
    if (!known(handle, HANDLE) || !known(probs, TENSOR) || !known(ctc, CTC)) return NULL_POINTER;
    if (grads && !known(grads, TENSOR)) return NULL_POINTER;
    *why = "the device was lost";
    if (poisoned) return EXECUTION_FAILED;
    *why = "algo";
    if (algo != 0 && algo != 1) return NOT_SUPPORTED;
    *why = "nbDims != 3";
    if (probs->nb != 3) return BAD_PARAM;
    *why = "dimensions of probsDesc and gradientsDesc differ";
    if (grads && (grads->nb != 3 || memcmp(probs->dims, grads->dims, 3 * sizeof(int)))) return MISMATCH;
    *why = "CUDNN_DATA_FLOAT != dataType";
    if (probs->type || ctc->comp || (grads && grads->type)) return NOT_SUPPORTED;
    return SUCCESS;
}

static enum status refuse_lengths(const object *probs, const int *label_lengths, const int *input_lengths, int *longest,
                                  const char **why) {
    *longest = 0;
    *why = "NULL lengths";
    if (!label_lengths || !input_lengths) return BAD_PARAM;
    for (int n = 0; n < probs->dims[1]; n++) {
        *why = "inputLengths";
        if (input_lengths[n] < 0 || input_lengths[n] > probs->dims[0]) return BAD_PARAM;
        *why = "labelLengths";
        if (label_lengths[n] < 0) return BAD_PARAM;
        *why = "labelLengths[i] >= 256";
        if (label_lengths[n] >= 256) return NOT_SUPPORTED;
        if (label_lengths[n] > *longest) *longest = label_lengths[n];
    }
    return SUCCESS;
}

/* The batch, once all is known to be right. `longest` < 0: no limit (the host call). */
static enum status run(const object *probs, const float *x, const int *labels, const int *label_lengths,
                       const int *input_lengths, float *costs, const object *grads, float *g, const object *ctc,
                       int longest) {
    int T = probs->dims[0], A = probs->dims[2];
    for (int n = 0; n < probs->dims[1]; labels += label_lengths[n], n++) {
        int L = label_lengths[n], Tn = input_lengths[n], repeats = 0;
        int bad = L < 0 || Tn < 0 || Tn > T || (longest >= 0 && L > longest);
        for (int i = 0; !bad && i < L; i++) {
            bad = labels[i] < 1 || labels[i] >= A;
            if (i && labels[i] == labels[i - 1]) repeats++;
        }
        if (bad) { poisoned = 1; return EXECUTION_FAILED; } /* read or written outside of the buffers */
        if (L > Tn || Tn == 0) hazards++; /* said to have been an illegal access once, and no rule forbids it */
        const float *xn = x + (int64_t)n * probs->strides[1];
        float *gn = g ? g + (int64_t)n * grads->strides[1] : NULL;
        if (L == 0 || Tn == 0) { costs[n] = 0; continue; }
        if (L + repeats > Tn) {
            costs[n] = 0;
            for (int t = 0; gn && ctc->mode == 0 && t < Tn; t++)
                for (int a = 0; a < A; a++)
                    gn[(int64_t)t * grads->strides[0] + (int64_t)a * grads->strides[2]] = 0;
            continue;
        }
        const int *gs = grads ? grads->strides : NULL;
        costs[n] = (float)sample_loss(xn, probs->strides, gn, gs, Tn, A, labels, L, ctc->norm);
    }
    return SUCCESS;
}

static void put_call(object *handle, object *probs, object *grads, int algo, object *ctc) {
    put_object("handle", handle);
    put_pointer("stream", handle ? handle->stream : NULL);
    put_object("probsDesc", probs);
    put_object("gradientsDesc", grads);
    put_int("algo", algo);
    put_object("ctcLossDesc", ctc);
}

static void put_host(const object *probs, const int *labels, const int *label_lengths, const int *input_lengths) {
    long N = probs && probs->nb == 3 ? probs->dims[1] : 0, total = 0;
    for (long n = 0; label_lengths && n < N; n++) total += label_lengths[n] > 0 ? label_lengths[n] : 0;
    put_ints("labels", labels, total);
    put_ints("labelLengths", label_lengths, N);
    put_ints("inputLengths", input_lengths, N);
}

EXPORT int cudnnGetCTCLossWorkspaceSize(object *handle, object *probs, object *grads, const int *labels,
                                        const int *label_lengths, const int *input_lengths, int algo, object *ctc,
                                        size_t *size) {
    const char *call = "cudnnGetCTCLossWorkspaceSize", *why = "";
    int longest = 0;
    begin(call);
    put_call(handle, probs, grads, algo, ctc);
    put_host(probs, labels, label_lengths, input_lengths);
    FAIL_ON_DEMAND(call);
    enum status status = refuse(handle, probs, grads, algo, ctc, &why);
    if (!status) status = refuse_lengths(probs, label_lengths, input_lengths, &longest, &why);
    if (status) return finish(call, status, why);
    *size = needed(probs, longest, grads != NULL);
    put_int("size", (long long)*size);
    return finish(call, SUCCESS, "");
}

#ifdef FAKE_CUDA /* memory and streams are those of tests/fake_cuda: see there */
void fake_cuda_open(void *stream);
void fake_cuda_close(void);
void fake_cuda_put(void *stream, void (*work)(void *), void *argument);

struct later {
    object probs, grads, ctc;
    const float *x;
    const int *labels, *label_lengths, *input_lengths;
    float *costs, *g;
};

/* On the stream, once more for each launch of a graph. */
static void run_later(void *argument) {
    const struct later *it = argument;
    if (run(&it->probs, it->x, it->labels, it->label_lengths, it->input_lengths, it->costs, &it->grads, it->g, &it->ctc,
            it->ctc.longest)) {
        fprintf(stderr, "fake cuDNN: out of range on the stream\n");
        abort();
    }
}
#endif

static int loss(const char *call, object *handle, object *probs, const void *x, const int *labels,
                const int *label_lengths, const int *input_lengths, void *costs, object *grads, void *g, int algo,
                object *ctc, void *workspace, size_t size, int on_device) {
    const char *why = "";
    int longest = 0;
    begin(call);
    put_call(handle, probs, grads, algo, ctc);
#ifdef FAKE_CUDA
    if (!on_device) put_host(probs, labels, label_lengths, input_lengths);
#else
    put_host(probs, labels, label_lengths, input_lengths);
#endif
    put_pointer("probs", x);
    put_pointer("costs", costs);
    put_pointer("gradients", g);
    put_pointer("workspace", workspace);
    put_int("workSpaceSizeInBytes", (long long)size);
    FAIL_ON_DEMAND(call);
    enum status status = refuse(handle, probs, grads, algo, ctc, &why);
    if (!status && !on_device) status = refuse_lengths(probs, label_lengths, input_lengths, &longest, &why);
    if (!status && on_device) {
        longest = ctc->longest;
        if (longest >= 256 || longest <= 0) { status = NOT_SUPPORTED; why = "maxLabelLength"; }
    }
    if (!status && (!x || !costs || !labels || (g && !grads))) { status = NULL_POINTER; why = "NULL pointer"; }
    if (!status && size < needed(probs, longest, grads != NULL)) { status = TOO_SMALL; why = "workSpaceSizeInBytes"; }
    if (!status && !workspace) { status = NULL_POINTER; why = "__null == workspace"; }
    if (status) return finish(call, status, why);
#ifdef FAKE_CUDA
    if (on_device) {
        struct later *it = calloc(1, sizeof *it); /* a graph keeps it */
        *it = (struct later){*probs, grads ? *grads : *probs, *ctc, x, labels, label_lengths, input_lengths, costs, g};
        fake_cuda_put(handle->stream, run_later, it);
        return finish(call, SUCCESS, "");
    }
    fake_cuda_open(handle->stream);
#endif
    memset(workspace, 0xA5, needed(probs, longest, grads != NULL)); /* it must all be there */
    status = run(probs, x, labels, label_lengths, input_lengths, costs, grads, g, ctc, on_device ? longest : -1);
#ifdef FAKE_CUDA
    fake_cuda_close();
#endif
    return finish(call, status, "the device was lost");
}

EXPORT int cudnnCTCLoss(object *handle, object *probs, const void *x, const int *labels, const int *label_lengths,
                        const int *input_lengths, void *costs, object *grads, void *g, int algo, object *ctc,
                        void *workspace, size_t size) {
    return loss("cudnnCTCLoss", handle, probs, x, labels, label_lengths, input_lengths, costs, grads, g, algo, ctc,
                workspace, size, 0);
}

EXPORT int cudnnGetCTCLossWorkspaceSize_v8(object *handle, int algo, object *ctc, object *probs, object *grads,
                                           size_t *size) {
    const char *call = "cudnnGetCTCLossWorkspaceSize_v8", *why = "";
    begin(call);
    put_call(handle, probs, grads, algo, ctc);
    FAIL_ON_DEMAND(call);
    enum status status = refuse(handle, probs, grads, algo, ctc, &why);
    if (!status && (ctc->longest >= 256 || ctc->longest <= 0)) { status = NOT_SUPPORTED; why = "maxLabelLength"; }
    if (status) return finish(call, status, why);
    *size = needed(probs, ctc->longest, grads != NULL);
    put_int("size", (long long)*size);
    return finish(call, SUCCESS, "");
}

EXPORT int cudnnCTCLoss_v8(object *handle, int algo, object *ctc, object *probs, const void *x, const int *labels,
                           const int *label_lengths, const int *input_lengths, void *costs, object *grads, void *g,
                           size_t size, void *workspace) {
    return loss("cudnnCTCLoss_v8", handle, probs, x, labels, label_lengths, input_lengths, costs, grads, g, algo, ctc,
                workspace, size, 1);
}
