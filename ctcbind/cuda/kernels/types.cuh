/* What one module computes in. CTC_X is the element type of logits and gradients: 0 float32, 1 float64, 2 float16,
 * 3 bfloat16; Real what it is computed in, and the losses' type.
 *
 * Needs no header, so that NVRTC compiles it anywhere. What is to be contracted is written as fma: with --fmad=false
 * the arithmetic on Real float is the same to the last bit wherever IEEE 754 holds; none of it needs subnormal numbers,
 * which CuPy has NVRTC take for 0. */

typedef long long int64;

#define WARP 32
#define ALL_LANES 0xffffffffu
#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)

#if CTC_X == 1
typedef double Real;
#define REAL_IS_DOUBLE 1
#else
typedef float Real;
#define REAL_IS_DOUBLE 0
#endif

struct Half {
    unsigned short bits;
};
struct BFloat {
    unsigned short bits;
};

/* By the device's own instructions, one to a number, which have nothing to do with -ftz; and in whole numbers, to the
 * same bits (but for which NaN it is), for the host and for what has none. */
static __device__ __forceinline__ Real real_of(Real x) { return x; }
static __device__ __forceinline__ float real_of(Half x)
{
#ifdef __CUDA_ARCH__
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(x.bits));
    return v;
#else
    unsigned magnitude = (unsigned)(x.bits & 0x7fff) << 13, sign = (unsigned)(x.bits & 0x8000) << 16;
    if (magnitude >= 0x0f800000u) magnitude |= 0x70000000u; /* infinity and NaN */
    else if (magnitude < 0x00800000u) /* below the normal numbers, and so as a float that CuPy's -ftz=true would lose */
        magnitude = (unsigned)__float_as_int((float)(int)(magnitude >> 13) * __int_as_float(0x33800000)); /* 2^-24 */
    else magnitude = (unsigned)__float_as_int(__int_as_float((int)magnitude) * __int_as_float(0x77800000)); /* 2^112 */
    return __int_as_float((int)(magnitude | sign));
#endif
}
static __device__ __forceinline__ float real_of(BFloat x)
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 1000 /* a shift has ptxas convert too many at once: in 162 registers */
    float v;
    asm("mov.b32 %0, {%1, %2};" : "=f"(v) : "h"((unsigned short)0), "h"(x.bits));
    return v;
#else
    return __int_as_float((int)((unsigned)x.bits << 16));
#endif
}

#if CTC_X < 2
typedef Real X;
static __device__ __forceinline__ X stored(Real v) { return v; }
#elif CTC_X == 2
typedef Half X;
static __device__ __forceinline__ X stored(float v)
{
#ifdef __CUDA_ARCH__
    X x;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x.bits) : "f"(v));
#else
    unsigned bits = (unsigned)__float_as_int(v), sign = bits >> 16 & 0x8000, out;
    bits &= 0x7fffffff;
    if (bits >= 0x47800000u) out = bits > 0x7f800000u ? 0x7e00 : 0x7c00;
    else if (bits < 0x38800000u) /* below the normal numbers: the sum rounds to their last place */
        out = (unsigned)(__float_as_int(__int_as_float((int)bits) + 0.5f) - 0x3f000000);
    else out = (bits - 0x38000000u + 0xfff + (bits >> 13 & 1)) >> 13;
    X x = {(unsigned short)(out | sign)};
#endif
    return x;
}
#else
typedef BFloat X;
static __device__ __forceinline__ X stored(float v)
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    X x;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x.bits) : "f"(v));
#else
    unsigned bits = (unsigned)__float_as_int(v);
    X x = {(unsigned short)((bits & 0x7fffffff) > 0x7f800000u ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
    return x;
}
#endif

#define PACK (16 / (int)sizeof(X))
struct __align__(16) Pack {
    X v[PACK];
};

/* A number of its own exponent: m * 2^e. No logit that is finite takes e near DEAD. */
#if REAL_IS_DOUBLE
struct __align__(16) Scaled {
    Real m;
    int e, unused;
};
#else
struct __align__(8) Scaled {
    Real m;
    int e;
};
#endif

/* A label and the blank before it. */
struct __align__(16) Pair {
    Scaled label, blank;
};

/* What is known of a row once it has been read: its largest logit, the largest of those that are used, and the sum of
 * exp(x - top), less 1 as well as divided into 1. */
struct __align__(16) Measure {
    Real top, high, inverse, rest;
};

/* The one argument of every kernel; each field has 8 bytes. */
struct Problem {
    const X *logits; /* (T, N, C), strides in elements, classes side by side */
    int64 element;   /* CTC_X of theirs, for the lattice, which is compiled for Real alone */
    int64 x_t, x_n;
    X *grad; /* the same; null where it is not wanted; may be the logits themselves */
    int64 g_t, g_n;
    Real *losses;              /* (N,) */
    const void *labels;        /* (N, label_width), or label_total in one row where label_width is -1 */
    const void *label_lengths; /* (N,), or null: all of each row before the negatives that end it */
    const void *input_lengths; /* (N,), or null: T */
    int64 label_width, label_total;
    int64 wide; /* whether those three are int64 rather than int32: bits 1, 2, 4 */
    int64 T, N, C, blank, simple;
    int64 weighing;        /* what each sample's gradient is multiplied by: 0 nothing, 1 weights[n], 2 1/N, 3 1/(N L) */
    const double *weights; /* (N,) */
    /* workspace */
    int64 pitch;       /* room for the labels of one sample and the blank */
    int64 sparse;      /* whether the classes are more */
    int64 table;       /* what classes emit goes through shared memory, as they are fewer */
    int64 width_bits;  /* numbers of the lattice stand in rows of 2^width_bits pairs, */
    int64 strips;      /* so many of which hold the pitch */
    int *clean;        /* [N][pitch] labels, in range whatever came in */
    int *slot;         /* [N][pitch] sparse: the first position of the same label; else by class whether it is used */
    int *lengths;      /* [2][N] labels and frames */
    int *status;       /* [N] */
    unsigned *strange; /* [N] what is strange about the logits, the greatest of some numbers */
    Measure *measures; /* [N][T] */
    Scaled *emitted;   /* see places.cuh for this and the next two */
    Scaled *blanks;
    Pair *lattice;
    Pair *middles;     /* [N][pitch] */
    unsigned long long *edges; /* see places.cuh; for labels that need more than one strip */
    unsigned *tickets;         /* [2] how many blocks have begun, in each part of the lattice */
    int64 zeroing;     /* whether a loss that is infinite is to be 0 */
    Real *reduced;     /* the weighted sum of the losses; null where it is not wanted */
    /* around cuDNN's call; in place of the lattice */
    float *raw;          /* cuDNN's gradient, (T, N, C) with strides r_t, r_n; if `rotated`, the blank's column first */
    int64 r_t, r_n, rotated;
    float *moved;        /* [T][N][C] the logits with the blank's column in front */
    int *packed;         /* labels of all samples, one after the other, with the blank at 0 */
    int *packed_lengths; /* [2][N] labels and frames */
    float *costs;        /* [N] cuDNN's losses */
    double *least;       /* [N][T] ln p of the least probable class that a path may take */
    int64 probabilities; /* whether `logits` are what comes after the softmax */
    int64 doubted;       /* whether the rows of `raw` must sum to 0, or the sample is lost */
};

/* Of Problem.strange: used logits too large for exponents, or, around cuDNN, logits or a gradient that it cannot have
 * or give; NaN; what should be probabilities and is not. */
enum { FAR = 1, UNFIT = 1, NOT_NUMBERS = 2, UNLIKE_PROBABILITIES = 3 };
enum { INFEASIBLE = 1, BAD_LABELS = 2, NO_PATH = 4, TOO_LONG = 8, EMPTY = 16, NAN_LOGITS = 32, LOST = 64,
       NO_PROBABILITIES = 128 };

static __device__ __forceinline__ double weight_of(const Problem &p, int64 n, int64 L)
{
    if (p.weighing == 0) return 1;
    if (p.weighing == 1) return p.weights[n];
    return 1 / (p.weighing == 2 ? (double)p.N : (double)p.N * (double)(L ? L : 1));
}

/* Shared memory is all asked for at the launch. */
#ifndef dynamic_shared
extern __shared__ __align__(16) unsigned char dynamic_shared[];
#endif
