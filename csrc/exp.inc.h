/* Exponentials of one vector. Where an operand of max or min (vec_*.h) is a NaN, the result is the second operand: the
 * order of operands decides whether a NaN is let through. */

#if IS_DOUBLE
#define EXP_LEAST -800.0
#define EXP_FAR 2048.0
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#else
#define EXP_LEAST -120.0f
#define EXP_FAR 256.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#endif
#ifndef LOG2E
#define LOG2E 1.44269504088896340736
#define LN2 0.693147180559945309417
#endif

/* exp(r) for |r| <= ln(2) / 2; the polynomial itself is off by less than 2^-55 of it for doubles, 2^-26 for floats. */
static inline V(t) V(exp_series)(V(t) r)
{
#if IS_DOUBLE
    static const double q[12] = {2.5100375832561233664e-8,  2.7620075879983366586e-7,  2.7557268480310025526e-6,
                                 2.4801521322368693266e-5,  1.9841269863040545271e-4,  1.3888888917196719077e-3,
                                 8.3333333333300644495e-3,  4.1666666666624161903e-2,  1.6666666666666667452e-1,
                                 5.0000000000000010211e-1,  1, 1};
#else
    static const float q[7] = {1.3926176119935578884e-3f, 8.3630731745137109028e-3f, 4.1666554662050533982e-2f,
                               1.666657702559798819e-1f, 0.5f, 1, 1};
#endif
    V(t) p = V(set1)(q[0]);
    for (size_t i = 1; i < sizeof q / sizeof *q; i++) p = V(fma)(p, r, V(set1)(q[i]));
    return p;
}

/* exp(x) = exp(returned) * 2^n */
static inline V(t) V(exp_reduce)(V(t) x, V(t) *n)
{
    *n = V(rint)(V(mul)(x, V(set1)((REAL)LOG2E)));
    return V(fnma)(*n, V(set1)((REAL)LN2_LOW), V(fnma)(*n, V(set1)((REAL)LN2_HIGH), x));
}

/* exp(x) for x <= REFERENCE_SLACK, to the last bits however small. */
static inline V(t) V(exp)(V(t) x)
{
#if !IS_DOUBLE && defined(VF_WHOLE_SUM)
    x = V(max)(V(set1)(VF_EXP_LEAST), x); /* a NaN passes */
    V(t) sum = V(fma)(x, V(set1)((REAL)LOG2E), V(set1)(VF_WHOLE_SUM)), n = V(sub)(sum, V(set1)(VF_WHOLE_SUM));
    return V(scale_whole)(V(exp_series)(V(fnma)(n, V(set1)(LN2_LOW), V(fnma)(n, V(set1)(LN2_HIGH), x))), sum);
#else
    V(t) n, r = V(exp_reduce)(V(max)(V(set1)((REAL)EXP_LEAST), x), &n); /* a NaN passes */
    return V(scale)(V(exp_series)(r), n);
#endif
}

/* For exp(x - top) where rounding that difference would lose more than all the rest does: exp(x) and exp(-top) apart.
 * Where top is far from 0, `off` is taken off both first, which is exact, as the x that count are far from 0 too. */
typedef struct {
    V(t) top, off, least, inverse, n; /* exp(off - top) = inverse * 2^-n */
} FN(apart);

static inline FN(apart) FN(set_apart)(V(t) top)
{
    FN(apart) a = {.top = top};
    V(t) most = V(set1)((REAL)EXP_FAR), minus = V(set1)((REAL)-EXP_FAR);
    a.off = V(sub)(top, V(max)(V(min)(top, most), minus));
    V(t) near = V(min)(V(sub)(top, a.off), most); /* no NaN where top is infinite */
    a.least = V(add)(near, V(set1)((REAL)EXP_LEAST));
    a.inverse = V(exp_series)(V(sub)(V(set1)(0), V(exp_reduce)(near, &a.n)));
    return a;
}

static inline V(t) V(exp_apart)(V(t) x, const FN(apart) *a)
{
    V(t) n, r = V(exp_reduce)(V(max)(a->least, V(sub)(x, a->off)), &n);
    V(t) e = V(scale)(V(mul)(V(exp_series)(r), a->inverse), V(sub)(n, a->n));
    return V(if_equal)(x, a->top, V(set1)(1), e);
}

/* exp(x) for terms of a sum whose largest is 1: small ones need fewer bits. */
#if !IS_DOUBLE && defined(VF_ROOTS)
/* In two factors, as one operation can multiply them and add the product to the sum. */
static inline V(t) V(near)(V(t) x, V(t) *factor)
{
    x = V(max)(V(set1)(VF_EXP_LEAST), x); /* a NaN passes */
    V(t) sum = V(fma)(x, V(set1)((REAL)LOG2E), V(set1)(VF_ROOT_SUM)), n = V(sub)(sum, V(set1)(VF_ROOT_SUM));
    V(t) r = V(fnma)(n, V(set1)((REAL)LN2), x);
    /* (exp(r) - 1) / r for |r| <= ln(2) / (2 VF_ROOTS). What is a little more than 1/2 makes up for the terms left
     * out: the error is 2.6e-8 instead of 1.5e-7. */
#if VF_ROOTS >= 32
    V(t) p = V(fma)(r, V(set1)(0.5f), V(set1)(1));
#else
    V(t) p = V(fma)(r, V(fma)(r, V(set1)(0.166666667f), V(set1)(0.500064762f)), V(set1)(1));
#endif
    *factor = V(fma)(r, p, V(set1)(1));
    return V(power)(sum);
}
static inline V(t) V(exp_near)(V(t) x)
{
    V(t) factor, power = V(near)(x, &factor);
    return V(mul)(power, factor);
}
/* Adds it to *sum, too. */
static inline V(t) V(add_near)(V(t) x, V(t) *sum)
{
    V(t) factor, power = V(near)(x, &factor);
    *sum = V(fma)(power, factor, *sum);
    return V(mul)(power, factor);
}
#else
static inline V(t) V(exp_near)(V(t) x)
{
    x = V(max)(V(set1)((REAL)EXP_LEAST), x);
    V(t) n = V(rint)(V(mul)(x, V(set1)((REAL)LOG2E)));
    V(t) r = V(fnma)(n, V(set1)((REAL)LN2), x);
    return V(scale)(V(exp_series)(r), n);
}
static inline V(t) V(add_near)(V(t) x, V(t) *sum)
{
    V(t) e = V(exp_near)(x);
    *sum = V(add)(*sum, e);
    return e;
}
#endif
/* exp(x - top), added to *sum; others: unless x is the top, and 1 to *n. */
static inline V(t) V(add_term)(int others, V(t) x, V(t) top, V(t) *sum, V(t) *n)
{
    V(t) below = V(sub)(x, top), e = others ? V(exp_near)(below) : V(add_near)(below, sum);
    if (others) V(add_others)(x, top, e, sum, n);
    return e;
}
