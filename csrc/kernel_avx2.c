/* The kernels on AVX2 with FMA and F16C (every x86 processor since Haswell and Zen). */
#include "kernel.h"

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
/* Headers first: what they declare must not be compiled for the instruction set chosen below. */
#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "vec_avx2.h"

#include "both_types.inc.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static const ctc_kernel kernel = {"avx2",   f32_bytes, f64_bytes, f32_sample, f64_sample,
                                  f32_phase, f64_phase, f32_step,  f64_step, f32_best, f64_best,
                                  f32_soft,  f64_soft};

const ctc_kernel *ctcbind_kernel_avx2(void)
{
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return NULL;
    /* F16C by hand: clang 14 knows no name for it. */
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? &kernel : NULL;
}
#else
const ctc_kernel *ctcbind_kernel_avx2(void) { return NULL; }
#endif
