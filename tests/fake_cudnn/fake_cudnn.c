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
#include "fake_cudnn.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FAKE_V8
#define FIRST_PART "libcudnn_ops_infer.so.8"
#else
#define FIRST_PART "libcudnn_graph.so.9"
#endif

/* Objects ------------------------------------------------------------------------------------------------------- */

static const char *const kind_names[KINDS] = {"handle", "tensor", "ctcloss"};

object *objects;
static int ids;
static long live[KINDS], stray;

object *known(object *thing, enum kind kind) {
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

void forget_objects(void) {
    for (object *each = objects; each; each = each->next) each->alive = 0;
    memset(live, 0, sizeof live);
    stray = 0;
}

EXPORT long fake_live(const char *kind) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kind_names[i], kind)) return live[i];
    return -1;
}

EXPORT long fake_stray(void) { return stray; }

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
            snprintf(name, sizeof name, "CUDNN_STATUS_%s", name_of((enum status)i));
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
#endif
