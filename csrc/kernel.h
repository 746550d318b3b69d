/* What the caller's side (ctcbind.c) and the kernels, one set for each instruction set, say to each other. */
#ifndef CTCBIND_KERNEL_H
#define CTCBIND_KERNEL_H

#include "ctcbind.h"

/* For functions whose first arguments are constants in each call: one version for each of them. */
#if defined(__GNUC__)
#define EACH_ITS_OWN static inline __attribute__((always_inline))
#elif defined(_MSC_VER)
#define EACH_ITS_OWN static __forceinline
#else
#define EACH_ITS_OWN static inline
#endif

/* Rows are taken in blocks of this many; every per-row array of a block is this long. */
enum { BLOCK = 16 };

/* One sample, its pointers already at sample n. */
typedef struct {
    const void *x;
    void *g; /* NULL: loss only */
    int64_t x_t, x_c, g_t, g_c;
    const int32_t *labels;
    int32_t L, T, C, blank; /* T: the rows that count */
    int32_t rows;           /* all of them */
    int32_t dtype, simple;
    double weight;
    int32_t stream; /* write long gradient rows past the cache */
} ctc_sample;

/* What a workspace must hold: the largest of each over the samples that one thread may meet. */
typedef struct {
    int64_t T, L, C;
    int32_t grad, dtype, strided;
    size_t keep; /* bytes that may go into keeping what could be computed again */
    int32_t split; /* more than 0: so many threads share each sample, in three phases */
} ctc_extent;

/* The phases of a sample that several threads share; those of rows take blocks first to end - 1. */
enum { PHASE_ROWS, PHASE_PATHS, PHASE_GRADIENT };

typedef double (*ctc_phase)(const ctc_sample *, const ctc_extent *, void *work, int phase, int64_t first, int64_t end,
                            int slot);

typedef struct ctc_kernel {
    const char *name;
    size_t (*bytes32)(const ctc_extent *), (*bytes64)(const ctc_extent *);
    double (*sample32)(const ctc_sample *, const ctc_extent *, void *work);
    double (*sample64)(const ctc_sample *, const ctc_extent *, void *work);
    ctc_phase phase32, phase64;
} ctc_kernel;

/* NULL where the build or the processor lacks it. */
const ctc_kernel *ctcbind_kernel_avx512(void);
const ctc_kernel *ctcbind_kernel_avx2(void);
const ctc_kernel *ctcbind_kernel_neon(void);
const ctc_kernel *ctcbind_kernel_scalar(void);

const ctc_kernel *ctcbind_kernel(void);

#endif
