/* float16 and bfloat16 one value at a time; and the exponents of doubles. */
#ifndef CTCBIND_HALF_H
#define CTCBIND_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of_bfloat(uint16_t b) { return float_of_bits((uint32_t)b << 16); }
static inline uint16_t bfloat_of_float(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float float_of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    if (rest >= 0x0f800000) return float_of_bits(sign | (rest + 0x70000000)); /* infinite or NaN */
    float scaled = float_of_bits(rest) * 0x1p112f; /* the subnormal ones come out right as well */
    return float_of_bits(sign | bits_of_float(scaled));
}
/* Rounds to nearest, ties to even. */
static inline uint16_t half_of_float(float value)
{
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) return (uint16_t)(sign | (bits_of_float(float_of_bits(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}

static inline double power_of_two(int n) /* one that is a normal number */
{
    double value;
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    memcpy(&value, &bits, 8);
    return value;
}
static inline int binade_of(double value) /* floor(log2), of a normal number above 0 */
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return (int)(bits >> 52) - 1023;
}

#endif
