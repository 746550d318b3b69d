/* The kernels in plain C. */
#include "vec_scalar.h"

#include "both_types.inc.h"

static const ctc_kernel kernel = {"scalar",   f32_bytes, f64_bytes, f32_sample, f64_sample,
                                  f32_phase, f64_phase, f32_step,  f64_step, f32_best, f64_best,
                                  f32_soft,  f64_soft};

const ctc_kernel *ctcbind_kernel_scalar(void) { return &kernel; }
