/* Small helpers of the row passes. */

static inline REAL FN(exp1)(REAL x)
{
    REAL lanes[W];
    V(store)(lanes, V(exp)(V(set1)(x)));
    return lanes[0];
}

/* ln(1 + r) for r >= 0, as exact near 0 as r is. */
static inline REAL FN(log1p)(REAL r)
{
#if IS_DOUBLE
    return log1p(r);
#else
    float s = 1 + r;
    int32_t k = (int32_t)((bits_of_float(s) + 0x4afb0d) >> 23) - 127; /* s / 2^k in [sqrt(1/2), sqrt(2)) */
    float scaled = float_of_bits(bits_of_float(s) - ((uint32_t)k << 23)) - 1;
    float f = k == 0 ? r : scaled;
    float z = f / (2 + f), q = z * z;
    float series = z * (2 + q * (0.6666667f + q * (0.4f + q * (0.2857143f + q * 0.2222222f))));
    return series + (float)k * 0.69314718f;
#endif
}
