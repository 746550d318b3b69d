/* AVX-512 vectors of float (vf_, 16 lanes) and double (vd_, 8 lanes). */
#ifndef CTCBIND_VEC_AVX512_H
#define CTCBIND_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define VF_LANES 16
#define VD_LANES 8
#define VEC_REGISTERS 32
#define vd_fused vd_fma /* with one rounding */
typedef __m512 vf_t;
typedef __m512d vd_t;

#define VEC_OPS(X, R, T, S, M)                                                                                  \
    static inline T X##_load(const R *p) { return _mm512_loadu_##S(p); }                                      \
    static inline void X##_store(R *p, T a) { _mm512_storeu_##S(p, a); }                                      \
    static inline void X##_stream(R *p, T a) { _mm512_stream_##S(p, a); }                                     \
    static inline T X##_set1(R a) { return _mm512_set1_##S(a); }                                              \
    static inline T X##_add(T a, T b) { return _mm512_add_##S(a, b); }                                        \
    static inline T X##_sub(T a, T b) { return _mm512_sub_##S(a, b); }                                        \
    static inline T X##_mul(T a, T b) { return _mm512_mul_##S(a, b); }                                        \
    static inline T X##_fma(T a, T b, T c) { return _mm512_fmadd_##S(a, b, c); }                              \
    static inline T X##_fnma(T a, T b, T c) { return _mm512_fnmadd_##S(a, b, c); }                            \
    static inline T X##_max(T a, T b) { return _mm512_max_##S(a, b); }                                        \
    static inline T X##_min(T a, T b) { return _mm512_min_##S(a, b); }                                        \
    static inline T X##_rint(T a) { return _mm512_roundscale_##S(a, 8); }                                     \
    static inline T X##_scale(T a, T n) { return _mm512_scalef_##S(a, n); }                                   \
    /* sum += e and n += 1 in the lanes where a != b */                                                       \
    static inline void X##_add_others(T a, T b, T e, T *sum, T *n)                                            \
    {                                                                                                         \
        M others = _mm512_cmp_##S##_mask(a, b, _CMP_NEQ_UQ);                                                  \
        *sum = _mm512_mask_add_##S(*sum, others, *sum, e);                                                    \
        *n = _mm512_mask_add_##S(*n, others, *n, _mm512_set1_##S(1));                                         \
    }                                                                                                         \
    static inline int X##_any_equal(T a, T b) { return _mm512_cmp_##S##_mask(a, b, _CMP_EQ_OQ) != 0; }         \
    /* then where a == b, other elsewhere */                                                                  \
    static inline T X##_if_equal(T a, T b, T then, T other)                                                   \
    {                                                                                                         \
        return _mm512_mask_blend_##S(_mm512_cmp_##S##_mask(a, b, _CMP_EQ_OQ), other, then);                   \
    }                                                                                                         \
    static inline R X##_highest(T a) { return _mm512_reduce_max_##S(a); }                                     \
    static inline T X##_count_equal(T a, T b, T n)                                                            \
    {                                                                                                         \
        return _mm512_mask_add_##S(n, _mm512_cmp_##S##_mask(a, b, _CMP_EQ_OQ), n, _mm512_set1_##S(1));        \
    }
VEC_OPS(vf, float, __m512, ps, __mmask16)
VEC_OPS(vd, double, __m512d, pd, __mmask8)
#undef VEC_OPS

/* 2^n for a whole n, 0 below the normal numbers: vscalef takes far longer where its result is subnormal. */
static inline vf_t vf_pow2(vf_t n)
{
    __m512i e = _mm512_cvtps_epi32(_mm512_max_ps(n, _mm512_set1_ps(-127)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(127)), 23));
}
static inline vd_t vd_pow2(vd_t n)
{
    __m512i e = _mm512_cvtpd_epi64(_mm512_max_pd(n, _mm512_set1_pd(-1023)));
    return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_add_epi64(e, _mm512_set1_epi64(1023)), 52));
}

/* A number in (-128, 128) added to this is rounded to 32nds; then 2^that, 0 for -127. The table has the bits of
 * 2^(k/32) for the k in the last five bits, less those of 1 and of k, which is shifted along with the whole number. */
#define VF_ROOTS 32
#define VF_ROOT_SUM (0x1.8p18f + 127)
#define VF_EXP_LEAST -88.03f /* the logarithm of what becomes 0 */
#define ROOT(k, bits) (bits) - 0x3f800000 - ((k) << 18)
static inline vf_t vf_power(vf_t sum)
{
    static const int32_t roots[32] = {
        ROOT(0, 0x3f800000), ROOT(1, 0x3f82cd87), ROOT(2, 0x3f85aac3), ROOT(3, 0x3f88980f),
        ROOT(4, 0x3f8b95c2), ROOT(5, 0x3f8ea43a), ROOT(6, 0x3f91c3d3), ROOT(7, 0x3f94f4f0),
        ROOT(8, 0x3f9837f0), ROOT(9, 0x3f9b8d3a), ROOT(10, 0x3f9ef532), ROOT(11, 0x3fa27043),
        ROOT(12, 0x3fa5fed7), ROOT(13, 0x3fa9a15b), ROOT(14, 0x3fad583f), ROOT(15, 0x3fb123f6),
        ROOT(16, 0x3fb504f3), ROOT(17, 0x3fb8fbaf), ROOT(18, 0x3fbd08a4), ROOT(19, 0x3fc12c4d),
        ROOT(20, 0x3fc5672a), ROOT(21, 0x3fc9b9be), ROOT(22, 0x3fce248c), ROOT(23, 0x3fd2a81e),
        ROOT(24, 0x3fd744fd), ROOT(25, 0x3fdbfbb8), ROOT(26, 0x3fe0ccdf), ROOT(27, 0x3fe5b907),
        ROOT(28, 0x3feac0c7), ROOT(29, 0x3fefe4ba), ROOT(30, 0x3ff5257d), ROOT(31, 0x3ffa83b3),
    };
    __m512i root = _mm512_permutex2var_epi32(_mm512_loadu_si512(roots), _mm512_castps_si512(sum),
                                             _mm512_loadu_si512(roots + 16));
    return _mm512_castsi512_ps(_mm512_add_epi32(root, _mm512_slli_epi32(_mm512_castps_si512(sum), 18)));
}
#undef ROOT

/* floor(log2 a), -infinite for 0; and a / 2^that, 0 for 0. */
static inline vf_t vf_logb(vf_t a) { return _mm512_getexp_ps(a); }
static inline vd_t vd_logb(vd_t a) { return _mm512_getexp_pd(a); }
static inline vf_t vf_mantissa(vf_t a)
{
    __mmask16 some = _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    return _mm512_maskz_getmant_ps(some, a, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
}
static inline vd_t vd_mantissa(vd_t a)
{
    __mmask8 some = _mm512_cmp_pd_mask(a, _mm512_setzero_pd(), _CMP_NEQ_UQ);
    return _mm512_maskz_getmant_pd(some, a, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
}
static inline void vf_to_double(vf_t a, vd_t to[2])
{
    to[0] = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    to[1] = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
}
static inline void vd_store_float(float *p, vd_t a) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(a)); }

static inline __mmask16 vec_first16(int64_t n) { return (__mmask16)((1u << n) - 1); }
static inline __mmask8 vec_first8(int64_t n) { return (__mmask8)((1u << n) - 1); }
/* The first n <= lanes elements; the other lanes are 0 (load) or left alone (store). */
static inline vf_t vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vec_first16(n), p); }
static inline void vf_store_n(float *p, vf_t a, int64_t n) { _mm512_mask_storeu_ps(p, vec_first16(n), a); }
static inline vd_t vd_load_n(const double *p, int64_t n) { return _mm512_maskz_loadu_pd(vec_first8(n), p); }
static inline void vd_store_n(double *p, vd_t a, int64_t n) { _mm512_mask_storeu_pd(p, vec_first8(n), a); }

/* The first n lanes of a, the rest of other. */
static inline vf_t vf_first(int64_t n, vf_t a, vf_t other) { return _mm512_mask_blend_ps(vec_first16(n), other, a); }
static inline vd_t vd_first(int64_t n, vd_t a, vd_t other) { return _mm512_mask_blend_pd(vec_first8(n), other, a); }

/* The sum of all lanes. */
static inline double vd_total(vd_t a) { return _mm512_reduce_add_pd(a); }
static inline double vf_total(vf_t a)
{
    vd_t parts[2];
    vf_to_double(a, parts);
    return vd_total(vd_add(parts[0], parts[1]));
}

/* Keeps Clang from knowing a vector of zeros: a shift of those in it makes an expansion by a mask, which takes longer,
 * where each row waits for it. */
#if defined(__clang__)
#define VEC_HIDE(a) __asm__("" : "+v"(a))
#else
#define VEC_HIDE(a) (void)0
#endif

/* One lane up, the last lane of the vector before coming in; one lane down, the first of the next. */
static inline vf_t vf_shift_up(vf_t before, vf_t a)
{
    VEC_HIDE(before);
    return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(a), _mm512_castps_si512(before), 15));
}
static inline vf_t vf_shift_down(vf_t a, vf_t after)
{
    return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(after), _mm512_castps_si512(a), 1));
}
static inline vd_t vd_shift_up(vd_t before, vd_t a)
{
    VEC_HIDE(before);
    return _mm512_castsi512_pd(_mm512_alignr_epi64(_mm512_castpd_si512(a), _mm512_castpd_si512(before), 7));
}
static inline vd_t vd_shift_down(vd_t a, vd_t after)
{
    return _mm512_castsi512_pd(_mm512_alignr_epi64(_mm512_castpd_si512(after), _mm512_castpd_si512(a), 1));
}

/* In lane k the sum over the lanes of the k-th vector at p, which are so far apart. */
static inline vf_t vf_sums(const float *p, int64_t step)
{
    vf_t a[8], b[4];
    for (int i = 0; i < 8; i++, p += 2 * step) {
        vf_t u = vf_load(p), v = vf_load(p + step);
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(u, v), _mm512_unpackhi_ps(u, v));
    }
    for (int i = 0; i < 4; i++) {
        __m512d u = _mm512_castps_pd(a[2 * i]), v = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(u, v)), _mm512_castpd_ps(_mm512_unpackhi_pd(u, v)));
    }
    for (int i = 0; i < 2; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x88), _mm512_shuffle_f32x4(a[0], a[1], 0xdd));
}
static inline vd_t vd_sums(const double *p, int64_t step)
{
    vd_t a[4], b[2];
    for (int i = 0; i < 4; i++, p += 2 * step) {
        vd_t u = vd_load(p), v = vd_load(p + step);
        a[i] = _mm512_add_pd(_mm512_unpacklo_pd(u, v), _mm512_unpackhi_pd(u, v));
    }
    for (int i = 0; i < 2; i++)
        b[i] = _mm512_add_pd(_mm512_shuffle_f64x2(a[2 * i], a[2 * i + 1], 0x88),
                             _mm512_shuffle_f64x2(a[2 * i], a[2 * i + 1], 0xdd));
    return _mm512_add_pd(_mm512_shuffle_f64x2(b[0], b[1], 0x88), _mm512_shuffle_f64x2(b[0], b[1], 0xdd));
}

static inline void vf_transpose(vf_t r[16])
{
    vf_t a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a[i]), _mm512_castps_pd(a[i + 2])));
        b[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a[i]), _mm512_castps_pd(a[i + 2])));
        b[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a[i + 1]), _mm512_castps_pd(a[i + 3])));
        b[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a[i + 1]), _mm512_castps_pd(a[i + 3])));
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xdd);
    }
}

static inline void vd_transpose(vd_t r[8])
{
    vd_t a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[i] = _mm512_shuffle_f64x2(a[i], a[i + 2], 0x88);
        b[i + 2] = _mm512_shuffle_f64x2(a[i], a[i + 2], 0xdd);
        b[i + 4] = _mm512_shuffle_f64x2(a[i + 4], a[i + 6], 0x88);
        b[i + 6] = _mm512_shuffle_f64x2(a[i + 4], a[i + 6], 0xdd);
    }
    for (int i = 0; i < 2; i++) {
        r[i] = _mm512_shuffle_f64x2(b[i], b[i + 4], 0x88);
        r[i + 4] = _mm512_shuffle_f64x2(b[i], b[i + 4], 0xdd);
        r[i + 2] = _mm512_shuffle_f64x2(b[i + 2], b[i + 6], 0x88);
        r[i + 6] = _mm512_shuffle_f64x2(b[i + 2], b[i + 6], 0xdd);
    }
}

/* float16 and bfloat16, 16 at a time or the first n <= 16, to and from float lanes. */
typedef __m256i vec16_t;
static inline vec16_t vec16_load(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void vec16_store(uint16_t *p, vec16_t a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline vec16_t vec16_load_n(const uint16_t *p, int64_t n) { return _mm256_maskz_loadu_epi16(vec_first16(n), p); }
static inline void vec16_store_n(uint16_t *p, vec16_t a, int64_t n) { _mm256_mask_storeu_epi16(p, vec_first16(n), a); }
static inline vf_t vec16_of_half(vec16_t a) { return _mm512_cvtph_ps(a); }
static inline vec16_t vec16_to_half(vf_t a)
{
    return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf_t vec16_of_bfloat(vec16_t a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
}
static inline vec16_t vec16_to_bfloat(vf_t a)
{
    __m512i bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

static inline void vec_fence(void) { _mm_sfence(); }
/* A line that nobody else holds takes stores at once. By hand: clang 14 fails on the builtin at -O0. */
static inline void vec_prefetch_write(const void *p) { __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p)); }
/* Macros, as gcc takes a function that only prefetches for one without effect. Far: into the second cache, which can
 * wait for more lines at once, or into the near one. */
#define vec_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#define vec_prefetch_far(near, p)                                                                             \
    do {                                                                                                      \
        if (near) _mm_prefetch((const char *)(p), _MM_HINT_T0);                                               \
        else _mm_prefetch((const char *)(p), _MM_HINT_T1);                                                    \
    } while (0)

#endif
