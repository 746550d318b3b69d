#include "rows.h"

#include "kernel.h"

/* So many at a time. */
enum { FEW = 8 };

static inline double of_bfloat(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline double of_half(uint16_t bits)
{
    uint64_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    uint64_t wide = (exponent == 31 ? 2047 : exponent + 1008) << 52 | fraction << 42;
    double value;
    memcpy(&value, &wide, sizeof value);
    value = exponent ? value : (double)fraction * 0x1p-24;
    return bits >> 15 ? -value : value;
}

CTCBIND_CLONES static void read_floats(const float *restrict from, int32_t C, double *restrict row)
{
    for (int32_t c = 0; c < C; c++) row[c] = from[c];
}

void ctcbind_read_row(const ctcbind_rows *rows, int32_t t, double *row)
{
    int64_t at = t * rows->stride_t, step = rows->stride_c;
    int32_t C = rows->C;
#define READ(type, read) \
    for (int32_t c = 0; c < C; c++) row[c] = read(((const type *)rows->data)[at + c * step])
    switch (rows->dtype) {
    case CTCBIND_ROWS_FLOAT32:
        if (step == 1) read_floats((const float *)rows->data + at, C, row);
        else READ(float, (double));
        break;
    case CTCBIND_ROWS_FLOAT64: READ(double, ); break;
    case CTCBIND_ROWS_FLOAT16: READ(uint16_t, of_half); break;
    default: READ(uint16_t, of_bfloat);
    }
#undef READ
}

void ctcbind_read_classes(const ctcbind_rows *rows, int32_t t, const int32_t *classes, int64_t count, double *values)
{
    int64_t at = t * rows->stride_t, step = rows->stride_c;
#define READ(type, read) \
    for (int64_t k = 0; k < count; k++) values[k] = read(((const type *)rows->data)[at + classes[k] * step])
    switch (rows->dtype) {
    case CTCBIND_ROWS_FLOAT32: READ(float, (double)); break;
    case CTCBIND_ROWS_FLOAT64: READ(double, ); break;
    case CTCBIND_ROWS_FLOAT16: READ(uint16_t, of_half); break;
    default: READ(uint16_t, of_bfloat);
    }
#undef READ
}

double ctcbind_read_one(const ctcbind_rows *rows, int32_t t, int32_t c)
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

CTCBIND_CLONES double ctcbind_largest(const double *values, int64_t count, int64_t *nans)
{
    double tops[FEW], top = -INFINITY;
    int64_t bad = 0, i = 0;
    for (int j = 0; j < FEW; j++) tops[j] = -INFINITY;
    for (; i + FEW <= count; i += FEW)
        for (int j = 0; j < FEW; j++) tops[j] = values[i + j] > tops[j] ? values[i + j] : tops[j];
    for (; i < count; i++) top = values[i] > top ? values[i] : top;
    for (int half = FEW / 2; half; half /= 2)
        for (int j = 0; j < half; j++) tops[j] = tops[j + half] > tops[j] ? tops[j + half] : tops[j];
    for (int64_t j = 0; j < count; j++) bad += values[j] != values[j];
    *nans = bad;
    return tops[0] > top ? tops[0] : top;
}

/* Of a few dozen values, mostly: more lanes take longer to become one than these take to be filled. */
CTCBIND_CLONES double ctcbind_sum(const double *values, int64_t count)
{
    double s[FEW] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + FEW <= count; i += FEW)
        for (int j = 0; j < FEW; j++) s[j] += values[i + j];
    for (; i < count; i++) rest += values[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])) + rest;
}

/* Numbers as a row that kernels read. */
static ctc_sample row_of(const double *values, int32_t count)
{
    return (ctc_sample){.x = values, .x_c = 1, .C = count, .T = 1, .dtype = CTCBIND_FLOAT64};
}

int ctcbind_norm_row(const double *row, int32_t C, ctcbind_norm *norm)
{
    ctc_sample one = row_of(row, C);
    ctc_best best;
    ctcbind_kernel()->best64(&one, 0, 1, NULL, &best);
    return ctcbind_norm_of(&best, norm);
}

int ctcbind_read_norm(const ctcbind_rows *rows, int32_t t, double *row, ctcbind_norm *norm)
{
    ctcbind_read_row(rows, t, row);
    return ctcbind_norm_row(row, rows->C, norm);
}

void ctcbind_softmax(const double *row, int32_t C, ctcbind_norm norm, double *to)
{
    ctc_sample one = row_of(row, C);
    ctcbind_kernel()->soft64(&one, 0, norm.top, exp(-norm.log_sum), to);
}

CTCBIND_CLONES static void subtract(double *row, int32_t C, double top, double log_sum)
{
    for (int32_t c = 0; c < C; c++) row[c] = row[c] - top - log_sum;
}

void ctcbind_take_off(double *row, int32_t C, ctcbind_norm norm)
{
    if (norm.top == -INFINITY) return; /* no class has any probability */
    if (norm.top == INFINITY) {        /* those of +inf share all of it */
        for (int32_t c = 0; c < C; c++) row[c] = row[c] == INFINITY ? -norm.log_sum : -INFINITY;
        return;
    }
    subtract(row, C, norm.top, norm.log_sum);
}

int ctcbind_log_softmax(const ctcbind_rows *rows, int32_t t, double *row, ctcbind_norm *norm)
{
    if (!ctcbind_read_norm(rows, t, row, norm)) return 0;
    ctcbind_take_off(row, rows->C, *norm);
    return 1;
}

void ctcbind_exps(const double *x, int32_t count, double *to)
{
    ctc_sample one = row_of(x, count);
    ctcbind_kernel()->soft64(&one, 0, 0, 1, to);
}

CTCBIND_CLONES static void write_floats(const double *restrict row, int32_t C, float *restrict to)
{
    for (int32_t c = 0; c < C; c++) to[c] = (float)row[c];
}

void ctcbind_write_row(const ctcbind_rows_out *out, int64_t t, const double *row)
{
    int64_t at = t * out->stride_t, step = out->stride_c;
    if (!out->data) return;
    if (out->dtype == CTCBIND_ROWS_FLOAT64)
        for (int32_t c = 0; c < out->C; c++) ((double *)out->data)[at + c * step] = row[c];
    else if (step == 1) write_floats(row, out->C, (float *)out->data + at);
    else
        for (int32_t c = 0; c < out->C; c++) ((float *)out->data)[at + c * step] = (float)row[c];
}

void ctcbind_write_floats(const ctcbind_rows_out *out, int64_t t, const float *row)
{
    int64_t at = t * out->stride_t, step = out->stride_c;
    for (int32_t c = 0; c < out->C; c++) ((float *)out->data)[at + c * step] = row[c];
}

void ctcbind_fill_rows(const ctcbind_rows_out *out, int64_t from, int64_t end, double value)
{
    for (int64_t t = from; t < end && out->data; t++)
        for (int64_t c = 0, at = t * out->stride_t; c < out->C; c++, at += out->stride_c) {
            if (out->dtype == CTCBIND_ROWS_FLOAT64) ((double *)out->data)[at] = value;
            else ((float *)out->data)[at] = (float)value;
        }
}
