/* NEON (AArch64) vectors of float (vf_, 4 lanes) and double (vd_, 2 lanes). */
#ifndef CTCBIND_VEC_NEON_H
#define CTCBIND_VEC_NEON_H

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define VF_LANES 4
#define VD_LANES 2
#define VEC_REGISTERS 32
#define vd_fused vd_fma /* with one rounding */
typedef float32x4_t vf_t;
typedef float64x2_t vd_t;

/* max and min keep the second operand where the first is a NaN, as on the other instruction sets. */
#define VEC_OPS(X, R, T, S)                                                                                   \
    static inline T X##_load(const R *p) { return vld1q_##S(p); }                                             \
    static inline void X##_store(R *p, T a) { vst1q_##S(p, a); }                                              \
    static inline void X##_stream(R *p, T a) { vst1q_##S(p, a); }                                             \
    static inline T X##_set1(R a) { return vdupq_n_##S(a); }                                                  \
    static inline T X##_add(T a, T b) { return vaddq_##S(a, b); }                                             \
    static inline T X##_sub(T a, T b) { return vsubq_##S(a, b); }                                             \
    static inline T X##_mul(T a, T b) { return vmulq_##S(a, b); }                                             \
    static inline T X##_fma(T a, T b, T c) { return vfmaq_##S(c, a, b); }                                     \
    static inline T X##_fnma(T a, T b, T c) { return vfmsq_##S(c, a, b); }                                    \
    static inline T X##_max(T a, T b) { return vbslq_##S(vcgtq_##S(a, b), a, b); }                            \
    static inline T X##_min(T a, T b) { return vbslq_##S(vcltq_##S(a, b), a, b); }                            \
    static inline T X##_rint(T a) { return vrndnq_##S(a); }                                                   \
    /* sum += e and n += 1 in the lanes where a != b */                                                       \
    static inline void X##_add_others(T a, T b, T e, T *sum, T *n)                                            \
    {                                                                                                         \
        T none = vdupq_n_##S(0);                                                                              \
        *sum = vaddq_##S(*sum, vbslq_##S(vceqq_##S(a, b), none, e));                                          \
        *n = vaddq_##S(*n, vbslq_##S(vceqq_##S(a, b), none, vdupq_n_##S(1)));                                 \
    }                                                                                                         \
    static inline int X##_any_equal(T a, T b)                                                                 \
    {                                                                                                         \
        return vmaxvq_##S(vbslq_##S(vceqq_##S(a, b), vdupq_n_##S(1), vdupq_n_##S(0))) > 0;                    \
    }                                                                                                         \
    /* then where a == b, other elsewhere */                                                                  \
    static inline T X##_if_equal(T a, T b, T then, T other) { return vbslq_##S(vceqq_##S(a, b), then, other); } \
    static inline R X##_highest(T a) { return vmaxvq_##S(a); }                                                \
    static inline T X##_count_equal(T a, T b, T n)                                                            \
    {                                                                                                         \
        return vaddq_##S(n, vbslq_##S(vceqq_##S(a, b), vdupq_n_##S(1), vdupq_n_##S(0)));                      \
    }                                                                                                         \
    /* One lane up, the last lane of the vector before coming in; one down, the first of the next. */         \
    static inline T X##_shift_up(T before, T a) { return vextq_##S(before, a, sizeof(T) / sizeof(R) - 1); }   \
    static inline T X##_shift_down(T a, T after) { return vextq_##S(a, after, 1); }
VEC_OPS(vf, float, float32x4_t, f32)
VEC_OPS(vd, double, float64x2_t, f64)
#undef VEC_OPS

/* The first n <= lanes elements; the other lanes are 0 (load) or left alone (store). In registers: a vector that is
 * loaded where smaller pieces have just been stored waits for them. */
static inline vf_t vf_load_n(const float *p, int64_t n)
{
    float32x2_t none = vdup_n_f32(0), low = none, high = none;
    if (n == VF_LANES) return vf_load(p);
    if (n & 2) low = vld1_f32(p);
    if (n == 1) low = vld1_lane_f32(p, none, 0);
    if (n == 3) high = vld1_lane_f32(p + 2, none, 0);
    return vcombine_f32(low, high);
}
static inline void vf_store_n(float *p, vf_t a, int64_t n)
{
    if (n == VF_LANES) vf_store(p, a);
    if (n & 2) vst1_f32(p, vget_low_f32(a));
    if (n == 1) vst1q_lane_f32(p, a, 0);
    if (n == 3) vst1q_lane_f32(p + 2, a, 2);
}
static inline vd_t vd_load_n(const double *p, int64_t n)
{
    if (n == VD_LANES) return vd_load(p);
    return n ? vld1q_lane_f64(p, vdupq_n_f64(0), 0) : vdupq_n_f64(0);
}
static inline void vd_store_n(double *p, vd_t a, int64_t n)
{
    if (n == VD_LANES) vd_store(p, a);
    if (n == 1) vst1q_lane_f64(p, a, 0);
}

/* a * 2^n for a whole n; what falls below the normal numbers becomes 0. */
static inline vf_t vf_scale(vf_t a, vf_t n)
{
    int32x4_t e = vcvtq_s32_f32(vf_max(n, vdupq_n_f32(-127)));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23)));
}
static inline vd_t vd_scale(vd_t a, vd_t n)
{
    int64x2_t e = vcvtq_s64_f64(vd_max(n, vdupq_n_f64(-1023)));
    return vmulq_f64(a, vreinterpretq_f64_s64(vshlq_n_s64(vaddq_s64(e, vdupq_n_s64(1023)), 52)));
}

static inline vf_t vf_pow2(vf_t n) { return vf_scale(vf_set1(1), n); }
static inline vd_t vd_pow2(vd_t n) { return vd_scale(vd_set1(1), n); }

/* floor(log2 a), -infinite for 0; and a / 2^that, 0 for 0. Subnormal numbers count as 0. */
static inline vf_t vf_logb(vf_t a)
{
    int32x4_t e = vsubq_s32(vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_f32(a), 23)), vdupq_n_s32(127));
    return vbslq_f32(vcgeq_f32(a, vdupq_n_f32(0x1p-126f)), vcvtq_f32_s32(e), vdupq_n_f32(-INFINITY));
}
static inline vf_t vf_mantissa(vf_t a)
{
    uint32x4_t m = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x7fffff));
    m = vorrq_u32(m, vdupq_n_u32(0x3f800000));
    return vreinterpretq_f32_u32(vandq_u32(m, vcgeq_f32(a, vdupq_n_f32(0x1p-126f))));
}
static inline vd_t vd_logb(vd_t a)
{
    int64x2_t e = vsubq_s64(vreinterpretq_s64_u64(vshrq_n_u64(vreinterpretq_u64_f64(a), 52)), vdupq_n_s64(1023));
    return vbslq_f64(vcgeq_f64(a, vdupq_n_f64(0x1p-1022)), vcvtq_f64_s64(e), vdupq_n_f64(-INFINITY));
}
static inline vd_t vd_mantissa(vd_t a)
{
    uint64x2_t m = vandq_u64(vreinterpretq_u64_f64(a), vdupq_n_u64(0xfffffffffffff));
    m = vorrq_u64(m, vdupq_n_u64(0x3ff0000000000000));
    return vreinterpretq_f64_u64(vandq_u64(m, vcgeq_f64(a, vdupq_n_f64(0x1p-1022))));
}
static inline void vf_to_double(vf_t a, vd_t to[2])
{
    to[0] = vcvt_f64_f32(vget_low_f32(a));
    to[1] = vcvt_high_f64_f32(a);
}
/* The first n lanes of a, the rest of other. */
static inline vf_t vf_first(int64_t n, vf_t a, vf_t other)
{
    static const uint32_t ones[8] = {~0u, ~0u, ~0u, ~0u};
    return vbslq_f32(vld1q_u32(ones + 4 - n), a, other);
}
static inline vd_t vd_first(int64_t n, vd_t a, vd_t other)
{
    static const uint64_t ones[4] = {~(uint64_t)0, ~(uint64_t)0};
    return vbslq_f64(vld1q_u64(ones + 2 - n), a, other);
}

/* The sum of all lanes. */
static inline double vd_total(vd_t a) { return vaddvq_f64(a); }
static inline double vf_total(vf_t a)
{
    vd_t parts[2];
    vf_to_double(a, parts);
    return vd_total(vd_add(parts[0], parts[1]));
}
static inline void vd_store_float(float *p, vd_t a) { vst1_f32(p, vcvt_f32_f64(a)); }

/* In lane k the sum over the lanes of the k-th vector at p, which are so far apart. */
static inline vf_t vf_sums(const float *p, int64_t step)
{
    float32x4_t a = vpaddq_f32(vf_load(p), vf_load(p + step));
    return vpaddq_f32(a, vpaddq_f32(vf_load(p + 2 * step), vf_load(p + 3 * step)));
}
static inline vd_t vd_sums(const double *p, int64_t step)
{
    return vpaddq_f64(vd_load(p), vd_load(p + step));
}

static inline void vf_transpose(vf_t r[4])
{
    float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}
static inline void vd_transpose(vd_t r[2])
{
    vd_t a = vtrn1q_f64(r[0], r[1]);
    r[1] = vtrn2q_f64(r[0], r[1]);
    r[0] = a;
}

/* float16 and bfloat16, 4 at a time or the first n <= 4, to and from float lanes. */
typedef uint16x4_t vec16_t;
static inline vec16_t vec16_load(const uint16_t *p) { return vld1_u16(p); }
static inline void vec16_store(uint16_t *p, vec16_t a) { vst1_u16(p, a); }
static inline vec16_t vec16_load_n(const uint16_t *p, int64_t n)
{
    uint64_t lanes = n & 1 ? p[n & 2] : 0;
    if (n == VF_LANES) return vec16_load(p);
    if (n & 2) {
        uint32_t two;
        memcpy(&two, p, sizeof two);
        lanes = lanes << 32 | two;
    }
    return vcreate_u16(lanes);
}
static inline void vec16_store_n(uint16_t *p, vec16_t a, int64_t n)
{
    if (n == VF_LANES) vec16_store(p, a);
    if (n & 2) vst1_lane_u32((void *)p, vreinterpret_u32_u16(a), 0);
    if (n == 1) vst1_lane_u16(p, a, 0);
    if (n == 3) vst1_lane_u16(p + 2, a, 2);
}
static inline vf_t vec16_of_half(vec16_t a) { return vcvt_f32_f16(vreinterpret_f16_u16(a)); }
static inline vec16_t vec16_to_half(vf_t a) { return vreinterpret_u16_f16(vcvt_f16_f32(a)); }
static inline vf_t vec16_of_bfloat(vec16_t a) { return vreinterpretq_f32_u32(vshll_n_u16(a, 16)); }
static inline vec16_t vec16_to_bfloat(vf_t a)
{
    uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vshrn_n_u32(bits, 16);
}

static inline void vec_fence(void) {}
#define vec_prefetch(p) __builtin_prefetch(p)
#define vec_prefetch_write(p) __builtin_prefetch((p), 1)
#define vec_prefetch_far(near, p) ((void)(near), __builtin_prefetch((p), 0, 2))

#endif
