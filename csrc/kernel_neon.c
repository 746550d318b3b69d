/* The kernels on NEON, which every AArch64 processor has. */
#include "kernel.h"

#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#include "vec_neon.h"

#include "both_types.inc.h"

static const ctc_kernel kernel = {"neon",   f32_bytes, f64_bytes, f32_sample, f64_sample,
                                  f32_phase, f64_phase, f32_step,  f64_step, f32_best, f64_best,
                                  f32_soft,  f64_soft};

const ctc_kernel *ctcbind_kernel_neon(void) { return &kernel; }
#else
const ctc_kernel *ctcbind_kernel_neon(void) { return NULL; }
#endif
