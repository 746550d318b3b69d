/* The kernels of one element type on one instruction set.
 *
 * The including file has set REAL (float or double), V(op) (the vector operation), W (its lanes), IS_DOUBLE,
 * FN(name) (a name of its own for each inclusion). Files below here read the same way.
 *
 * The recursion runs in linear space. A state is mantissa * 2^exponent; the mantissas of a few rows share
 * the exponents that were chosen before them, so that a step is three multiply-adds with constant factors.
 * Labels and blanks stand in two arrays: state i of the first is label i, of the second the blank before it.
 */
#include "exp.inc.h"
#include "late.inc.h"
#include "work.inc.h"

#if !IS_DOUBLE
#define XT uint16_t
#define XFN(name) FN(name##_half)
#define XLOAD(p) vec16_of_half(vec16_load(p))
#define XSTORE(p, a) vec16_store(p, vec16_to_half(a))
#define XLOAD_N(p, n) vec16_of_half(vec16_load_n(p, n))
#define XSTORE_N(p, a, n) vec16_store_n(p, vec16_to_half(a), n)
#define XONE(v) float_of_half(v)
#define XOF(v) half_of_float(v)
#define XDIRECT 0
#include "typed.inc.h"
#define XT uint16_t
#define XFN(name) FN(name##_bfloat)
#define XLOAD(p) vec16_of_bfloat(vec16_load(p))
#define XSTORE(p, a) vec16_store(p, vec16_to_bfloat(a))
#define XLOAD_N(p, n) vec16_of_bfloat(vec16_load_n(p, n))
#define XSTORE_N(p, a, n) vec16_store_n(p, vec16_to_bfloat(a), n)
#define XONE(v) float_of_bfloat(v)
#define XOF(v) bfloat_of_float(v)
#define XDIRECT 0
#include "typed.inc.h"
#endif
#define XT REAL
#define XFN(name) FN(name##_real)
#define XLOAD(p) V(load)(p)
#define XSTORE(p, a) V(store)(p, a)
#define XLOAD_N(p, n) V(load_n)(p, n)
#define XSTORE_N(p, a, n) V(store_n)(p, a, n)
#define XONE(v) (v)
#define XOF(v) (v)
#define XDIRECT 1
#include "typed.inc.h"

/* BY_TYPE calls what typed.inc.h has for the logits' type; BY_TYPE_ROW gives it row t and the one to be read next.
 * `own` is the row with its classes gathered, or NULL. */
#define ROW(type) ((const type *)s->x + t * s->x_t)
#define ROW_AHEAD(type) ((const type *)s->x + (t + ahead >= 0 && t + ahead < s->T ? t + ahead : t) * s->x_t)
#define REAL_ROWS own ? own : ROW(REAL), s->C, own ? own : ROW_AHEAD(REAL)
#if IS_DOUBLE
#define BY_TYPE(name, ...) FN(name##_real)(__VA_ARGS__)
#define BY_TYPE_ROW(name, ...) FN(name##_real)(REAL_ROWS, __VA_ARGS__)
#else
#define BY_TYPE(name, ...)                                                                                    \
    (s->dtype == CTCBIND_FLOAT32   ? FN(name##_real)(__VA_ARGS__)                                             \
     : s->dtype == CTCBIND_FLOAT16 ? FN(name##_half)(__VA_ARGS__)                                             \
                                   : FN(name##_bfloat)(__VA_ARGS__))
#define BY_TYPE_ROW(name, ...)                                                                                \
    (own || s->dtype == CTCBIND_FLOAT32 ? FN(name##_real)(REAL_ROWS, __VA_ARGS__)                             \
     : s->dtype == CTCBIND_FLOAT16 ? FN(name##_half)(ROW(uint16_t), s->C, ROW_AHEAD(uint16_t), __VA_ARGS__)   \
                                   : FN(name##_bfloat)(ROW(uint16_t), s->C, ROW_AHEAD(uint16_t), __VA_ARGS__))
#endif

#include "rare.inc.h"
#include "table.inc.h"
#include "row_sums.inc.h"
#include "emissions.inc.h"

/* States in float where that is exact and faster, in double for all other samples. */
#if !IS_DOUBLE
#define STATE ctc_float
#define STATE_IS_DOUBLE 0
#define SV(op) vf_##op
#define SW VF_LANES
#define SFN(name) FN(name##_f)
#include "states.inc.h"
#endif
#define STATE ctc_double
#define STATE_IS_DOUBLE 1
#define SV(op) vd_##op
#define SW VD_LANES
#define SFN(name) FN(name##_d)
#include "states.inc.h"

#include "ways.inc.h"
#include "sample.inc.h"
#include "halves.inc.h"

#undef BY_STATE
#undef KEEP_RUNS
#undef BY_TYPE
#undef BY_TYPE_ROW
#undef REAL_ROWS
#undef ROW
#undef ROW_AHEAD
#undef FLOAT_RANGE
#undef TABLE_RANGE
#undef EXP_LEAST
#undef EXP_FAR
#undef LN2_HIGH
#undef LN2_LOW
#undef REFERENCE_SLACK
#undef SHARP_ROWS
#undef RANGE_CEILING
#undef GRID_BITS
#undef SHARP_STRAIN
#undef ALIKE_ROWS
#undef ECHO_ROWS
#undef ECHO_BLOCKS
#undef ECHOING_ROWS
#undef STUCK_ROWS
#undef STUCK_BLOCKS
#undef STICKING_ROWS
#undef SEEN_BITS
#undef EARLY_CLASSES
#undef NEGLIGIBLE
#undef REAL
#undef V
#undef W
#undef IS_DOUBLE
#undef FN
