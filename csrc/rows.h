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

static inline double ctcbind_of_bfloat(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline double ctcbind_of_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023, value;
    if (exponent == 31) value = fraction != 0 ? (double)NAN : (double)INFINITY;
    else value = exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24);
    return bits >> 15 ? -value : value;
}

static inline void ctcbind_read_row(const ctcbind_rows *rows, int32_t t, double *row)
{
    int64_t at = t * rows->stride_t, step = rows->stride_c;
    int32_t C = rows->C;
#define CTCBIND_READ(type, read) \
    for (int32_t c = 0; c < C; c++) row[c] = read(((const type *)rows->data)[at + c * step])
    switch (rows->dtype) {
    case CTCBIND_ROWS_FLOAT32: CTCBIND_READ(float, (double)); break;
    case CTCBIND_ROWS_FLOAT64: CTCBIND_READ(double, ); break;
    case CTCBIND_ROWS_FLOAT16: CTCBIND_READ(uint16_t, ctcbind_of_half); break;
    default: CTCBIND_READ(uint16_t, ctcbind_of_bfloat);
    }
#undef CTCBIND_READ
}

static inline double ctcbind_read_one(const ctcbind_rows *rows, int32_t t, int32_t c)
{
    ctcbind_rows one = *rows;
    double value;
    one.C = 1;
    switch (rows->dtype) {
    case CTCBIND_ROWS_FLOAT32: one.data = (const float *)rows->data + c * rows->stride_c; break;
    case CTCBIND_ROWS_FLOAT64: one.data = (const double *)rows->data + c * rows->stride_c; break;
    default: one.data = (const uint16_t *)rows->data + c * rows->stride_c;
    }
    ctcbind_read_row(&one, t, &value);
    return value;
}

/* ln of the sum of e^(row[c] - top), where no value is above `top`. */
double ctcbind_log_sum_exp(const double *row, int32_t C, double top);

/* What is taken off the logits of a frame: its maximum and ln of the sum of what is left. */
typedef struct ctcbind_norm {
    double top, log_sum;
} ctcbind_norm;

static inline void ctcbind_take_off(double *row, int32_t C, ctcbind_norm norm)
{
    if (norm.top == -INFINITY) return; /* no class has any probability */
    if (norm.top == INFINITY) {        /* those of +inf share all of it */
        for (int32_t c = 0; c < C; c++) row[c] = row[c] == INFINITY ? -norm.log_sum : -INFINITY;
        return;
    }
    for (int32_t c = 0; c < C; c++) row[c] = row[c] - norm.top - norm.log_sum;
}

/* ln softmax of frame t, and what was taken off; 0 where the frame holds a NaN. */
static inline int ctcbind_log_softmax_norm(const ctcbind_rows *rows, int32_t t, double *row, ctcbind_norm *norm)
{
    double top = -INFINITY, sum = 0;
    int32_t C = rows->C;
    ctcbind_read_row(rows, t, row);
    for (int32_t c = 0; c < C; c++) {
        if (isnan(row[c])) return 0;
        if (row[c] > top) top = row[c];
    }
    norm->top = top;
    norm->log_sum = 0;
    if (top == INFINITY) {
        for (int32_t c = 0; c < C; c++) sum += row[c] == INFINITY;
        norm->log_sum = log(sum);
    } else if (top > -INFINITY) norm->log_sum = ctcbind_log_sum_exp(row, C, top);
    ctcbind_take_off(row, C, *norm);
    return 1;
}

static inline int ctcbind_log_softmax(const ctcbind_rows *rows, int32_t t, double *row)
{
    ctcbind_norm norm;
    return ctcbind_log_softmax_norm(rows, t, row, &norm);
}

/* ln(e^a + e^b) */
static inline double ctcbind_add_logs(double a, double b)
{
    double top = a > b ? a : b, gap = (a > b ? b : a) - top;
    return gap >= -38 ? top + log1p(exp(gap)) : top; /* below, the smaller is under half a unit in the last place */
}

#endif
