/* The kernels of float and double on the instruction set whose vector header the including file has chosen. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"
#include "kernel.h"
#include "number.h"

/* Double first: the kernel of float takes its exponential for the rows that need it. */
#define REAL ctc_double
#define V(op) vd_##op
#define W VD_LANES
#define IS_DOUBLE 1
#define FN(name) f64_##name
#include "kernel.inc.h"

#define REAL ctc_float
#define V(op) vf_##op
#define W VF_LANES
#define IS_DOUBLE 0
#define FN(name) f32_##name
#include "kernel.inc.h"
