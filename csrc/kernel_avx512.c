/* The kernels on AVX-512 (F, BW, DQ, VL: every processor since Skylake-X and Zen 4). */
#include "kernel.h"

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
/* Headers first: what they declare must not be compiled for the instruction set chosen below. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))),        \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include "vec_avx512.h"

#include "both_types.inc.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static const ctc_kernel kernel = {"avx512",   f32_bytes, f64_bytes, f32_sample, f64_sample,
                                  f32_phase, f64_phase, f32_step,  f64_step, f32_best, f64_best,
                                  f32_soft,  f64_soft};

const ctc_kernel *ctcbind_kernel_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                   && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? &kernel
               : NULL;
}
#else
const ctc_kernel *ctcbind_kernel_avx512(void) { return NULL; }
#endif
