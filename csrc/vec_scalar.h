/* Vectors of one lane, for any C compiler: vf_ float, vd_ double. */
#ifndef CTCBIND_VEC_SCALAR_H
#define CTCBIND_VEC_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"
#include "number.h"

#define VF_LANES 1
#define VD_LANES 1
#define VEC_REGISTERS 16 /* of x86; where there are more, they do no harm */
typedef ctc_float vf_t;
typedef ctc_double vd_t;

#define VEC_OPS(X, R, T, ROUND)                                                                               \
    static inline T X##_load(const R *p) { return *p; }                                                       \
    static inline void X##_store(R *p, T a) { *p = a; }                                                       \
    static inline void X##_stream(R *p, T a) { *p = a; }                                                      \
    static inline T X##_load_n(const R *p, int64_t n) { return n ? *p : 0; }                                  \
    static inline void X##_store_n(R *p, T a, int64_t n)                                                      \
    {                                                                                                         \
        if (n) *p = a;                                                                                        \
    }                                                                                                         \
    static inline T X##_set1(T a) { return a; }                                                               \
    static inline T X##_add(T a, T b) { return a + b; }                                                       \
    static inline T X##_sub(T a, T b) { return a - b; }                                                       \
    static inline T X##_mul(T a, T b) { return a * b; }                                                       \
    static inline T X##_fma(T a, T b, T c) { return a * b + c; }                                              \
    static inline T X##_fnma(T a, T b, T c) { return c - a * b; }                                             \
    static inline T X##_max(T a, T b) { return a > b ? a : b; }                                               \
    static inline T X##_min(T a, T b) { return a < b ? a : b; }                                               \
    static inline T X##_rint(T a) { return (a + (T)ROUND) - (T)ROUND; }                                       \
    /* sum += e and n += 1 where a != b */                                                                    \
    static inline void X##_add_others(T a, T b, T e, T *sum, T *n)                                            \
    {                                                                                                         \
        *sum += a == b ? 0 : e;                                                                               \
        *n += a == b ? 0 : 1;                                                                                 \
    }                                                                                                         \
    static inline int X##_any_equal(T a, T b) { return a == b; }                                              \
    static inline T X##_if_equal(T a, T b, T then, T other) { return a == b ? then : other; }                 \
    static inline T X##_first(int64_t n, T a, T other) { return n ? a : other; }                              \
    static inline double X##_total(T a) { return a; }                                                         \
    static inline T X##_highest(T a) { return a; }                                                            \
    static inline T X##_count_equal(T a, T b, T n) { return a == b ? n + 1 : n; }                             \
    static inline T X##_shift_up(T before, T a) { return (void)a, before; }                                   \
    static inline T X##_shift_down(T a, T after) { return (void)a, after; }                                   \
    static inline T X##_sums(const R *p, int64_t step) { return (void)step, *p; }                             \
    static inline void X##_transpose(T *r) { (void)r; }
VEC_OPS(vf, ctc_float, float, 12582912.0)
VEC_OPS(vd, ctc_double, double, 6755399441055744.0)
#undef VEC_OPS

/* a * b + c with one rounding, as vd_fma is elsewhere. */
static inline vd_t vd_fused(vd_t a, vd_t b, vd_t c) { return fma(a, b, c); }

/* a * 2^n for a whole n; what falls below the normal numbers becomes 0. */
static inline vf_t vf_scale(vf_t a, vf_t n)
{
    uint32_t bits = (uint32_t)((int32_t)(n > -127 ? n : -127) + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return a * power;
}
static inline vd_t vd_scale(vd_t a, vd_t n)
{
    uint64_t bits = (uint64_t)((int64_t)(n > -1023 ? n : -1023) + 1023) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return a * power;
}

static inline vf_t vf_pow2(vf_t n) { return vf_scale(vf_set1(1), n); }
static inline vd_t vd_pow2(vd_t n) { return vd_scale(vd_set1(1), n); }

/* floor(log2 a), -infinite for 0; and a / 2^that, 0 for 0. Subnormal numbers count as 0. */
static inline vf_t vf_logb(vf_t a)
{
    return a >= 0x1p-126f ? (float)((int32_t)(bits_of_float(a) >> 23) - 127) : -INFINITY;
}
static inline vf_t vf_mantissa(vf_t a)
{
    return a >= 0x1p-126f ? float_of_bits((bits_of_float(a) & 0x7fffff) | 0x3f800000) : 0;
}
static inline vd_t vd_logb(vd_t a)
{
    uint64_t bits;
    memcpy(&bits, &a, 8);
    return a >= 0x1p-1022 ? (double)((int64_t)(bits >> 52) - 1023) : -INFINITY;
}
static inline vd_t vd_mantissa(vd_t a)
{
    uint64_t bits;
    memcpy(&bits, &a, 8);
    bits = (bits & 0xfffffffffffff) | 0x3ff0000000000000;
    double m;
    memcpy(&m, &bits, 8);
    return a >= 0x1p-1022 ? m : 0;
}
static inline void vf_to_double(vf_t a, vd_t *to) { *to = a; }
static inline void vd_store_float(ctc_float *p, vd_t a) { *p = (float)a; }

typedef uint16_t vec16_t;
static inline vec16_t vec16_load(const uint16_t *p) { return *p; }
static inline void vec16_store(uint16_t *p, vec16_t a) { *p = a; }
static inline vec16_t vec16_load_n(const uint16_t *p, int64_t n) { return n ? *p : 0; }
static inline void vec16_store_n(uint16_t *p, vec16_t a, int64_t n)
{
    if (n) *p = a;
}
static inline vf_t vec16_of_half(vec16_t a) { return float_of_half(a); }
static inline vec16_t vec16_to_half(vf_t a) { return half_of_float(a); }
static inline vf_t vec16_of_bfloat(vec16_t a) { return float_of_bfloat(a); }
static inline vec16_t vec16_to_bfloat(vf_t a) { return bfloat_of_float(a); }
static inline void vec_fence(void) {}
#define vec_prefetch(p) ((void)(p))
#define vec_prefetch_write(p) ((void)(p))
#define vec_prefetch_far(near, p) ((void)(near), (void)(p))

#endif
