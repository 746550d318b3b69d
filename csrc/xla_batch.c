#define _DEFAULT_SOURCE /* for madvise under -std=c11 */
#include "xla_batch.h"

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

int32_t ctcbind_xla_thread_count(void) { return atomic_load_explicit(&threads, memory_order_relaxed); }

/* Of fewer values a thread costs more than it saves; as in ctcbind/engines/native_samples.py. */
enum { WORTH_A_THREAD = 15000 };

int32_t ctcbind_xla_threads_for(const ctcbind_xla_batch *b)
{
    int64_t values = 0;
    for (int64_t n = 0; n < b->N; n++)
        values += b->input_lengths[n] * (2 * (int64_t)b->label_lengths[n] + 1 + b->C / 4);
    return values < WORTH_A_THREAD ? 1 : ctcbind_xla_thread_count();
}

void *ctcbind_xla_refuse(const ctcbind_xla_batch *b, int code, const char *format, ...)
{
    char message[256];
    xla_error error = {.struct_size = sizeof error, .message = message, .code = code};
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    /* Others wait for this one's results, and XLA ends the process in the end without a word of this. */
    if (b->divided && code == XLA_INVALID_ARGUMENT)
        fprintf(stderr, "ctcbind.jax: %s (samples are counted by device)\n", message);
    return b->api->create_error(&error);
}

void *ctcbind_xla_without_kernels(const ctcbind_xla_batch *b)
{
    if (strcmp(ctcbind_isa(), "none")) return NULL;
    return ctcbind_xla_refuse(b, XLA_INTERNAL, "there are no kernels here; is CTCBIND_ISA one of this machine's?");
}

/* --- what is given --------------------------------------------------------------------------------------------- */

xla_buffer *ctcbind_xla_buffer(const xla_values *values, int64_t i, int64_t rank, int dtype)
{
    xla_buffer *found = values->values[i];
    return values->types[i] == XLA_BUFFER && found->rank == rank && found->dtype == dtype ? found : NULL;
}

const void *ctcbind_xla_option(const xla_attributes *options, const char *name, int dtype)
{
    size_t length = strlen(name);
    for (int64_t i = 0; i < options->size; i++) {
        const xla_span *own = options->names[i];
        const xla_scalar *value = options->values[i];
        if (options->types[i] != XLA_SCALAR || value->dtype != dtype) continue;
        if (own->len == length && !memcmp(own->ptr, name, length)) return value->value;
    }
    return NULL;
}

int ctcbind_xla_same_dims(const xla_buffer *a, const xla_buffer *b, int64_t count)
{
    return memcmp(a->dims, b->dims, (size_t)count * sizeof *a->dims) == 0;
}

static int decode(ctcbind_xla_batch *b, const xla_values *in, const xla_attributes *options)
{
    if (in->size < 4 || in->types[0] != XLA_BUFFER) return 0;
    b->logits = in->values[0];
    int64_t rank = b->logits->rank, front = rank - 2;
    int dtype = b->logits->dtype;
    if (rank < 3 || (dtype != XLA_FLOAT32 && dtype != XLA_FLOAT64)) return 0;
    b->size = dtype == XLA_FLOAT64 ? 8 : 4;
    b->frame_paddings = ctcbind_xla_buffer(in, 1, rank - 1, XLA_FLOAT32);
    b->labels = ctcbind_xla_buffer(in, 2, rank - 1, XLA_INT32);
    b->label_paddings = ctcbind_xla_buffer(in, 3, rank - 1, XLA_FLOAT32);
    if (!b->frame_paddings || !b->labels || !b->label_paddings) return 0;
    if (!ctcbind_xla_same_dims(b->logits, b->frame_paddings, rank - 1)) return 0;
    if (!ctcbind_xla_same_dims(b->logits, b->labels, front)) return 0;
    if (!ctcbind_xla_same_dims(b->labels, b->label_paddings, rank - 1)) return 0;

    const int64_t *dims = b->logits->dims;
    b->N = 1;
    for (int64_t i = 0; i < front; i++) b->N *= dims[i];
    b->T = dims[front];
    b->C = dims[front + 1];
    b->L = b->labels->dims[front];
    if (b->N >= INT32_MAX || b->T >= INT32_MAX || b->C >= INT32_MAX || b->L >= INT32_MAX / 2) return 0;

    const int32_t *blank = ctcbind_xla_option(options, "blank", XLA_INT32);
    const int32_t *divided = ctcbind_xla_option(options, "divided", XLA_INT32);
    b->blank = blank ? *blank : -1;
    b->divided = divided ? *divided : 0;
    return b->blank >= 0 && b->blank < b->C;
}

/* --- its values ------------------------------------------------------------------------------------------------ */

/* Counts the zeros of each row of paddings, which are 0 or 1. *mixed: the first row in which a 0 follows a 1, and
 * *at where that 1 stands; -1 if there is none. */
static void *count(const ctcbind_xla_batch *b, const char *name, const float *paddings, int64_t width, int32_t *lengths,
                   int64_t *mixed, int64_t *at)
{
    *mixed = *at = -1;
    for (int64_t n = 0; n < b->N; n++) {
        const float *row = paddings + n * width;
        int32_t zeros = 0;
        for (int64_t i = 0; i < width; i++) {
            if (row[i] == 0) zeros++;
            else if (row[i] != 1)
                return isnan(row[i]) ? ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT,
                                                          "InvalidInput: %s[%lld][%lld] is nan; it must be 0 or 1",
                                                          name, (long long)n, (long long)i)
                                     : ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT,
                                                          "InvalidInput: %s[%lld][%lld] is %.9g; it must be 0 or 1",
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

static void *pack(const ctcbind_xla_batch *b)
{
    int32_t *to = b->packed;
    for (int64_t n = 0; n < b->N; n++)
        for (int32_t i = 0; i < b->label_lengths[n]; i++) {
            int32_t label = ((const int32_t *)b->labels->data)[n * b->L + i];
            if (label >= 0 && label < b->C && label != b->blank) {
                *to++ = label;
                continue;
            }
            if (label >= b->C)
                return ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT,
                                          "InvalidInput: labels[%lld][%d] is %d, but there are %lld classes "
                                          "(0..%lld), the blank among them",
                                          (long long)n, i, label, (long long)b->C, (long long)b->C - 1);
            return ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT, "InvalidInput: labels[%lld][%d] is %d%s", (long long)n,
                                      i, label,
                                      label < 0 ? "; a label cannot be negative"
                                                : ", which is the blank; a target holds labels only");
        }
    return NULL;
}

static void *check(ctcbind_xla_batch *b)
{
    int64_t mixed, at;
    void *error = count(b, "logit_paddings", b->frame_paddings->data, b->T, b->input_lengths, &mixed, &at);
    b->moved = mixed >= 0;
    if (!error) error = count(b, "label_paddings", b->label_paddings->data, b->L, b->label_lengths, &mixed, &at);
    if (!error && mixed >= 0)
        error = ctcbind_xla_refuse(b, XLA_INVALID_ARGUMENT,
                                   "InvalidInput: label_paddings[%lld][%lld] is 1 and a label follows it; the "
                                   "padding must come last: pass 1 - label_paddings if 1 stands for labels",
                                   (long long)mixed, (long long)at);
    return error ? error : pack(b);
}

/* --- its rows -------------------------------------------------------------------------------------------------- */

static const float *paddings_of(const ctcbind_xla_batch *b, int64_t n)
{
    return (const float *)b->frame_paddings->data + n * b->T;
}

void ctcbind_xla_to_front(const ctcbind_xla_batch *b, const void *whole, void *front, size_t row)
{
    const unsigned char *from = whole;
    for (int64_t n = 0; n < b->N; n++) {
        unsigned char *to = (unsigned char *)front + (size_t)(n * b->T) * row;
        for (int64_t t = 0; t < b->T; t++, from += row) {
            if (paddings_of(b, n)[t] != 0) continue;
            memcpy(to, from, row);
            to += row;
        }
    }
}

void ctcbind_xla_back(const ctcbind_xla_batch *b, const void *front, void *whole, size_t row)
{
    unsigned char *to = whole;
    for (int64_t n = 0; n < b->N; n++) {
        const unsigned char *from = (const unsigned char *)front + (size_t)(n * b->T) * row;
        for (int64_t t = 0; t < b->T; t++, to += row) {
            if (paddings_of(b, n)[t] != 0) {
                memset(to, 0, row);
                continue;
            }
            memcpy(to, from, row);
            from += row;
        }
    }
}

void ctcbind_xla_large_pages(void *start, size_t bytes)
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

/* --- the call -------------------------------------------------------------------------------------------------- */

void *ctcbind_xla_answer(void *call, ctcbind_xla_batch *b, const ctcbind_xla_function *function)
{
    const xla_call *x = call;
    b->api = x->api;
    if (x->extensions && x->extensions->type == XLA_METADATA) {
        xla_metadata *metadata = ((xla_metadata_extension *)x->extensions)->metadata;
        /* What is used here is the same in all of major version 0. */
        metadata->version.major_version = 0;
        metadata->version.minor_version = x->api ? x->api->version.minor_version : 1;
        metadata->traits = 0;
        return NULL;
    }
    if (x->stage != XLA_EXECUTE) return NULL;
    if (!decode(b, &x->arguments, &x->attributes) ||
        !function->decode(b, &x->arguments, &x->results, &x->attributes))
        return ctcbind_xla_refuse(b, XLA_INTERNAL, "ctcbind_%s was called with other arrays than its own",
                                  function->name);
    if (b->N == 0) return NULL;

    int32_t *integers = malloc((size_t)(b->N * (b->L + 2)) * sizeof *integers);
    if (!integers) return ctcbind_xla_refuse(b, XLA_RESOURCE_EXHAUSTED, "no memory for the labels");
    b->label_lengths = integers;
    b->input_lengths = integers + b->N;
    b->packed = integers + 2 * b->N;
    void *error = check(b);
    if (!error) error = function->compute(b);
    free(integers);
    return error;
}
