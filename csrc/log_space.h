/* Sums of probabilities that are kept as logarithms, in double: no calls and no branches, so that compilers make
 * vectors of loops over them. Polynomials are interpolated at Chebyshev's nodes, to 4e-17 of the result. */
#ifndef CTCBIND_LOG_SPACE_H
#define CTCBIND_LOG_SPACE_H

#include <float.h>
#include <stdint.h>
#include <string.h>

/* e^a for a <= 0, to about one unit in the last place; 0 below -700. */
static inline double ctcbind_exp(double a)
{
    static const double ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b39p-40;
    double in = a < -700 ? -700 : a;
    double shifted = in * 0x1.71547652b82fep0 + 0x1.8p52; /* the low bits hold in / ln 2, rounded */
    double n = shifted - 0x1.8p52, r = in - n * ln2_high - n * ln2_low;
    double p = 0x1.af236aac51d05p-26;
    p = p * r + 0x1.2880411bad1aap-22;
    p = p * r + 0x1.71de17e40edfep-19;
    p = p * r + 0x1.a019c9a5652d3p-16;
    p = p * r + 0x1.a01a01a4b322fp-13;
    p = p * r + 0x1.6c16c1738ff55p-10;
    p = p * r + 0x1.1111111110e6ap-7;
    p = p * r + 0x1.5555555554cb7p-5;
    p = p * r + 0x1.5555555555555p-3;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t bits, scale;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&scale, &shifted, sizeof scale);
    bits += scale << 52;
    memcpy(&p, &bits, sizeof p);
    return a < -700 ? 0 : p;
}

/* ln(1 + s) for 0 <= s <= 2, as 2 artanh(f / (2 + f)) with 1 + s = 2^k (1 + f), |f / (2 + f)| < 0.172. */
static inline double ctcbind_log1p(double s)
{
    const double ln2 = 0x1.62e42fefa39efp-1;
    double f = s < 0.41421 ? s : s < 1.82842 ? (s - 1) / 2 : (s - 3) / 4;
    double whole = s < 0.41421 ? 0 : s < 1.82842 ? ln2 : 2 * ln2;
    double z = f / (2 + f), w = z * z, p = 0x1.2b62d7ad6afd1p-3;
    p = p * w + 0x1.39fd85b6dc092p-3;
    p = p * w + 0x1.7462bb40a0181p-3;
    p = p * w + 0x1.c71c62ce599c7p-3;
    p = p * w + 0x1.2492492e03734p-2;
    p = p * w + 0x1.999999999523ep-2;
    p = p * w + 0x1.5555555555558p-1;
    return whole + (2 * z + z * (w * p));
}

/* What exponents of probabilities are measured from: a number where there is no probability at all. */
static inline double ctcbind_from(double top) { return top < -DBL_MAX ? -DBL_MAX : top; }

/* ln(e^a + e^b) */
static inline double ctcbind_add_two(double a, double b)
{
    double top = a > b ? a : b, less = a > b ? b : a;
    return top + ctcbind_log1p(ctcbind_exp(less - ctcbind_from(top)));
}

#endif
