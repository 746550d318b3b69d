/* Frames of one sample, of any dtype and stride, as ln softmax in double: for all that is not the loss itself. */
#ifndef CTCBIND_ROWS_H
#define CTCBIND_ROWS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { CTCBIND_ROWS_FLOAT32 = 0, CTCBIND_ROWS_FLOAT64 = 1, CTCBIND_ROWS_FLOAT16 = 2, CTCBIND_ROWS_BFLOAT16 = 3 };
enum { CTCBIND_ROWS_OK = 0, CTCBIND_ROWS_NO_MEMORY = 1, CTCBIND_ROWS_NAN = 2, CTCBIND_ROWS_STOPPED = 3 };

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

/* ln softmax of frame t; 0 where the frame holds a NaN. Logits of +inf share all the probability, and a frame of
 * -inf has none for any class. */
static inline int ctcbind_log_softmax(const ctcbind_rows *rows, int32_t t, double *row)
{
    double top = -INFINITY, sum = 0;
    int32_t C = rows->C;
    ctcbind_read_row(rows, t, row);
    for (int32_t c = 0; c < C; c++) {
        if (isnan(row[c])) return 0;
        if (row[c] > top) top = row[c];
    }
    if (top == -INFINITY) return 1;
    if (top == INFINITY) {
        for (int32_t c = 0; c < C; c++) sum += row[c] = row[c] == top;
        for (int32_t c = 0; c < C; c++) row[c] = log(row[c] / sum);
        return 1;
    }
    for (int32_t c = 0; c < C; c++) sum += exp(row[c] - top);
    double log_sum = log(sum);
    for (int32_t c = 0; c < C; c++) row[c] = row[c] - top - log_sum;
    return 1;
}

/* ln(e^a + e^b) */
static inline double ctcbind_add_logs(double a, double b)
{
    double top = a > b ? a : b, gap = (a > b ? b : a) - top;
    return gap >= -38 ? top + log1p(exp(gap)) : top; /* below, the smaller is under half a unit in the last place */
}

#endif
