/* AVX2 + FMA + F16C vectors of float (vf_, 8 lanes) and double (vd_, 4 lanes). */
#ifndef CTCBIND_VEC_AVX2_H
#define CTCBIND_VEC_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define VF_LANES 8
#define VD_LANES 4
#define VEC_REGISTERS 16
#define vd_fused vd_fma /* with one rounding */
typedef __m256 vf_t;
typedef __m256d vd_t;

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 11
/* These compilers make two halves of a load or store that may not be aligned, as suits processors before AVX2. */
#define VEC_MEMORY(X, R, T, S)                                                \
    typedef R X##_at[sizeof(T) / sizeof(R)] __attribute__((may_alias));       \
    static inline T X##_load(const R *p)                                      \
    {                                                                         \
        T a;                                                                  \
        __asm__("vmovu" #S " %1, %0" : "=x"(a) : "m"(*(const X##_at *)p));    \
        return a;                                                             \
    }                                                                         \
    static inline void X##_store(R *p, T a)                                   \
    {                                                                         \
        __asm__("vmovu" #S " %1, %0" : "=m"(*(X##_at *)p) : "x"(a));          \
    }
#else
#define VEC_MEMORY(X, R, T, S)                                           \
    static inline T X##_load(const R *p) { return _mm256_loadu_##S(p); } \
    static inline void X##_store(R *p, T a) { _mm256_storeu_##S(p, a); }
#endif
VEC_MEMORY(vf, float, vf_t, ps)
VEC_MEMORY(vd, double, vd_t, pd)

#define VEC_OPS(X, R, T, S)                                                                                   \
    static inline void X##_stream(R *p, T a) { _mm256_stream_##S(p, a); }                                     \
    static inline T X##_set1(R a) { return _mm256_set1_##S(a); }                                              \
    static inline T X##_add(T a, T b) { return _mm256_add_##S(a, b); }                                        \
    static inline T X##_sub(T a, T b) { return _mm256_sub_##S(a, b); }                                        \
    static inline T X##_mul(T a, T b) { return _mm256_mul_##S(a, b); }                                        \
    static inline T X##_fma(T a, T b, T c) { return _mm256_fmadd_##S(a, b, c); }                              \
    static inline T X##_fnma(T a, T b, T c) { return _mm256_fnmadd_##S(a, b, c); }                            \
    static inline T X##_max(T a, T b) { return _mm256_max_##S(a, b); }                                        \
    static inline T X##_min(T a, T b) { return _mm256_min_##S(a, b); }                                        \
    static inline T X##_rint(T a) { return _mm256_round_##S(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); } \
    /* sum += e and n += 1 in the lanes where a != b */                                                       \
    static inline void X##_add_others(T a, T b, T e, T *sum, T *n)                                            \
    {                                                                                                         \
        T others = _mm256_cmp_##S(a, b, _CMP_NEQ_UQ);                                                         \
        *sum = _mm256_add_##S(*sum, _mm256_and_##S(others, e));                                               \
        *n = _mm256_add_##S(*n, _mm256_and_##S(others, _mm256_set1_##S(1)));                                  \
    }                                                                                                         \
    static inline int X##_any_equal(T a, T b) { return _mm256_movemask_##S(_mm256_cmp_##S(a, b, _CMP_EQ_OQ)) != 0; } \
    /* then where a == b, other elsewhere */                                                                  \
    static inline T X##_if_equal(T a, T b, T then, T other)                                                   \
    {                                                                                                         \
        return _mm256_blendv_##S(other, then, _mm256_cmp_##S(a, b, _CMP_EQ_OQ));                              \
    }                                                                                                         \
    static inline T X##_count_equal(T a, T b, T n)                                                            \
    {                                                                                                         \
        return _mm256_add_##S(n, _mm256_and_##S(_mm256_cmp_##S(a, b, _CMP_EQ_OQ), _mm256_set1_##S(1)));       \
    }
VEC_OPS(vf, float, __m256, ps)
VEC_OPS(vd, double, __m256d, pd)
#undef VEC_OPS
#undef VEC_MEMORY

/* The largest lane. */
static inline float vf_highest(__m256 a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
static inline double vd_highest(__m256d a)
{
    __m128d m = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(m, _mm_unpackhi_pd(m, m)));
}

/* a * 2^n for a whole n; what falls below the normal numbers becomes 0. */
static inline vf_t vf_scale(vf_t a, vf_t n)
{
    __m256i e = _mm256_cvtps_epi32(_mm256_max_ps(n, _mm256_set1_ps(-127)));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23)));
}
static inline vd_t vd_scale(vd_t a, vd_t n)
{
    __m128i e = _mm256_cvtpd_epi32(_mm256_max_pd(n, _mm256_set1_pd(-1023)));
    __m256i wide = _mm256_cvtepi32_epi64(_mm_add_epi32(e, _mm_set1_epi32(1023)));
    return _mm256_mul_pd(a, _mm256_castsi256_pd(_mm256_slli_epi64(wide, 52)));
}

/* A number in (-128, 128) added to this is rounded to a whole one; then a * 2^that, 0 for -127. */
#define VF_WHOLE_SUM (0x1.8p23f + 127)
#define VF_EXP_LEAST -88.03f /* the logarithm of what becomes 0 */
static inline vf_t vf_scale_whole(vf_t a, vf_t sum)
{
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(sum), 23)));
}

/* A number added to this is rounded to eighths; then 2^that, 0 for -127. The table has the bits of 2^(k/8) for the k in
 * the last three bits, less those of 1 and of k, which is shifted along with the whole number. */
#define VF_ROOTS 8
#define VF_ROOT_SUM (0x1.8p20f + 127)
#define ROOT(k, bits) (bits) - 0x3f800000 - ((k) << 20)
static inline vf_t vf_power(vf_t sum)
{
    static const int32_t roots[8] = {
        ROOT(0, 0x3f800000), ROOT(1, 0x3f8b95c2), ROOT(2, 0x3f9837f0), ROOT(3, 0x3fa5fed7),
        ROOT(4, 0x3fb504f3), ROOT(5, 0x3fc5672a), ROOT(6, 0x3fd744fd), ROOT(7, 0x3feac0c7),
    };
    __m256i root = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)roots), _mm256_castps_si256(sum));
    return _mm256_castsi256_ps(_mm256_add_epi32(root, _mm256_slli_epi32(_mm256_castps_si256(sum), 20)));
}
#undef ROOT

static inline vf_t vf_pow2(vf_t n) { return vf_scale(vf_set1(1), n); }
static inline vd_t vd_pow2(vd_t n) { return vd_scale(vd_set1(1), n); }

/* floor(log2 a), -infinite for 0; and a / 2^that, 0 for 0. Subnormal numbers count as 0. */
static inline vf_t vf_logb(vf_t a)
{
    __m256i field = _mm256_srli_epi32(_mm256_castps_si256(a), 23);
    __m256 e = _mm256_cvtepi32_ps(_mm256_sub_epi32(field, _mm256_set1_epi32(127)));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), e, _mm256_cmp_ps(a, _mm256_set1_ps(0x1p-126f), _CMP_GE_OQ));
}
static inline vf_t vf_mantissa(vf_t a)
{
    __m256i m = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffff));
    m = _mm256_or_si256(m, _mm256_set1_epi32(0x3f800000));
    return _mm256_and_ps(_mm256_castsi256_ps(m), _mm256_cmp_ps(a, _mm256_set1_ps(0x1p-126f), _CMP_GE_OQ));
}
static inline vd_t vd_logb(vd_t a)
{
    /* The exponent field as the low bits of a double just above 2^52. */
    __m256i e = _mm256_srli_epi64(_mm256_castpd_si256(a), 52);
    e = _mm256_or_si256(e, _mm256_castpd_si256(_mm256_set1_pd(0x1p52)));
    __m256d n = _mm256_sub_pd(_mm256_castsi256_pd(e), _mm256_set1_pd(0x1p52 + 1023));
    return _mm256_blendv_pd(_mm256_set1_pd(-INFINITY), n, _mm256_cmp_pd(a, _mm256_set1_pd(0x1p-1022), _CMP_GE_OQ));
}
static inline vd_t vd_mantissa(vd_t a)
{
    __m256i m = _mm256_and_si256(_mm256_castpd_si256(a), _mm256_set1_epi64x(0xfffffffffffff));
    m = _mm256_or_si256(m, _mm256_set1_epi64x(0x3ff0000000000000));
    return _mm256_and_pd(_mm256_castsi256_pd(m), _mm256_cmp_pd(a, _mm256_set1_pd(0x1p-1022), _CMP_GE_OQ));
}
static inline void vf_to_double(vf_t a, vd_t to[2])
{
    to[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
    to[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
}
static inline void vd_store_float(float *p, vd_t a) { _mm_storeu_ps(p, _mm256_cvtpd_ps(a)); }

/* The first n <= lanes elements; the other lanes are 0 (load) or left alone (store). */
static const int32_t vec_ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
static inline __m256i vec_first32(int64_t n) { return _mm256_loadu_si256((const __m256i *)(vec_ones + 8 - n)); }
static inline __m256i vec_first64(int64_t n) { return _mm256_loadu_si256((const __m256i *)(vec_ones + 8 - 2 * n)); }
static inline vf_t vf_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, vec_first32(n)); }
static inline vd_t vd_load_n(const double *p, int64_t n) { return _mm256_maskload_pd(p, vec_first64(n)); }
/* In pieces: AMD's processors take a dozen cycles and more for a masked store. */
static inline void vf_store_n(float *p, vf_t a, int64_t n)
{
    __m128 part = _mm256_castps256_ps128(a);
    if (n == VF_LANES) _mm256_storeu_ps(p, a);
    if (n & 4) {
        _mm_storeu_ps(p, part);
        part = _mm256_extractf128_ps(a, 1);
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)(p + (n & 4)), part);
        part = _mm_movehl_ps(part, part);
    }
    if (n & 1) _mm_store_ss(p + (n & 6), part);
}
static inline void vd_store_n(double *p, vd_t a, int64_t n)
{
    __m128d part = _mm256_castpd256_pd128(a);
    if (n == VD_LANES) _mm256_storeu_pd(p, a);
    if (n & 2) {
        _mm_storeu_pd(p, part);
        part = _mm256_extractf128_pd(a, 1);
    }
    if (n & 1) _mm_store_sd(p + (n & 2), part);
}

/* The first n lanes of a, the rest of other. */
static inline vf_t vf_first(int64_t n, vf_t a, vf_t other)
{
    return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(vec_first32(n)));
}
static inline vd_t vd_first(int64_t n, vd_t a, vd_t other)
{
    return _mm256_blendv_pd(other, a, _mm256_castsi256_pd(vec_first64(n)));
}

/* The sum of all lanes. */
static inline double vd_total(vd_t a)
{
    __m128d half = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}
static inline double vf_total(vf_t a)
{
    vd_t parts[2];
    vf_to_double(a, parts);
    return vd_total(vd_add(parts[0], parts[1]));
}

/* One lane up, the last lane of the vector before coming in; one lane down, the first of the next. */
static inline vf_t vf_shift_up(vf_t before, vf_t a)
{
    __m256i across = _mm256_permute2x128_si256(_mm256_castps_si256(before), _mm256_castps_si256(a), 0x21);
    return _mm256_castsi256_ps(_mm256_alignr_epi8(_mm256_castps_si256(a), across, 12));
}
static inline vf_t vf_shift_down(vf_t a, vf_t after)
{
    __m256i across = _mm256_permute2x128_si256(_mm256_castps_si256(a), _mm256_castps_si256(after), 0x21);
    return _mm256_castsi256_ps(_mm256_alignr_epi8(across, _mm256_castps_si256(a), 4));
}
static inline vd_t vd_shift_up(vd_t before, vd_t a)
{
    return _mm256_shuffle_pd(_mm256_permute2f128_pd(before, a, 0x21), a, 5);
}
static inline vd_t vd_shift_down(vd_t a, vd_t after)
{
    return _mm256_shuffle_pd(a, _mm256_permute2f128_pd(a, after, 0x21), 5);
}

/* In lane k the sum over the lanes of the k-th vector at p, which are so far apart. */
static inline vf_t vf_sums(const float *p, int64_t step)
{
    vf_t a[2];
    for (int i = 0; i < 2; i++, p += 4 * step)
        a[i] = _mm256_hadd_ps(_mm256_hadd_ps(vf_load(p), vf_load(p + step)),
                              _mm256_hadd_ps(vf_load(p + 2 * step), vf_load(p + 3 * step)));
    return _mm256_add_ps(_mm256_permute2f128_ps(a[0], a[1], 0x20), _mm256_permute2f128_ps(a[0], a[1], 0x31));
}
static inline vd_t vd_sums(const double *p, int64_t step)
{
    vd_t a = _mm256_hadd_pd(vd_load(p), vd_load(p + step));
    vd_t b = _mm256_hadd_pd(vd_load(p + 2 * step), vd_load(p + 3 * step));
    return _mm256_add_pd(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
}

static inline void vf_transpose(vf_t r[8])
{
    vf_t a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}
static inline void vd_transpose(vd_t r[4])
{
    vd_t a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    vd_t c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20);
    r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31);
    r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

/* float16 and bfloat16, 8 at a time or the first n <= 8, to and from float lanes. */
typedef __m128i vec16_t;
static inline vec16_t vec16_load(const uint16_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline void vec16_store(uint16_t *p, vec16_t a) { _mm_storeu_si128((__m128i *)p, a); }
static inline vec16_t vec16_load_n(const uint16_t *p, int64_t n)
{
    uint64_t whole, rest = 0;
    const uint16_t *end = p + n;
    if (n == VF_LANES) return vec16_load(p);
    if (n & 1) rest = *--end;
    if (n & 2) {
        uint32_t two;
        end -= 2;
        memcpy(&two, end, sizeof two);
        rest = rest << 32 | two;
    }
    if (!(n & 4)) return _mm_set_epi64x(0, (int64_t)rest);
    memcpy(&whole, p, sizeof whole);
    return _mm_set_epi64x((int64_t)rest, (int64_t)whole);
}
static inline void vec16_store_n(uint16_t *p, vec16_t a, int64_t n)
{
    if (n == VF_LANES) vec16_store(p, a);
    if (n & 4) {
        _mm_storel_epi64((__m128i *)p, a);
        a = _mm_srli_si128(a, 8);
    }
    uint64_t rest = (uint64_t)_mm_cvtsi128_si64(a);
    if (n & 2) {
        memcpy(p + (n & 4), &rest, 4);
        rest >>= 32;
    }
    if (n & 1) p[n & 6] = (uint16_t)rest;
}
static inline vf_t vec16_of_half(vec16_t a) { return _mm256_cvtph_ps(a); }
static inline vec16_t vec16_to_half(vf_t a)
{
    return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf_t vec16_of_bfloat(vec16_t a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}
static inline vec16_t vec16_to_bfloat(vf_t a)
{
    __m256i bits = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    bits = _mm256_srli_epi32(bits, 16);
    bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    return _mm256_castsi256_si128(bits);
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
