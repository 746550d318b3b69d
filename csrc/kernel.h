/* What their callers (ctcbind.c; rows.c, trellis.c, align.c, decode.c) and the kernels, one set for each instruction
 * set, say to each other. */
#ifndef CTCBIND_KERNEL_H
#define CTCBIND_KERNEL_H

#include <float.h>

#include "atomics.h"
#include "ctcbind.h"
#include "rows.h"
#include "stop.h"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(_M_FP_FAST)
#error "the order of sums, infinities and NaN count here: compile without -ffast-math (/fp:fast)"
#endif
#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "floats must be rounded as floats: on 32-bit x86 compile with -msse2 -mfpmath=sse"
#endif

/* For functions whose first arguments are constants in each call: compiled once for each set of them. */
#if defined(__GNUC__)
#define EACH_ITS_OWN static inline __attribute__((always_inline))
#elif defined(_MSC_VER)
#define EACH_ITS_OWN static __forceinline
#else
#define EACH_ITS_OWN static inline
#endif

/* For loops that use all registers: in a function by themselves their constants stay there. */
#if defined(__GNUC__)
#define BY_ITSELF static __attribute__((noinline))
#elif defined(_MSC_VER)
#define BY_ITSELF static __declspec(noinline)
#else
#define BY_ITSELF static
#endif

/* Rows are taken in blocks of this many; every per-row array of a block is this long. */
enum { BLOCK = 16 };

/* Most classes of which each may have a column in a table. */
enum { MOST_DENSE = 320 };

/* One sample, its pointers already at sample n. */
typedef struct {
    const void *x;
    void *g; /* NULL: loss only */
    int64_t x_t, x_c, g_t, g_c;
    const int32_t *labels;
    int32_t L, T, C, blank; /* T: the rows that count; of half a sample, those of that half */
    int32_t all;            /* the rows that count, of the whole sample */
    int32_t rows;           /* all rows, padding included */
    int32_t dtype, simple;
    double weight;
    int32_t stream; /* write long gradient rows past the cache */
    int32_t halved; /* taken from both ends to the middle and back, which two threads can do side by side */
    atomic_int *back; /* of a split sample: how many blocks, from the last on, beta is through with */
    ctcbind_question *question; /* asked at each block whether to leave the sample; NULL where it is soon done */
    int32_t slot;               /* of the thread that is at work on it */
} ctc_sample;

/* What a workspace must hold: the largest of each over the samples that one thread may meet. */
typedef struct {
    int64_t T, L, C;
    int32_t grad, dtype;
    int32_t strided; /* so many rows of strided classes are gathered at once: 0, 1 or BLOCK */
    int32_t dense; /* every class has a column in the tables, not only those that are used */
    size_t keep; /* bytes that may be spent on keeping what could be computed again */
    int32_t rooms;  /* rows of the gradient are made in scratch first, and written from there */
    int32_t split;  /* more than 0: so many threads share each sample, in three phases */
    int32_t halved; /* any sample is taken in halves */
} ctc_extent;

/* Checkpoints of more bytes than this are packed, and only every other block has one. */
#ifndef WORTH_PACKING
#define WORTH_PACKING ((size_t)1 << 20)
#endif

/* The phases of a sample that several threads share. PHASE_ROWS takes rows first to end - 1, which lie in one block;
 * when all rows of a block are done, PHASE_EMISSIONS takes that block; then come the paths, then the gradients. */
enum { PHASE_BEGIN, PHASE_ROWS, PHASE_EMISSIONS, PHASE_PATHS, PHASE_GRADIENT };

/* What is stopped returns NaN, or nothing of use, and may leave any part of the gradient unwritten. */
typedef double (*ctc_phase)(const ctc_sample *, const ctc_extent *, void *work, int phase, int64_t first, int64_t end,
                            int slot);

/* The steps of a sample that is taken in halves, in this order, each by any thread: forward from both ends; the
 * meeting; both once more where that was not exact enough, or too much was left out; back to both ends. STEP_MEET and
 * STEP_MEET_AGAIN return the loss. */
enum {
    STEP_FIRST,
    STEP_SECOND,
    STEP_MEET,
    STEP_FIRST_AGAIN,
    STEP_SECOND_AGAIN,
    STEP_MEET_AGAIN,
    STEP_FIRST_BACK,
    STEP_SECOND_BACK,
    STEPS
};

typedef double (*ctc_step)(const ctc_sample *, const ctc_extent *, void *work, int step);

/* What paths ask of a row: its largest logit; the other terms of the sum of the softmax, relative to that one's, NaN
 * where any logit is; and unless it is, the first class with that logit. */
typedef struct {
    double top, rest;
    int64_t first;
} ctc_best;

/* The same of n <= BLOCK rows from t0 on. */
typedef void (*ctc_rows)(const ctc_sample *, int64_t t0, int n, void *room, ctc_best *);

/* Most classes of which rows are read in a table of floats, or of doubles; of more, row after row takes less time. */
enum { MOST_IN_TABLE = 128, MOST_IN_DOUBLES = 32 };

/* The doubles that ctc_rows has room for, at least. One row whose classes are side by side needs none. */
static inline int64_t ctcbind_room_of_rows(int64_t C) { return C <= MOST_IN_TABLE ? (C + 8) * BLOCK : C; }

/* to[c] = factor * e^(logit - top), C numbers of that kernel, for a top above -inf; of +inf, factor where the logit is
 * that. to may be the row itself where its classes are side by side. */
typedef void (*ctc_soft)(const ctc_sample *, int64_t t, double top, double factor, void *to);

typedef struct ctc_kernel {
    const char *name;
    uint64_t (*bytes32)(const ctc_extent *), (*bytes64)(const ctc_extent *);
    double (*sample32)(const ctc_sample *, const ctc_extent *, void *work);
    double (*sample64)(const ctc_sample *, const ctc_extent *, void *work);
    ctc_phase phase32, phase64;
    ctc_step step32, step64;
    ctc_rows best32, best64;
    ctc_soft soft32, soft64;
} ctc_kernel;

/* NULL where the build or the processor lacks it. */
const ctc_kernel *ctcbind_kernel_avx512(void);
const ctc_kernel *ctcbind_kernel_avx2(void);
const ctc_kernel *ctcbind_kernel_neon(void);
const ctc_kernel *ctcbind_kernel_scalar(void);

const ctc_kernel *ctcbind_kernel(void);

/* These rows, as kernels read them. */
static inline ctc_sample ctcbind_sample_of(const ctcbind_rows *rows)
{
    return (ctc_sample){.x = rows->data, .x_t = rows->stride_t, .x_c = rows->stride_c,
                        .C = rows->C, .T = rows->T, .dtype = rows->dtype};
}

static inline ctc_rows ctcbind_reader(const ctcbind_rows *rows)
{
    const ctc_kernel *kernel = ctcbind_kernel();
    return rows->dtype == CTCBIND_FLOAT64 ? kernel->best64 : kernel->best32;
}

/* What is taken off the logits of a frame; 0 where it holds a NaN. */
static inline int ctcbind_norm_of(const ctc_best *best, ctcbind_norm *norm)
{
    *norm = (ctcbind_norm){best->top, best->top > -INFINITY ? log1p(best->rest) : 0};
    return best->rest == best->rest;
}

/* Whether rows lie closer than classes, as where an array (N, C, T) is read as (T, N, C): there the elements of a class
 * share lines in a block of rows, which is gone through class by class. */
static inline int closer(int64_t t, int64_t c) { return c != 1 && (t < 0 ? -t : t) < (c < 0 ? -c : c); }

/* Whether both logits and gradient are so. */
static inline int both_closer(const ctc_sample *s) { return closer(s->x_t, s->x_c) && closer(s->g_t, s->g_c); }

/* Rows that will be read soon are prefetched into the nearest cache, which saves a tenth of the time. Intel's can wait
 * for fewer lines at once: there only short rows are, and not as far ahead. */
extern atomic_int ctcbind_few_lines;

static inline int few_lines(void) { return atomic_load_explicit(&ctcbind_few_lines, memory_order_relaxed); }

static inline int into_nearest(int64_t bytes) { return !few_lines() || bytes <= 8192; }

#endif
