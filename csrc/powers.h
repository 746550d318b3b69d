/* Numbers too small or too large for a double: mantissa * 4^exponent. Exponents are whole, in double as they may be
 * large, and -inf for 0. They are of 4, as those of 2 would overflow before logarithms do. No calls and no branches, so
 * that compilers make vectors of loops over them. */
#ifndef CTCBIND_POWERS_H
#define CTCBIND_POWERS_H

#include "log_space.h"
#include "size.h"

typedef struct ctcbind_powers {
    double *mantissa, *exponent;
} ctcbind_powers;

/* So many zeros. */
static inline ctcbind_powers ctcbind_take_powers(double **left, int64_t count)
{
    ctcbind_powers taken = {ctcbind_take(left, count), ctcbind_take(left, count)};
    for (int64_t i = 0; i < count; i++) taken.mantissa[i] = 0.5, taken.exponent[i] = -INFINITY;
    return taken;
}

/* Smaller shares are left out: no product of two others is below the least normal number. */
#define CTCBIND_NO_SHARE 0x1p-500

#define CTCBIND_LN4_HIGH 0x1.62e42fefa0000p0
#define CTCBIND_LN4_LOW 0x1.cf79abc9e3b39p-39

/* 4^k for a k of 0 or less; 0 below CTCBIND_NO_SHARE. */
static inline double ctcbind_power(double k)
{
    const double least = -250;
    double in = k < least ? least : k, result;
    double shifted = in + 0x1.8p52; /* the low bits hold in */
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 53) + (UINT64_C(1023) << 52);
    memcpy(&result, &bits, sizeof result);
    return k < least ? 0 : result;
}

/* A sum as a mantissa from 0.5 to 2, and as result an exponent, which of 0 is no matter: its states have -inf. */
static inline double ctcbind_normalise(double sum, double *mantissa)
{
    uint64_t bits, part;
    double exponent;
    memcpy(&bits, &sum, sizeof bits);
    part = (bits & (UINT64_MAX >> 11)) | UINT64_C(1022) << 52;
    memcpy(mantissa, &part, sizeof part);
    part = bits >> 53 | UINT64_C(0x433) << 52; /* 2^52 and the exponent */
    memcpy(&exponent, &part, sizeof exponent);
    return exponent - (0x1p52 + 511);
}

/* e^score is e^rest * 4^exponent, the rest between -ln 4 and 0; between -3 and 1 where scores are so large that
 * quotients have no bits behind the point. */
static inline double ctcbind_split_off(double score, double *rest)
{
    double k = score * 0x1.71547652b82fep-1 + 0.5, shift = k < 0 ? -0x1p52 : 0x1p52, whole = k + shift - shift;
    double exponent = k > -0x1p52 && k < 0x1p52 ? whole : k; /* which is whole from there on */
    double left = score - exponent * CTCBIND_LN4_HIGH - exponent * CTCBIND_LN4_LOW;
    left = left > -3 ? left : -3; /* a NaN for -inf */
    *rest = left < 1 ? left : 1;
    return exponent;
}

static inline double ctcbind_split(double score, double *mantissa)
{
    double rest, exponent = ctcbind_split_off(score, &rest);
    *mantissa = ctcbind_exp(rest);
    return exponent;
}

/* ln of such a number, whose mantissa is not 0. */
static inline double ctcbind_ln(double mantissa, double exponent)
{
    double part, whole = exponent + ctcbind_normalise(mantissa, &part);
    double less = part < 1 ? 0x1.62e42fefa39efp-1 : 0, s = part < 1 ? 2 * part - 1 : part - 1;
    return whole * CTCBIND_LN4_HIGH + (whole * CTCBIND_LN4_LOW + (ctcbind_log1p(s) - less));
}

#endif
