/* Frames of one sample, of any dtype and stride, as ln softmax in double: for all that is not the loss itself. */
#ifndef CTCBIND_ROWS_H
#define CTCBIND_ROWS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { CTCBIND_ROWS_FLOAT32 = 0, CTCBIND_ROWS_FLOAT64 = 1, CTCBIND_ROWS_FLOAT16 = 2, CTCBIND_ROWS_BFLOAT16 = 3 };
enum { CTCBIND_ROWS_OK = 0, CTCBIND_ROWS_NO_MEMORY = 1, CTCBIND_ROWS_NAN = 2, CTCBIND_ROWS_STOPPED = 3 };

/* GCC compiles a function marked so for several instruction sets, and takes the right one when the library is loaded.
 * No products are contracted into sums, so that all of them compute the same. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CTCBIND_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CTCBIND_CLONES
#endif

typedef struct ctcbind_rows {
    const void *data;   /* element (t, c) stands at t*stride_t + c*stride_c */
    int64_t stride_t, stride_c; /* in elements, of any sign */
    int32_t T, C, dtype;
} ctcbind_rows;

/* What is taken off the logits of a frame: its maximum and ln of the sum of what is left. */
typedef struct ctcbind_norm {
    double top, log_sum;
} ctcbind_norm;

/* Where results of the same kind go; float32 or float64. */
typedef struct ctcbind_rows_out {
    void *data;
    int64_t stride_t, stride_c;
    int32_t T, C, dtype; /* T: rows there are, of which a sample's own may be fewer */
} ctcbind_rows_out;

/* The largest value; *nans: how many are NaN, and unless that is 0 the result means nothing. */
double ctcbind_largest(const double *values, int64_t count, int64_t *nans);
double ctcbind_sum(const double *values, int64_t count);

void ctcbind_read_row(const ctcbind_rows *rows, int32_t t, double *row);
double ctcbind_read_one(const ctcbind_rows *rows, int32_t t, int32_t c);
void ctcbind_read_classes(const ctcbind_rows *rows, int32_t t, const int32_t *classes, int64_t count, double *values);

/* What is to be taken off a row, summed in doubles; 0 where it holds a NaN. Sums and exponentials are the kernels':
 * first ask whether there is one (ctcbind_isa in ctcbind.h). */
int ctcbind_norm_row(const double *row, int32_t C, ctcbind_norm *norm);

/* The same of frame t, and the frame. */
int ctcbind_read_norm(const ctcbind_rows *rows, int32_t t, double *row, ctcbind_norm *norm);
void ctcbind_take_off(double *row, int32_t C, ctcbind_norm norm);

/* ln softmax of frame t, and what was taken off; 0 where the frame holds a NaN. */
int ctcbind_log_softmax(const ctcbind_rows *rows, int32_t t, double *row, ctcbind_norm *norm);

/* Of a row that has a class with any probability; to may be where row is. */
void ctcbind_softmax(const double *row, int32_t C, ctcbind_norm norm, double *to);

/* e^x of count values, none above 0; to may be where x is. */
void ctcbind_exps(const double *x, int32_t count, double *to);

/* Nothing is done where data is NULL. */
void ctcbind_write_row(const ctcbind_rows_out *out, int64_t t, const double *row);
/* Of a float32 result. */
void ctcbind_write_floats(const ctcbind_rows_out *out, int64_t t, const float *row);
void ctcbind_fill_rows(const ctcbind_rows_out *out, int64_t from, int64_t end, double value);

#endif
