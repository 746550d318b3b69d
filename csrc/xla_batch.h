/* A batch as a program compiled by XLA hands it over: looked at, checked, and made into what the engine takes. */
#ifndef CTCBIND_XLA_BATCH_H
#define CTCBIND_XLA_BATCH_H

#include <stddef.h>

#include "xla.h"

typedef struct ctcbind_xla_batch {
    const xla_api *api;
    const xla_buffer *logits, *frame_paddings, *labels, *label_paddings;
    int64_t N, T, C, L; /* N: of all axes in front */
    int32_t blank;
    int32_t divided; /* this is one device's part of a batch */
    size_t size;     /* bytes of a logit */
    /* made from it */
    int32_t *packed, *label_lengths, *input_lengths;
    int moved; /* frames that count do not all come first */
} ctcbind_xla_batch;

/* A function of xla.h. `decode`: whether what it is given beside the batch's four arrays, and its results, are as
 * ctcbind.jax makes them (the shapes of a batch have been looked at when it was traced). `compute`: its results, of a
 * batch with any sample; or an error. */
typedef struct ctcbind_xla_function {
    const char *name;
    int (*decode)(ctcbind_xla_batch *b, const xla_values *in, const xla_values *out, const xla_attributes *options);
    void *(*compute)(const ctcbind_xla_batch *b);
} ctcbind_xla_function;

/* `b`, with zeros in it, may be the first part of what the two functions share. */
void *ctcbind_xla_answer(void *call, ctcbind_xla_batch *b, const ctcbind_xla_function *function);

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void *ctcbind_xla_refuse(const ctcbind_xla_batch *b, int code, const char *format, ...);

/* The i-th value, NULL unless it is an array of this rank and dtype. */
xla_buffer *ctcbind_xla_buffer(const xla_values *values, int64_t i, int64_t rank, int dtype);
/* Of this name and dtype; NULL if there is none. */
const void *ctcbind_xla_option(const xla_attributes *options, const char *name, int dtype);
int ctcbind_xla_same_dims(const xla_buffer *a, const xla_buffer *b, int64_t count);

/* An error where there are no kernels; for what stands beside the loss, which says so itself. */
void *ctcbind_xla_without_kernels(const ctcbind_xla_batch *b);

/* The threads of a call; and those that a batch is worth, of what stands beside the loss. */
int32_t ctcbind_xla_thread_count(void);
int32_t ctcbind_xla_threads_for(const ctcbind_xla_batch *b);

/* XLA's memory for a result is new with each call, and its pages of 4 kB take several times as long to come as the
 * result itself. In pages of 2 MB they take a tenth; NumPy asks for them from 4 MB on. It is a hint, and may fail. */
void ctcbind_xla_large_pages(void *start, size_t bytes);

/* The rows that count of all samples, T of so many bytes each, from where they are in `whole` to the front; or back,
 * where the others are 0 then. */
void ctcbind_xla_to_front(const ctcbind_xla_batch *b, const void *whole, void *front, size_t row);
void ctcbind_xla_back(const ctcbind_xla_batch *b, const void *front, void *whole, size_t row);

#endif
