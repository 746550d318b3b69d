/* A libcudnn for tests: the symbols that ctcbind uses, on host memory, with no GPU.
 *
 * It does what is known of the real one (cuDNN 8.5 to 9.28), its oddities included: a sample that does not fit
 * costs 0, one without labels costs 0, gradients past an input length are not written, 256 labels are
 * NOT_SUPPORTED, the statuses are numbered by version, a NOT_SUPPORTED leaves no last error string. It counts what
 * is alive, writes down every call, checks the workspace, and fails a call on demand. What is said to end the CUDA
 * context on a real device (a label out of range) makes every later call fail here, and at once. Where nothing is known
 * (maxLabelLength of 0, what the other algorithm takes beyond 255 labels), it refuses, so that nothing can rely on it.
 * It works when it is called, and never later: what a real one does on a stream, it cannot show, but with FAKE_CUDA,
 * for which see tests/fake_cuda.
 *
 * Build flavours: FAKE_V8 leaves out what came with 9.0 and has what went with it; FAKE_SHIM aborts, as the real
 * main file does, when it is called while the first of its parts is not loaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#ifdef FAKE_V8
#define DEFAULT_VERSION 8500
#define FIRST_PART "libcudnn_ops_infer.so.8"
#else
#define DEFAULT_VERSION 92800
#define FIRST_PART "libcudnn_graph.so.9"
#endif

/* Statuses: one name, two numbers. ------------------------------------------------------------------------------ */

enum status { SUCCESS, NOT_INITIALIZED, BAD_PARAM, NULL_POINTER, TOO_SMALL, MISMATCH, NOT_SUPPORTED, ALLOC_FAILED,
              EXECUTION_FAILED, STATUSES };

static const struct { int v8, v9; const char *name8, *name9; } numbers[STATUSES] = {
    {0, 0, "SUCCESS", "SUCCESS"},
    {1, 1001, "NOT_INITIALIZED", "NOT_INITIALIZED"},
    {3, 2000, "BAD_PARAM", "BAD_PARAM"},
    {3, 2002, "BAD_PARAM", "BAD_PARAM_NULL_POINTER"},
    {3, 2006, "BAD_PARAM", "BAD_PARAM_SIZE_INSUFFICIENT"},
    {3, 2008, "BAD_PARAM", "BAD_PARAM_SHAPE_MISMATCH"},
    {9, 3000, "NOT_SUPPORTED", "NOT_SUPPORTED"},
    {2, 4003, "ALLOC_FAILED", "INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    {8, 5000, "EXECUTION_FAILED", "EXECUTION_FAILED"},
};

/* State --------------------------------------------------------------------------------------------------------- */

enum kind { HANDLE, TENSOR, CTC, KINDS };
static const char *const kind_names[KINDS] = {"handle", "tensor", "ctcloss"};

typedef struct object {
    enum kind kind;
    int id, alive;
    void *stream;                            /* HANDLE */
    int type, nb, dims[8], strides[8];       /* TENSOR */
    int comp, norm, mode, longest;           /* CTC */
    struct object *next;
} object;

typedef struct { unsigned version; int status; unsigned sec, usec, delta; void *handle, *stream;
                 unsigned long long pid, tid; int device; int reserved[15]; } debug;
typedef void (*callback)(int severity, void *udata, const debug *dbg, const char *msg);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static object *objects;
static int ids;
static long live[KINDS];
static long hazards, stray, poisoned;
static size_t version_number;
static char *text; /* the log: one JSON object a line */
static size_t text_size, text_room;
static char line[65536];
static size_t line_size;
static char fail_call[64];
static long fail_in, fail_times;
static int fail_status;
static unsigned mask;
static void *udata;
static callback listener;
static __thread char last_error[1024];

static size_t version(void) {
    if (!version_number) {
        const char *wanted = getenv("FAKE_CUDNN_VERSION");
        version_number = wanted && *wanted ? (size_t)strtoul(wanted, NULL, 10) : DEFAULT_VERSION;
    }
    return version_number;
}

static int number(enum status status) { return version() >= 90000 ? numbers[status].v9 : numbers[status].v8; }

/* Writing a call down, failing it on demand, telling the listener. ----------------------------------------------- */

static void put(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int count = vsnprintf(line + line_size, sizeof line - line_size, format, rest);
    va_end(rest);
    if (count > 0 && line_size + (size_t)count < sizeof line) line_size += (size_t)count;
}

static void put_ints(const char *key, const int *values, long count) {
    put(",\"%s\":", key);
    if (!values) { put("null"); return; }
    put("[");
    for (long i = 0; i < count; i++) put(i ? ",%d" : "%d", values[i]);
    put("]");
}

static void put_pointer(const char *key, const void *value) {
    put(",\"%s\":%llu", key, (unsigned long long)(uintptr_t)value);
}

static void put_int(const char *key, long long value) { put(",\"%s\":%lld", key, value); }

static void put_object(const char *key, const object *thing) {
    for (const object *each = objects; each; each = each->next)
        if (each == thing) { put_int(key, each->id); return; }
    put(thing ? ",\"%s\":-1" : ",\"%s\":0", key);
}

static void begin(const char *call) {
    pthread_mutex_lock(&lock);
    line_size = 0;
    put("{\"call\":\"%s\"", call);
}

/* Whether this call is the one to fail; FAKE_CUDNN_FAIL=call:nth:status does it from outside the process. */
static int injected(const char *call, int *status) {
    static int read_environment;
    if (!read_environment) {
        read_environment = 1;
        const char *wanted = getenv("FAKE_CUDNN_FAIL");
        if (wanted && !fail_times && sscanf(wanted, "%63[^:]:%ld:%d", fail_call, &fail_in, &fail_status) == 3)
            fail_times = 1;
    }
    if (!fail_times || (*fail_call && strcmp(fail_call, call))) return 0;
    if (--fail_in > 0) return 0;
    fail_times--;
    *status = fail_status;
    return 1;
}

static int finish_with(const char *call, int status, const char *name, int severity, const char *reason) {
    put(",\"status\":%d}\n", status);
    if (text_size + line_size + 1 > text_room) {
        text_room = (text_size + line_size + 1) * 2;
        text = realloc(text, text_room);
    }
    memcpy(text + text_size, line, line_size);
    text_size += line_size;
    text[text_size] = 0;
    const char *path = getenv("FAKE_CUDNN_LOG");
    if (path && *path) {
        FILE *file = fopen(path, "a");
        if (file) { fwrite(line, 1, line_size, file); fclose(file); }
    }
    callback told = NULL;
    void *with = udata;
    if (status && (mask >> severity & 1)) told = listener;
    int to_stderr = status && severity == 1 && (mask >> severity & 1) && !listener;
    pthread_mutex_unlock(&lock);
    if (!status) return 0;
    if (severity == 1 && version() >= 90000) snprintf(last_error, sizeof last_error, "%s", reason);
    char message[2048];
    int count = snprintf(message, sizeof message - 2,
                         "CuDNN (v%zu) function %s() called:%c        %s: CUDNN_STATUS_%s; Reason: %s", version(), call,
                         0, severity == 1 ? "Error" : "Warning", name, reason);
    message[count] = message[count + 1] = 0;
    if (to_stderr) fprintf(stderr, "E! %s\n", message + strlen(message) + 1);
    if (told) {
        debug dbg = {(unsigned)version(), status, 1, 2, 3, NULL, NULL, 4, 5, 6, {0}};
        told(severity, with, &dbg, message);
    }
    return status;
}

static int finish(const char *call, enum status status, const char *reason) {
    const char *name = version() >= 90000 ? numbers[status].name9 : numbers[status].name8;
    return finish_with(call, number(status), name, status == NOT_SUPPORTED ? 2 : 1, reason);
}

static int finish_forced(const char *call, int status) {
    int unsupported = version() >= 90000 ? status / 1000 == 3 : status == 9;
    return finish_with(call, status, "FORCED", unsupported ? 2 : 1, "failed on demand");
}

#define FAIL_ON_DEMAND(call)                                                                                        \
    do {                                                                                                            \
        int forced_;                                                                                                \
        if (injected(call, &forced_)) return finish_forced(call, forced_);                                          \
    } while (0)

/* Objects ------------------------------------------------------------------------------------------------------- */

static object *known(object *thing, enum kind kind) {
    for (object *each = objects; each; each = each->next)
        if (each == thing && each->kind == kind && each->alive) return each;
    stray++; /* NULL, freed or of another kind: a real library would read it all the same */
    return NULL;
}

static int create(const char *call, enum kind kind, object **out) {
    begin(call);
    FAIL_ON_DEMAND(call);
    if (!out) return finish(call, BAD_PARAM, "__null == out");
    object *made = calloc(1, sizeof *made);
    made->kind = kind;
    made->id = ++ids;
    made->alive = 1;
    made->next = objects;
    objects = *out = made;
    live[kind]++;
    put_int("made", made->id);
    return finish(call, SUCCESS, "");
}

static int destroy(const char *call, enum kind kind, object *thing) {
    begin(call);
    put_object("thing", thing);
    FAIL_ON_DEMAND(call);
    if (!known(thing, kind)) return finish(call, BAD_PARAM, "not alive");
    thing->alive = 0; /* its memory stays, so that a use of it is seen */
    live[kind]--;
    return finish(call, SUCCESS, "");
}

EXPORT int cudnnCreate(object **out) { return create("cudnnCreate", HANDLE, out); }
EXPORT int cudnnDestroy(object *it) { return destroy("cudnnDestroy", HANDLE, it); }
EXPORT int cudnnCreateTensorDescriptor(object **out) { return create("cudnnCreateTensorDescriptor", TENSOR, out); }
EXPORT int cudnnDestroyTensorDescriptor(object *it) { return destroy("cudnnDestroyTensorDescriptor", TENSOR, it); }
EXPORT int cudnnCreateCTCLossDescriptor(object **out) { return create("cudnnCreateCTCLossDescriptor", CTC, out); }
EXPORT int cudnnDestroyCTCLossDescriptor(object *it) { return destroy("cudnnDestroyCTCLossDescriptor", CTC, it); }

EXPORT int cudnnSetStream(object *handle, void *stream) {
    begin("cudnnSetStream");
    put_object("handle", handle);
    put_pointer("stream", stream);
    FAIL_ON_DEMAND("cudnnSetStream");
    if (!known(handle, HANDLE)) return finish("cudnnSetStream", BAD_PARAM, "handle");
    handle->stream = stream;
    return finish("cudnnSetStream", SUCCESS, "");
}

EXPORT int cudnnGetStream(object *handle, void **stream) {
    begin("cudnnGetStream");
    put_object("handle", handle);
    FAIL_ON_DEMAND("cudnnGetStream");
    if (!known(handle, HANDLE)) return finish("cudnnGetStream", BAD_PARAM, "handle");
    *stream = handle->stream;
    return finish("cudnnGetStream", SUCCESS, "");
}

EXPORT int cudnnSetTensorNdDescriptor(object *desc, int type, int nb, const int *dims, const int *strides) {
    const char *call = "cudnnSetTensorNdDescriptor";
    begin(call);
    put_object("desc", desc);
    put_int("type", type);
    put_ints("dims", dims, nb);
    put_ints("strides", strides, nb);
    FAIL_ON_DEMAND(call);
    if (!known(desc, TENSOR)) return finish(call, BAD_PARAM, "__null == tensorDesc");
    if (nb < 3 || nb > 8) return finish(call, BAD_PARAM, "nbDims <= 2");
    int64_t span = 1;
    for (int i = 0; i < nb; i++) {
        if (dims[i] <= 0) return finish(call, BAD_PARAM, "dimA[i] <= 0");
        if (strides[i] == 0 && dims[i] != 1) return finish(call, BAD_PARAM, "(strideA[i] == 0) && (dimA[i] != 1)");
        span += (int64_t)(dims[i] - 1) * llabs(strides[i]);
    }
    if (span > INT32_MAX) return finish(call, NOT_SUPPORTED, "!allow_large_tensor && tensorDesc->m_is_large_tensor");
    desc->type = type;
    desc->nb = nb;
    memcpy(desc->dims, dims, (size_t)nb * sizeof *dims);
    memcpy(desc->strides, strides, (size_t)nb * sizeof *strides);
    return finish(call, SUCCESS, "");
}

EXPORT int cudnnGetTensorNdDescriptor(object *desc, int wanted, int *type, int *nb, int *dims, int *strides) {
    begin("cudnnGetTensorNdDescriptor");
    put_object("desc", desc);
    FAIL_ON_DEMAND("cudnnGetTensorNdDescriptor");
    if (!known(desc, TENSOR)) return finish("cudnnGetTensorNdDescriptor", BAD_PARAM, "__null == tensorDesc");
    *type = desc->type;
    *nb = desc->nb;
    for (int i = 0; i < desc->nb && i < wanted; i++) { dims[i] = desc->dims[i]; strides[i] = desc->strides[i]; }
    return finish("cudnnGetTensorNdDescriptor", SUCCESS, "");
}

EXPORT int cudnnGetTensorSizeInBytes(object *desc, size_t *size) {
    begin("cudnnGetTensorSizeInBytes");
    put_object("desc", desc);
    FAIL_ON_DEMAND("cudnnGetTensorSizeInBytes");
    if (!known(desc, TENSOR)) return finish("cudnnGetTensorSizeInBytes", BAD_PARAM, "__null == tensorDesc");
    int64_t span = desc->nb ? 1 : 0;
    for (int i = 0; i < desc->nb; i++) span += (int64_t)(desc->dims[i] - 1) * llabs(desc->strides[i]);
    *size = (size_t)span * (desc->type == 1 ? 8 : 4);
    return finish("cudnnGetTensorSizeInBytes", SUCCESS, "");
}

static int set_ctc(const char *call, object *desc, int comp, int norm, int mode, int longest) {
    begin(call);
    put_object("desc", desc);
    put_int("compType", comp);
    put_int("normMode", norm);
    put_int("gradMode", mode);
    put_int("maxLabelLength", longest);
    FAIL_ON_DEMAND(call);
    if (!known(desc, CTC)) return finish(call, BAD_PARAM, "__null == ctcLossDesc");
    if (comp != 0 && comp != 1)
        return finish(call, NOT_SUPPORTED, "CUDNN_DATA_FLOAT != compType && CUDNN_DATA_DOUBLE != compType");
    desc->comp = comp;
    desc->norm = norm;
    desc->mode = mode;
    desc->longest = longest;
    return finish(call, SUCCESS, "");
}

static int get_ctc(const char *call, object *desc, int *comp, int *norm, int *mode, int *longest) {
    begin(call);
    put_object("desc", desc);
    FAIL_ON_DEMAND(call);
    if (!known(desc, CTC)) return finish(call, BAD_PARAM, "__null == ctcLossDesc");
    *comp = desc->comp;
    if (norm) *norm = desc->norm;
    if (mode) *mode = desc->mode;
    if (longest) *longest = desc->longest;
    return finish(call, SUCCESS, "");
}

EXPORT int cudnnSetCTCLossDescriptor(object *d, int c) { return set_ctc("cudnnSetCTCLossDescriptor", d, c, 0, 0, 0); }
EXPORT int cudnnSetCTCLossDescriptorEx(object *d, int c, int n, int m) {
    return set_ctc("cudnnSetCTCLossDescriptorEx", d, c, n, m, 0);
}
EXPORT int cudnnSetCTCLossDescriptor_v8(object *d, int c, int n, int m, int l) {
    return set_ctc("cudnnSetCTCLossDescriptor_v8", d, c, n, m, l);
}
EXPORT int cudnnGetCTCLossDescriptor(object *d, int *c) {
    return get_ctc("cudnnGetCTCLossDescriptor", d, c, NULL, NULL, NULL);
}
EXPORT int cudnnGetCTCLossDescriptorEx(object *d, int *c, int *n, int *m) {
    return get_ctc("cudnnGetCTCLossDescriptorEx", d, c, n, m, NULL);
}
EXPORT int cudnnGetCTCLossDescriptor_v8(object *d, int *c, int *n, int *m, int *l) {
    return get_ctc("cudnnGetCTCLossDescriptor_v8", d, c, n, m, l);
}
#ifndef FAKE_V8
EXPORT int cudnnSetCTCLossDescriptor_v9(object *d, int c, int n, int m, int l) {
    return set_ctc("cudnnSetCTCLossDescriptor_v9", d, c, n, m, l);
}
EXPORT int cudnnGetCTCLossDescriptor_v9(object *d, int *c, int *n, int *m, int *l) {
    return get_ctc("cudnnGetCTCLossDescriptor_v9", d, c, n, m, l);
}
#endif

/* The library ---------------------------------------------------------------------------------------------------- */

EXPORT size_t cudnnGetVersion(void) {
#ifdef FAKE_SHIM
    if (!dlopen(FIRST_PART, RTLD_NOW | RTLD_NOLOAD)) {
        fprintf(stderr, "Invalid handle. Cannot load symbol cudnnGetVersion\n");
        abort();
    }
#endif
    return version();
}

EXPORT size_t cudnnGetCudartVersion(void) { return 12090; }

EXPORT const char *cudnnGetErrorString(int status) {
    static char name[64];
    for (int i = 0; i < STATUSES; i++)
        if (number((enum status)i) == status) {
            snprintf(name, sizeof name, "CUDNN_STATUS_%s", version() >= 90000 ? numbers[i].name9 : numbers[i].name8);
            return name;
        }
    return "CUDNN_UNKNOWN_STATUS";
}

EXPORT int cudnnGetProperty(int type, int *value) {
    begin("cudnnGetProperty");
    FAIL_ON_DEMAND("cudnnGetProperty");
    int thousand = version() >= 90000 ? 10000 : 1000, v = (int)version();
    if (type < 0 || type > 2) return finish("cudnnGetProperty", BAD_PARAM, "type");
    *value = type == 0 ? v / thousand : type == 1 ? v % thousand / 100 : v % 100;
    return finish("cudnnGetProperty", SUCCESS, "");
}

/* From 9.0 on a mask of 0 is taken for errors alone, as seen of the real one. */
EXPORT int cudnnSetCallback(unsigned wanted, void *with, callback fptr) {
    int forced;
    if (*fail_call && injected("cudnnSetCallback", &forced)) return forced;
    mask = version() >= 90000 ? wanted | 2 : wanted;
    udata = with;
    listener = fptr;
    return 0;
}

EXPORT int cudnnGetCallback(unsigned *m, void **u, callback *f) {
    *m = mask;
    *u = udata;
    *f = listener;
    return 0;
}

static int version_check(const char *call) {
    begin(call);
    FAIL_ON_DEMAND(call);
    return finish(call, SUCCESS, "");
}

#ifdef FAKE_V8
EXPORT int cudnnOpsInferVersionCheck(void) { return version_check("cudnnOpsInferVersionCheck"); }
EXPORT int cudnnOpsTrainVersionCheck(void) { return version_check("cudnnOpsTrainVersionCheck"); }
EXPORT int cudnnAdvInferVersionCheck(void) { return version_check("cudnnAdvInferVersionCheck"); }
EXPORT int cudnnAdvTrainVersionCheck(void) { return version_check("cudnnAdvTrainVersionCheck"); }
#else
EXPORT int cudnnGraphVersionCheck(void) { return version_check("cudnnGraphVersionCheck"); }
EXPORT int cudnnOpsVersionCheck(void) { return version_check("cudnnOpsVersionCheck"); }
EXPORT int cudnnAdvVersionCheck(void) { return version_check("cudnnAdvVersionCheck"); }
EXPORT size_t cudnnGetMaxDeviceVersion(void) { return 1210; }
EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
    strncpy(message, last_error, size); /* 9.0.0 does not end what it cuts */
    *last_error = 0;
}
#endif

/* The loss ------------------------------------------------------------------------------------------------------- */

static double log_add(double a, double b) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == -INFINITY) return b;
    if (b == -INFINITY) return a;
    double m = a > b ? a : b;
    return m + log1p(exp((a < b ? a : b) - m));
}

/* -ln p of one sample; gradient rows t < T get y - (occupancy of their labels). The recursion is in log space, but
 * from softmax values in float32, as the real one holds them: a probability below its range is lost. */
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
        for (int a = 0; a < A; a++)
            g[(int64_t)t * gs[0] + (int64_t)a * gs[2]] = (float)(exp(logy[(int64_t)t * A + a]) - occupancy[a]);
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

/* For the tests -------------------------------------------------------------------------------------------------- */

EXPORT void fake_reset(size_t wanted_version) {
    pthread_mutex_lock(&lock);
    for (object *each = objects; each; each = each->next) each->alive = 0;
    memset(live, 0, sizeof live);
    hazards = stray = poisoned = 0;
    version_number = wanted_version;
    text_size = 0;
    if (text) *text = 0;
    fail_times = 0;
    *fail_call = 0;
    mask = 0;
    listener = NULL;
    *last_error = 0;
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_fail(const char *call, long nth, long times, int status) {
    pthread_mutex_lock(&lock);
    snprintf(fail_call, sizeof fail_call, "%s", call ? call : "");
    fail_in = nth;
    fail_times = times;
    fail_status = status;
    pthread_mutex_unlock(&lock);
}

EXPORT long fake_live(const char *kind) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kind_names[i], kind)) return live[i];
    return -1;
}

EXPORT const char *fake_log(void) { return text ? text : ""; }
EXPORT long fake_hazards(void) { return hazards; }
EXPORT long fake_stray(void) { return stray; }
EXPORT long fake_poisoned(void) { return poisoned; }
