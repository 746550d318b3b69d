#define _DEFAULT_SOURCE /* for madvise under -std=c11 */
#include "xla.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "ctcbind.h"
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

static atomic_int threads = 1;

void ctcbind_xla_threads(int32_t count) { atomic_store_explicit(&threads, count, memory_order_relaxed); }

typedef struct {
    const xla_api *api;
    const xla_buffer *logits, *frame_paddings, *labels, *label_paddings;
    xla_buffer *losses, *grad; /* the last may be NULL */
    int64_t N, T, C, L;
    int32_t blank;
    int32_t divided; /* this is one device's part of a batch */
    size_t size; /* bytes of a logit */
    /* made here */
    int32_t *packed, *label_lengths, *input_lengths;
    int moved; /* frames that count do not all come first */
} call_t;

static void *refuse(const call_t *c, int code, const char *format, ...)
{
    char message[256];
    xla_error error = {.struct_size = sizeof error, .message = message, .code = code};
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    /* Others wait for this one's results, and XLA ends the process in the end without a word of this. */
    if (c->divided && code == XLA_INVALID_ARGUMENT)
        fprintf(stderr, "ctcbind.jax: %s (samples are counted by device)\n", message);
    return c->api->create_error(&error);
}

static const xla_buffer *buffer(const xla_values *values, int64_t i, int64_t rank, int dtype)
{
    const xla_buffer *found = values->values[i];
    return values->types[i] == XLA_BUFFER && found->rank == rank && found->dtype == dtype ? found : NULL;
}

static int same_dims(const xla_buffer *a, const xla_buffer *b, int64_t count)
{
    return memcmp(a->dims, b->dims, (size_t)count * sizeof *a->dims) == 0;
}

/* Whether the call is what ctcbind.jax makes of a batch: the shapes have been looked at when it was traced. */
static int decode(const xla_call *x, call_t *c)
{
    const xla_values *in = &x->arguments, *out = &x->results;
    if (in->size != 4 || (out->size != 1 && out->size != 2)) return 0;
    for (int64_t i = 0; i < in->size; i++)
        if (in->types[i] != XLA_BUFFER) return 0;
    c->logits = in->values[0];
    int64_t rank = c->logits->rank, front = rank - 2;
    int dtype = c->logits->dtype;
    if (rank < 3 || (dtype != XLA_FLOAT32 && dtype != XLA_FLOAT64)) return 0;
    c->size = dtype == XLA_FLOAT64 ? 8 : 4;
    c->frame_paddings = buffer(in, 1, rank - 1, XLA_FLOAT32);
    c->labels = buffer(in, 2, rank - 1, XLA_INT32);
    c->label_paddings = buffer(in, 3, rank - 1, XLA_FLOAT32);
    c->losses = (xla_buffer *)buffer(out, 0, front, dtype);
    c->grad = out->size == 2 ? (xla_buffer *)buffer(out, 1, rank, dtype) : NULL;
    if (!c->frame_paddings || !c->labels || !c->label_paddings || !c->losses || (out->size == 2 && !c->grad)) return 0;
    if (!same_dims(c->logits, c->frame_paddings, rank - 1) || !same_dims(c->logits, c->losses, front)) return 0;
    if (!same_dims(c->logits, c->labels, front) || !same_dims(c->labels, c->label_paddings, rank - 1)) return 0;
    if (c->grad && !same_dims(c->logits, c->grad, rank)) return 0;

    const int64_t *dims = c->logits->dims;
    c->N = 1;
    for (int64_t i = 0; i < front; i++) c->N *= dims[i];
    c->T = dims[front];
    c->C = dims[front + 1];
    c->L = c->labels->dims[front];
    if (c->N >= INT32_MAX || c->T >= INT32_MAX || c->C >= INT32_MAX || c->L >= INT32_MAX / 2) return 0;

    c->blank = -1;
    for (int64_t i = 0; i < x->attributes.size; i++) {
        const xla_span *name = x->attributes.names[i];
        const xla_scalar *value = x->attributes.values[i];
        if (x->attributes.types[i] != XLA_SCALAR || value->dtype != XLA_INT32) continue;
        if (name->len == 5 && !memcmp(name->ptr, "blank", 5)) c->blank = *(const int32_t *)value->value;
        if (name->len == 7 && !memcmp(name->ptr, "divided", 7)) c->divided = *(const int32_t *)value->value;
    }
    return c->blank >= 0 && c->blank < c->C;
}

/* Counts the zeros of each row of paddings, which are 0 or 1. *mixed: the first row in which a 0 follows a 1, and
 * *at where that 1 stands; -1 if there is none. */
static void *count(const call_t *c, const char *name, const float *paddings, int64_t width, int32_t *lengths,
                   int64_t *mixed, int64_t *at)
{
    *mixed = *at = -1;
    for (int64_t n = 0; n < c->N; n++) {
        const float *row = paddings + n * width;
        int32_t zeros = 0;
        for (int64_t i = 0; i < width; i++) {
            if (row[i] == 0) zeros++;
            else if (row[i] != 1)
                return refuse(c, XLA_INVALID_ARGUMENT,
                              isnan(row[i]) ? "InvalidInput: %s[%lld][%lld] is nan; it must be 0 or 1"
                                            : "InvalidInput: %s[%lld][%lld] is %.9g; it must be 0 or 1",
                              name, (long long)n, (long long)i, (double)row[i]);
            if (*mixed < 0 && i && row[i] == 0 && row[i - 1] == 1) {
                *mixed = n;
                *at = i - 1;
            }
        }
        lengths[n] = zeros;
    }
    return NULL;
}

static void *pack(const call_t *c)
{
    int32_t *to = c->packed;
    for (int64_t n = 0; n < c->N; n++)
        for (int32_t i = 0; i < c->label_lengths[n]; i++) {
            int32_t label = ((const int32_t *)c->labels->data)[n * c->L + i];
            if (label >= 0 && label < c->C && label != c->blank) {
                *to++ = label;
                continue;
            }
            if (label >= c->C)
                return refuse(c, XLA_INVALID_ARGUMENT,
                              "InvalidInput: labels[%lld][%d] is %d, but there are %lld classes (0..%lld), the "
                              "blank among them",
                              (long long)n, i, label, (long long)c->C, (long long)c->C - 1);
            return refuse(c, XLA_INVALID_ARGUMENT, "InvalidInput: labels[%lld][%d] is %d%s", (long long)n, i,
                          label,
                          label < 0 ? "; a label cannot be negative"
                                    : ", which is the blank; a target holds labels only");
        }
    return NULL;
}

/* Rows of a sample that count, to the front or back to where they were; there the others are 0. */
static void move_rows(const call_t *c, int64_t n, unsigned char *front, unsigned char *place, int back)
{
    const float *padded = (const float *)c->frame_paddings->data + n * c->T;
    size_t row = (size_t)c->C * c->size;
    for (int64_t t = 0; t < c->T; t++, place += row) {
        if (padded[t] != 0) {
            if (back) memset(place, 0, row);
            continue;
        }
        memcpy(back ? place : front, back ? front : place, row);
        front += row;
    }
}

/* XLA's memory for a result is new with each call, and its pages of 4 kB take several times as long to come as the
 * gradient itself. In pages of 2 MB they take a tenth; NumPy asks for them from 4 MB on. It is a hint, and may fail. */
static void ask_for_large_pages(void *start, size_t bytes)
{
#if defined __linux__ && defined MADV_HUGEPAGE
    if (bytes < (size_t)4 << 20) return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)start + page - 1) & ~(page - 1), last = ((uintptr_t)start + bytes) & ~(page - 1);
    madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)start;
    (void)bytes;
#endif
}

static void *run(const call_t *c, unsigned char *logits, unsigned char *grad)
{
    size_t sample = (size_t)c->T * (size_t)c->C * c->size;
    if (c->grad) ask_for_large_pages(c->grad->data, (size_t)c->N * sample);
    if (c->moved)
        for (int64_t n = 0; n < c->N; n++)
            move_rows(c, n, logits + (size_t)n * sample, (unsigned char *)c->logits->data + (size_t)n * sample, 0);
    int most = atomic_load_explicit(&threads, memory_order_relaxed);
    ctcbind_problem p = {
        .logits = c->moved ? logits : c->logits->data,
        .grad = !c->grad ? NULL : c->moved ? grad : c->grad->data,
        .losses = c->losses->data,
        .logits_t = c->C,
        .logits_n = c->T * c->C,
        .logits_c = 1,
        .grad_t = c->C,
        .grad_n = c->T * c->C,
        .grad_c = 1,
        .labels = c->packed,
        .label_lengths = c->label_lengths,
        .input_lengths = c->input_lengths,
        .T = (int32_t)c->T,
        .N = (int32_t)c->N,
        .C = (int32_t)c->C,
        .blank = c->blank,
        .dtype = c->size == 8 ? CTCBIND_FLOAT64 : CTCBIND_FLOAT32,
        .topology = CTCBIND_TOPOLOGY_CTC,
        .threads = most,
    };
    int status = ctcbind_loss(&p, NULL, 0);
    if (status == CTCBIND_NO_MEMORY) return refuse(c, XLA_RESOURCE_EXHAUSTED, "no memory for the workspace");
    if (status != CTCBIND_OK)
        return refuse(c, XLA_INTERNAL, "ctcbind_loss returned %d; is CTCBIND_ISA one of this machine's?", status);
    if (c->moved && c->grad)
        for (int64_t n = 0; n < c->N; n++)
            move_rows(c, n, grad + (size_t)n * sample, (unsigned char *)c->grad->data + (size_t)n * sample, 1);
    return NULL;
}

void *ctcbind_xla_loss(void *frame)
{
    const xla_call *x = frame;
    if (x->extensions && x->extensions->type == XLA_METADATA) {
        xla_metadata *metadata = ((xla_metadata_extension *)x->extensions)->metadata;
        /* What is used here is the same in all of major version 0. */
        metadata->version.major_version = 0;
        metadata->version.minor_version = x->api ? x->api->version.minor_version : 1;
        metadata->traits = 0;
        return NULL;
    }
    if (x->stage != XLA_EXECUTE) return NULL;
    call_t call = {.api = x->api}, *c = &call;
    if (!decode(x, c)) return refuse(c, XLA_INTERNAL, "ctcbind_loss was called with other arrays than its own");
    if (c->N == 0) return NULL;

    void *error = NULL;
    int64_t mixed, at;
    unsigned char *room = NULL;
    int32_t *integers = malloc((size_t)(c->N * (c->L + 2)) * sizeof *integers);
    if (!integers) return refuse(c, XLA_RESOURCE_EXHAUSTED, "no memory for the labels");
    c->label_lengths = integers;
    c->input_lengths = integers + c->N;
    c->packed = integers + 2 * c->N;
    error = count(c, "logit_paddings", c->frame_paddings->data, c->T, c->input_lengths, &mixed, &at);
    c->moved = mixed >= 0;
    if (!error) error = count(c, "label_paddings", c->label_paddings->data, c->L, c->label_lengths, &mixed, &at);
    if (!error && mixed >= 0)
        error = refuse(c, XLA_INVALID_ARGUMENT,
                       "InvalidInput: label_paddings[%lld][%lld] is 1 and a label follows it; the padding must come "
                       "last: pass 1 - label_paddings if 1 stands for labels",
                       (long long)mixed, (long long)at);
    if (!error) error = pack(c);
    if (!error && c->moved) {
        size_t bytes = (size_t)c->N * (size_t)c->T * (size_t)c->C * c->size;
        room = malloc(c->grad ? 2 * bytes : bytes);
        if (!room) error = refuse(c, XLA_RESOURCE_EXHAUSTED, "no memory to bring the frames that count together");
        if (room) error = run(c, room, c->grad ? room + bytes : NULL);
    } else if (!error) error = run(c, NULL, NULL);
    free(room);
    free(integers);
    return error;
}
