/* What csrc/vec_avx512.h asks of AVX-512, lane by lane in plain C: its kernels run by these on processors without it.
 * They are the Intel intrinsics of the same names (lanes_ for _mm512_), as the manual says what each does, with those
 * operands only that the kernels give; reductions go in GCC's order. Included with AVX2, FMA and F16C switched on. */
#ifndef CTCBIND_LANES_H
#define CTCBIND_LANES_H

#include <immintrin.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES(n) for (int i = 0; i < (n); i++)
#define FLOATS(S, R, T, M, N, NAME)                                                                           \
    static inline T lanes_loadu_##S(const R *p)                                                               \
    {                                                                                                         \
        T a;                                                                                                  \
        memcpy(&a, p, sizeof a);                                                                              \
        return a;                                                                                             \
    }                                                                                                         \
    static inline void lanes_storeu_##S(R *p, T a) { memcpy(p, &a, sizeof a); }                               \
    static inline void lanes_stream_##S(R *p, T a) { *(T *)p = a; /* aligned */ }                             \
    static inline T lanes_set1_##S(R x)                                                                       \
    {                                                                                                         \
        T a;                                                                                                  \
        LANES(N) a[i] = x;                                                                                    \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_setzero_##S(void) { return lanes_set1_##S(0); }                                     \
    static inline T lanes_add_##S(T a, T b) { return a + b; }                                                 \
    static inline T lanes_sub_##S(T a, T b) { return a - b; }                                                 \
    static inline T lanes_mul_##S(T a, T b) { return a * b; }                                                 \
    static inline T lanes_fmadd_##S(T a, T b, T c)                                                            \
    {                                                                                                         \
        LANES(N) a[i] = NAME(fma)(a[i], b[i], c[i]);                                                          \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_fnmadd_##S(T a, T b, T c) { return lanes_fmadd_##S(-a, b, c); }                     \
    /* the second where one is a NaN */                                                                       \
    static inline T lanes_max_##S(T a, T b)                                                                   \
    {                                                                                                         \
        LANES(N) a[i] = a[i] > b[i] ? a[i] : b[i];                                                            \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_min_##S(T a, T b)                                                                   \
    {                                                                                                         \
        LANES(N) a[i] = a[i] < b[i] ? a[i] : b[i];                                                            \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_roundscale_##S(T a, int how)                                                        \
    {                                                                                                         \
        (void)how; /* to whole numbers, the nearest */                                                        \
        LANES(N) a[i] = NAME(rint)(a[i]);                                                                     \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_scalef_##S(T a, T n)                                                                \
    {                                                                                                         \
        LANES(N)                                                                                              \
        {                                                                                                     \
            if (isnan(n[i])) a[i] = a[i] + n[i];                                                              \
            else if (isinf(n[i])) a[i] *= n[i] > 0 ? (R)INFINITY : 0;                                         \
            else a[i] = NAME(ldexp)(a[i], (int)NAME(floor)(n[i] > 9999 ? 9999 : n[i] < -9999 ? -9999 : n[i])); \
        }                                                                                                     \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_getexp_##S(T a)                                                                     \
    {                                                                                                         \
        LANES(N) a[i] = NAME(logb)(a[i]);                                                                     \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_maskz_getmant_##S(M some, T a, int range, int sign)                                 \
    {                                                                                                         \
        (void)range, (void)sign; /* in [1, 2), and never below 0 */                                           \
        LANES(N)                                                                                              \
        {                                                                                                     \
            int n;                                                                                            \
            R whole = NAME(fabs)(a[i]);                                                                       \
            if (!(some >> i & 1)) a[i] = 0;                                                                   \
            else if (!isnan(whole)) a[i] = whole == 0 || isinf(whole) ? 1 : 2 * NAME(frexp)(whole, &n);       \
        }                                                                                                     \
        return a;                                                                                             \
    }                                                                                                         \
    static inline M lanes_cmp_##S##_mask(T a, T b, int how)                                                   \
    {                                                                                                         \
        unsigned found = 0;                                                                                   \
        LANES(N) found |= (unsigned)(how == _CMP_EQ_OQ ? a[i] == b[i] : a[i] != b[i]) << i;                   \
        return (M)found;                                                                                      \
    }                                                                                                         \
    static inline T lanes_mask_blend_##S(M some, T a, T b)                                                    \
    {                                                                                                         \
        LANES(N) a[i] = some >> i & 1 ? b[i] : a[i];                                                          \
        return a;                                                                                             \
    }                                                                                                         \
    static inline T lanes_mask_add_##S(T other, M some, T a, T b)                                             \
    {                                                                                                         \
        return lanes_mask_blend_##S(some, other, a + b);                                                      \
    }                                                                                                         \
    static inline T lanes_maskz_loadu_##S(M some, const R *p)                                                 \
    {                                                                                                         \
        T a = lanes_set1_##S(0);                                                                              \
        LANES(N) if (some >> i & 1) a[i] = p[i];                                                              \
        return a;                                                                                             \
    }                                                                                                         \
    static inline void lanes_mask_storeu_##S(R *p, M some, T a)                                               \
    {                                                                                                         \
        LANES(N) if (some >> i & 1) p[i] = a[i];                                                              \
    }                                                                                                         \
    static inline R lanes_reduce_max_##S(T a)                                                                 \
    {                                                                                                         \
        for (int half = N / 2; half; half /= 2) LANES(half) a[i] = a[half + i] > a[i] ? a[half + i] : a[i];   \
        return a[0];                                                                                          \
    }                                                                                                         \
    /* the lower, or the upper half of each quarter */                                                        \
    static inline T lanes_unpack_##S(T a, T b, int upper)                                                     \
    {                                                                                                         \
        T c;                                                                                                  \
        LANES(N)                                                                                              \
        {                                                                                                     \
            int quarter = N / 4, from = i / quarter * quarter + upper * quarter / 2 + i % quarter / 2;        \
            c[i] = i % 2 ? b[from] : a[from];                                                                 \
        }                                                                                                     \
        return c;                                                                                             \
    }                                                                                                         \
    static inline T lanes_unpacklo_##S(T a, T b) { return lanes_unpack_##S(a, b, 0); }                        \
    static inline T lanes_unpackhi_##S(T a, T b) { return lanes_unpack_##S(a, b, 1); }                        \
    /* two quarters of each */                                                                                \
    static inline T lanes_quarters_##S(T a, T b, int which)                                                   \
    {                                                                                                         \
        T c;                                                                                                  \
        LANES(N)                                                                                              \
        {                                                                                                     \
            int quarter = N / 4, from = (which >> 2 * (i / quarter) & 3) * quarter + i % quarter;             \
            c[i] = i < N / 2 ? a[from] : b[from];                                                             \
        }                                                                                                     \
        return c;                                                                                             \
    }
#define OF_FLOAT(name) name##f
#define OF_DOUBLE(name) name
FLOATS(ps, float, __m512, __mmask16, 16, OF_FLOAT)
FLOATS(pd, double, __m512d, __mmask8, 8, OF_DOUBLE)
#define lanes_shuffle_f32x4 lanes_quarters_ps
#define lanes_shuffle_f64x2 lanes_quarters_pd

static inline double lanes_reduce_add_pd(__m512d a)
{
    for (int half = 4; half; half /= 2) LANES(half) a[i] = a[half + i] + a[i];
    return a[0];
}

#define lanes_castps_pd(a) ((__m512d)(a))
#define lanes_castpd_ps(a) ((__m512)(a))
#define lanes_castps_si512(a) ((__m512i)(a))
#define lanes_castpd_si512(a) ((__m512i)(a))
#define lanes_castsi512_ps(a) ((__m512)(a))
#define lanes_castsi512_pd(a) ((__m512d)(a))

typedef uint32_t lanes_32 __attribute__((vector_size(64)));
typedef uint64_t lanes_64 __attribute__((vector_size(64)));
static inline __m512i lanes_loadu_si512(const void *p)
{
    __m512i a;
    memcpy(&a, p, sizeof a);
    return a;
}
#define WHOLE(S, T, R, N)                                                                                     \
    static inline __m512i lanes_set1_##S(R x)                                                                 \
    {                                                                                                         \
        T a;                                                                                                  \
        LANES(N) a[i] = x;                                                                                    \
        return (__m512i)a;                                                                                    \
    }                                                                                                         \
    static inline __m512i lanes_add_##S(__m512i a, __m512i b) { return (__m512i)((T)a + (T)b); }              \
    static inline __m512i lanes_slli_##S(__m512i a, int by) { return (__m512i)((T)a << by); }                 \
    static inline __m512i lanes_srli_##S(__m512i a, int by) { return (__m512i)((T)a >> by); }                 \
    /* a above b, from lane n on */                                                                           \
    static inline __m512i lanes_alignr_##S(__m512i a, __m512i b, int n)                                       \
    {                                                                                                         \
        T c;                                                                                                  \
        LANES(N) c[i] = i + n < N ? ((T)b)[i + n] : ((T)a)[i + n - N];                                        \
        return (__m512i)c;                                                                                    \
    }
WHOLE(epi32, lanes_32, uint32_t, 16)
WHOLE(epi64, lanes_64, uint64_t, 8)
static inline __m512i lanes_and_si512(__m512i a, __m512i b) { return a & b; }
static inline __m512i lanes_permutex2var_epi32(__m512i a, __m512i at, __m512i b)
{
    lanes_32 c;
    LANES(16)
    {
        uint32_t from = ((lanes_32)at)[i];
        c[i] = from & 16 ? ((lanes_32)b)[from & 15] : ((lanes_32)a)[from & 15];
    }
    return (__m512i)c;
}

/* To the nearest; what is out of range becomes the lowest. */
static inline __m512i lanes_cvtps_epi32(__m512 a)
{
    lanes_32 n;
    LANES(16) n[i] = (uint32_t)(fabsf(a[i]) < 0x1p31f ? (int32_t)rintf(a[i]) : INT32_MIN);
    return (__m512i)n;
}
static inline __m512i lanes_cvtpd_epi64(__m512d a)
{
    lanes_64 n;
    LANES(8) n[i] = (uint64_t)(fabs(a[i]) < 0x1p63 ? (int64_t)rint(a[i]) : INT64_MIN);
    return (__m512i)n;
}

static inline __m256 lanes_half(__m512 a, int upper)
{
    __m256 half;
    memcpy(&half, (const char *)&a + 32 * upper, sizeof half);
    return half;
}
#define lanes_castps512_ps256(a) lanes_half(a, 0)
#define lanes_extractf32x8_ps(a, upper) lanes_half(a, upper)
static inline __m512d lanes_cvtps_pd(__m256 a)
{
    __m512d b;
    LANES(8) b[i] = a[i];
    return b;
}
static inline __m256 lanes_cvtpd_ps(__m512d a)
{
    __m256 b;
    LANES(8) b[i] = (float)a[i];
    return b;
}

/* The numbers of 16 bits of a vector of 256. */
typedef struct {
    uint16_t each[16];
} lanes_16;
static inline lanes_16 lanes_apart(__m256i a)
{
    lanes_16 b;
    memcpy(&b, &a, sizeof b);
    return b;
}
static inline __m256i lanes_together(lanes_16 a)
{
    __m256i b;
    memcpy(&b, &a, sizeof b);
    return b;
}
static inline __m256i lanes_maskz_loadu_epi16(__mmask16 some, const void *p)
{
    lanes_16 a = {{0}};
    LANES(16) if (some >> i & 1) a.each[i] = ((const uint16_t *)p)[i];
    return lanes_together(a);
}
static inline void lanes_mask_storeu_epi16(void *p, __mmask16 some, __m256i a)
{
    LANES(16) if (some >> i & 1) ((uint16_t *)p)[i] = lanes_apart(a).each[i];
}
static inline __m512i lanes_cvtepu16_epi32(__m256i a)
{
    lanes_32 b;
    LANES(16) b[i] = lanes_apart(a).each[i];
    return (__m512i)b;
}
static inline __m256i lanes_cvtepi32_epi16(__m512i a)
{
    lanes_16 b;
    LANES(16) b.each[i] = (uint16_t)((lanes_32)a)[i];
    return lanes_together(b);
}
static inline __m512 lanes_cvtph_ps(__m256i a)
{
    __m512 b;
    LANES(16) b[i] = _cvtsh_ss(lanes_apart(a).each[i]);
    return b;
}
static inline __m256i lanes_cvtps_ph(__m512 a, int how)
{
    lanes_16 b;
    (void)how; /* to the nearest */
    LANES(16) b.each[i] = _cvtss_sh(a[i], _MM_FROUND_TO_NEAREST_INT);
    return lanes_together(b);
}

#endif
