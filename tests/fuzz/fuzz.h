/* What the fuzzers share: numbers drawn from the fuzzer's bytes, and arrays of any dtype and any strides. */
#ifndef FUZZ_H
#define FUZZ_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"

enum { FUZZ_FLOAT32, FUZZ_FLOAT64, FUZZ_FLOAT16, FUZZ_BFLOAT16, LOGIT_KINDS = 13 }; /* as the headers count dtypes */

typedef struct {
    const uint8_t *at;
    size_t left;
    uint64_t more; /* when the bytes are at their end */
} bytes_t;

static inline uint32_t byte(bytes_t *b)
{
    if (b->left) {
        b->left--;
        b->more = (b->more ^ *b->at) * 0x100000001b3;
        return *b->at++;
    }
    b->more = b->more * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->more >> 56);
}
static inline uint32_t pick(bytes_t *b, uint32_t count) { return byte(b) % count; }

static inline void *room(size_t bytes)
{
    void *at = malloc(bytes ? bytes : 1);
    if (!at) abort();
    return at;
}

/* --- arrays of any dtype and any strides ------------------------------------------------------------------------- */

typedef struct {
    unsigned char *base;
    int64_t count, origin, stride[3]; /* in elements: of the whole span, of (0, 0, 0), of t, n and c */
} array_t;

static inline size_t size_of(int32_t dtype) { return dtype == FUZZ_FLOAT64 ? 8 : dtype == FUZZ_FLOAT32 ? 4 : 2; }

static inline array_t lay_out(bytes_t *b, int32_t dtype, const int32_t *shape)
{
    static const int orders[6][3] = {{2, 1, 0}, {2, 0, 1}, {0, 1, 2}, {1, 2, 0}, {0, 2, 1}, {1, 0, 2}};
    uint32_t how = byte(b), flips = byte(b), gaps = byte(b);
    const int *order = orders[how < 160 ? how % 2 : how % 6]; /* the axis that moves fastest first */
    array_t a = {NULL, 1, 0, {0, 0, 0}};
    if (flips < 192) flips = 0;
    if (gaps < 128) gaps = 0;
    for (int k = 0; k < 3; k++) {
        int axis = order[k];
        int64_t n = shape[axis], step = a.count + (gaps >> (2 * k) & 3) % 3;
        a.stride[axis] = flips >> axis & 1 ? -step : step;
        if (flips >> axis & 1) a.origin += step * (n > 0 ? n - 1 : 0);
        a.count = n > 0 ? step * n : step;
    }
    a.base = room((size_t)a.count * size_of(dtype));
    return a;
}

static inline unsigned char *element(const array_t *a, int32_t dtype, int64_t t, int64_t n, int64_t c)
{
    return a->base + (size_t)(a->origin + t * a->stride[0] + n * a->stride[1] + c * a->stride[2]) * size_of(dtype);
}

static inline double get(const void *at, int32_t dtype)
{
    float f;
    double d;
    uint16_t h;
    if (dtype == FUZZ_FLOAT64) return memcpy(&d, at, 8), d;
    if (dtype == FUZZ_FLOAT32) return memcpy(&f, at, 4), (double)f;
    memcpy(&h, at, 2);
    return (double)(dtype == FUZZ_FLOAT16 ? float_of_half(h) : float_of_bfloat(h));
}

static inline void put(void *at, int32_t dtype, double d)
{
    float f = fabs(d) < 3e38 ? (float)d : d > 0 ? FLT_MAX : -FLT_MAX;
    uint16_t h;
    if (isinf(d) || isnan(d)) f = (float)d;
    if (dtype == FUZZ_FLOAT64) memcpy(at, &d, 8);
    else if (dtype == FUZZ_FLOAT32) memcpy(at, &f, 4);
    else {
        h = dtype == FUZZ_FLOAT16 ? half_of_float(f) : bfloat_of_float(f);
        memcpy(at, &h, 2);
    }
}

static inline double logit(bytes_t *b, uint32_t kind)
{
    static const double special[] = {0, -0.0, 1e10, -1e10, 1e30, -1e30, 1e290, -1e290, 5e-324, 1e-40,
                                     -1e-40, 1e4, 90, -90, 710, -745, 65504, 3.4e38, -3.4e38, 127.5};
    int v = (int)byte(b) - 128;
    double x;
    uint64_t bits = 0;
    switch (kind) {
    case 0: return v / 32.0;
    case 1: return v / 2.0;
    case 2: return v * 60.0 + (double)byte(b) / 77;
    case 3: return v < -120 ? -INFINITY : v / 16.0;
    case 4: return v * 1e8;
    case 5: return 0;
    case 6: return v > 100 ? 300.0 : v > 90 ? -300.0 : v / 64.0;
    case 7: return v < 0 ? special[(v + 128) % (int)(sizeof special / sizeof *special)] : v / 8.0;
    case 8: return v == -128 ? NAN : v == -127 ? INFINITY : v == -126 ? -INFINITY : v / 4.0;
    case 9: return v < 0 ? -INFINITY : v > 64 ? INFINITY : v / 4.0;
    case 10: return 1e4 + v / 16.0;
    case 11: return v * 1e30;
    default:
        for (int k = 0; k < 8; k++) bits = bits << 8 | byte(b);
        memcpy(&x, &bits, 8);
        return x;
    }
}

#endif
