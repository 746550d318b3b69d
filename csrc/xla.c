#define _DEFAULT_SOURCE /* for madvise under -std=c11 */
#include "xla.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "batch.h"
#include "ctcbind.h"
#include "flush.h"
#include "second_order.h"
#include "size.h"
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

static atomic_int threads = 1;

void ctcbind_xla_threads(int32_t count) { atomic_store_explicit(&threads, count, memory_order_relaxed); }

typedef struct {
    const xla_api *api;
    const xla_buffer *logits, *frame_paddings, *labels, *label_paddings;
    const xla_buffer *along;    /* of a product alone */
    xla_buffer *losses, *wide;  /* of a product no losses; the gradient, which may be NULL, or the product */
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
static int decode(const xla_call *x, call_t *c, int product)
{
    const xla_values *in = &x->arguments, *out = &x->results;
    int64_t losses = !product;
    if (in->size != (product ? 5 : 4) || (out->size != 1 && (product || out->size != 2))) return 0;
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
    if (!c->frame_paddings || !c->labels || !c->label_paddings) return 0;
    if (!same_dims(c->logits, c->frame_paddings, rank - 1)) return 0;
    if (!same_dims(c->logits, c->labels, front) || !same_dims(c->labels, c->label_paddings, rank - 1)) return 0;
    if (product) {
        c->along = buffer(in, 4, rank, dtype);
        if (!c->along || !same_dims(c->logits, c->along, rank)) return 0;
    } else {
        c->losses = (xla_buffer *)buffer(out, 0, front, dtype);
        if (!c->losses || !same_dims(c->logits, c->losses, front)) return 0;
    }
    if (out->size > losses) {
        c->wide = (xla_buffer *)buffer(out, losses, rank, dtype);
        if (!c->wide || !same_dims(c->logits, c->wide, rank)) return 0;
    }

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

static size_t sample_bytes(const call_t *c) { return (size_t)c->T * (size_t)c->C * c->size; }

static void *losses(const call_t *c, const void *logits, void *grad)
{
    ctcbind_problem p = {
        .logits = logits,
        .grad = grad,
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
        .threads = atomic_load_explicit(&threads, memory_order_relaxed),
    };
    int status = ctcbind_loss(&p, NULL, 0);
    if (status == CTCBIND_NO_MEMORY) return refuse(c, XLA_RESOURCE_EXHAUSTED, "no memory for the workspace");
    if (status != CTCBIND_OK)
        return refuse(c, XLA_INTERNAL, "ctcbind_loss returned %d; is CTCBIND_ISA one of this machine's?", status);
    return NULL;
}

/* Of fewer values a thread costs more than it saves; as in ctcbind/engines/native_samples.py. */
enum { WORTH_A_THREAD = 15000 };

static int32_t threads_for_product(const call_t *c)
{
    int64_t values = 0;
    for (int64_t n = 0; n < c->N; n++)
        values += c->input_lengths[n] * (2 * (int64_t)c->label_lengths[n] + 1 + c->C / 4);
    return values < WORTH_A_THREAD ? 1 : atomic_load_explicit(&threads, memory_order_relaxed);
}

static void *products(const call_t *c, const unsigned char *logits, const unsigned char *along, unsigned char *to)
{
    if (!strcmp(ctcbind_isa(), "none"))
        return refuse(c, XLA_INTERNAL, "there are no kernels here; is CTCBIND_ISA one of this machine's?");
    int32_t T = (int32_t)c->T, C = (int32_t)c->C, N = (int32_t)c->N;
    size_t sample = sample_bytes(c);
    int dtype = c->size == 8 ? CTCBIND_ROWS_FLOAT64 : CTCBIND_ROWS_FLOAT32;
    ctcbind_graph *graphs = calloc((size_t)N, sizeof *graphs);
    ctcbind_product *each = calloc((size_t)N, sizeof *each);
    void *error = NULL;
    if (!graphs || !each) error = refuse(c, XLA_RESOURCE_EXHAUSTED, "no memory for the samples");
    for (int32_t n = 0; n < N && !error; n++, logits += sample, along += sample, to += sample) {
        graphs[n].rows = (ctcbind_rows){.data = logits, .stride_t = C, .stride_c = 1, .C = C, .dtype = dtype};
        graphs[n].blank = c->blank;
        each[n].along = (ctcbind_rows){.data = along, .stride_t = C, .stride_c = 1, .T = T, .C = C, .dtype = dtype};
        each[n].out = (ctcbind_rows_out){.data = to, .stride_t = C, .stride_c = 1, .T = T, .C = C, .dtype = dtype};
    }
    if (!error) {
        ctcbind_set_labels(graphs, c->packed, c->label_lengths, c->input_lengths, N);
        unsigned mode = flush_nothing(); /* as on the other threads */
        ctcbind_products(graphs, each, N, threads_for_product(c), NULL);
        flush_end(mode);
    }
    for (int32_t n = 0; n < N && !error; n++)
        if (each[n].status == CTCBIND_ROWS_NO_MEMORY)
            error = refuse(c, XLA_RESOURCE_EXHAUSTED, "no memory for the product with the Hessian");
    free(graphs);
    free(each);
    return error;
}

/* The rows that count of all samples, from where they are in `whole` to the front, or back. */
static void move_samples(const call_t *c, unsigned char *front, void *whole, int back)
{
    size_t sample = sample_bytes(c);
    for (int64_t n = 0; n < c->N; n++)
        move_rows(c, n, front + (size_t)n * sample, (unsigned char *)whole + (size_t)n * sample, back);
}

static void *compute(const call_t *c)
{
    size_t batch = (size_t)c->N * sample_bytes(c);
    unsigned char *logits = c->logits->data, *along = c->along ? c->along->data : NULL;
    unsigned char *wide = c->wide ? c->wide->data : NULL, *room = NULL;
    if (wide) ask_for_large_pages(wide, batch);
    if (c->moved) {
        room = malloc(ctcbind_size((uint64_t)batch * (1 + !!along + !!wide)));
        if (!room) return refuse(c, XLA_RESOURCE_EXHAUSTED, "no memory to bring the frames that count together");
        logits = room;
        move_samples(c, logits, c->logits->data, 0);
        if (wide) wide = room + batch;
        if (along) move_samples(c, along = room + 2 * batch, c->along->data, 0);
    }
    void *error = along ? products(c, logits, along, wide) : losses(c, logits, wide);
    if (c->moved && wide && !error) move_samples(c, wide, c->wide->data, 1);
    free(room);
    return error;
}

static void *answer(void *frame, int product)
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
    if (!decode(x, c, product))
        return refuse(c, XLA_INTERNAL, "ctcbind_%s was called with other arrays than its own",
                      product ? "product" : "loss");
    if (c->N == 0) return NULL;

    void *error = NULL;
    int64_t mixed, at;
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
    if (!error) error = compute(c);
    free(integers);
    return error;
}

void *ctcbind_xla_loss(void *call) { return answer(call, 0); }
void *ctcbind_xla_product(void *call) { return answer(call, 1); }
