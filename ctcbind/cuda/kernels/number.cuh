/* Powers of two, exponentials, and the two kinds of numbers that the recursion runs in. */

#define LOG2E 1.44269504088896340736
#define LN2 0.693147180559945309417
#define DEAD (-(1 << 30)) /* the exponent of zero */
/* Exponents of what is not zero stay above -LIVE; samples whose logits are so large that they might not are counted in
 * logarithms. */
#define LIVE (1 << 29)

/* Whether a logit is so large that the exponents of T frames of such may be past that: binades between two such logits,
 * and paths that add up. */
static __device__ __forceinline__ bool is_far(Real size, int T) { return (size + 1) * (Real)T >= (Real)(LIVE / 4); }

static __device__ __forceinline__ Real fused(Real a, Real b, Real c)
{
#if REAL_IS_DOUBLE
    return fma(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

/* Sums of exponents; of what nobody wants they may be anything. */
static __device__ __forceinline__ int plus(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
static __device__ __forceinline__ int minus(int a, int b) { return (int)((unsigned)a - (unsigned)b); }

/* 2^n for n <= 127, and 0 below the normal numbers. */
static __device__ __forceinline__ Real power(int n)
{
#if REAL_IS_DOUBLE
    return __longlong_as_double((int64)((unsigned long long)(max(n, -1023) + 1023) << 52));
#else
    return __int_as_float((int)((unsigned)(max(n, -127) + 127) << 23));
#endif
}

/* 2^f for |f| <= 1/2, by its Taylor series: the first term left out is below half a unit in the last place. */
static __device__ __forceinline__ Real power_of_part(Real f)
{
#if REAL_IS_DOUBLE
    double p = 1.3691488853904128e-12;
    p = fma(p, f, 2.5678435993488206e-11);
    p = fma(p, f, 4.4455382718708116e-10);
    p = fma(p, f, 7.054911620801123e-09);
    p = fma(p, f, 1.01780860092397e-07);
    p = fma(p, f, 1.321548679014431e-06);
    p = fma(p, f, 1.5252733804059841e-05);
    p = fma(p, f, 1.540353039338161e-04);
    p = fma(p, f, 1.3333558146428443e-03);
    p = fma(p, f, 9.6181291076284772e-03);
    p = fma(p, f, 5.550410866482158e-02);
    p = fma(p, f, 2.4022650695910071e-01);
    p = fma(p, f, 6.9314718055994531e-01);
    return fma(p, f, 1.0);
#else
    float p = 1.5252734e-05f;
    p = fmaf(p, f, 1.5403530e-04f);
    p = fmaf(p, f, 1.3333558e-03f);
    p = fmaf(p, f, 9.6181291e-03f);
    p = fmaf(p, f, 5.5504109e-02f);
    p = fmaf(p, f, 2.4022651e-01f);
    p = fmaf(p, f, 6.9314718e-01f);
    return fmaf(p, f, 1.0f);
#endif
}

/* exp(high + low) * 2^offset as a number in [0.7, 1.5) and an exponent, for a sum of at most 0 that is not NaN. */
static __device__ __forceinline__ Scaled exp_scaled(Real high, Real low, Real offset)
{
#if REAL_IS_DOUBLE
    const Real log2e = LOG2E, rest = 2.0355273740931033e-17;
    high = fmax(high, (Real)-LIVE);
    Real n = rint(fused(high, log2e, offset));
#else
    const Real log2e = (Real)LOG2E, rest = 1.92596299e-8f;
    high = fmaxf(high, (Real)-LIVE);
    Real n = rintf(fused(high, log2e, offset));
#endif
    Real first = n > -8192 ? offset : 0; /* to where its ten bits stay beside n's */
    Real f = fused(high, log2e, first - n);
    f = fused(high, rest, f);
    f = fused(low, log2e, f) + (offset - first);
#if REAL_IS_DOUBLE
    Real more = rint(f);
#else
    Real more = rintf(f); /* past 2^24 binades n alone is coarse */
#endif
    Scaled result;
    result.m = power_of_part(f - more);
    result.e = (int)n + (int)more;
    return result;
}

/* exp(d) for d <= 0; 0 below the normal numbers, and for NaN. */
static __device__ __forceinline__ Real exp_below(Real d)
{
#if REAL_IS_DOUBLE
    Scaled e = exp_scaled(d, 0, 0);
    return d > -708 ? e.m * power(e.e) : 0;
#else
    const float whole = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded, and stands in its last bits */
    float shifted = fmaf(d, (float)LOG2E, whole);
    float f = fmaf(d, 1.92596299e-8f, fmaf(d, (float)LOG2E, whole - shifted));
    unsigned bits = (unsigned)__float_as_int(power_of_part(f)) + ((unsigned)__float_as_int(shifted) << 23);
    return d > -87 ? __int_as_float((int)bits) : 0;
#endif
}

/* What frame t's emissions are multiplied by, as a power of two: one of 1024 in (1/2, 1], in a sample of T frames.
 * Where frames come again, as a padded utterance or a fresh network has them, exponentials, products and sums would be
 * rounded the same way each time, and thousands of such roundings add up. */
static __device__ __forceinline__ Real offset_of(int t, int T)
{
    if (REAL_IS_DOUBLE || T < 64) return 0;
    return (Real)(((unsigned)t * 2654435769u) >> 22) * (Real)(-1.0 / 1024);
}

/* exp(x - high) * 2^offset with the difference exact. Infinite logits share all the probability: see `measure.cuh` on
 * top. */
static __device__ __forceinline__ Scaled emission(Real x, Real high, Real top, Real offset)
{
    Scaled zero = {};
    zero.e = DEAD;
    if (x == -INF || high == -INF || (top == INF && x < top)) return zero;
    Real d = x - high, back = d - x;
    Real low = (x - (d - back)) - (high + back);
    bool same = x == high; /* infinities too, whose difference is none */
    low = low > -64 ? low < 64 ? low : 64 : -64; /* NaN where d is past the largest number */
    return exp_scaled(same ? 0 : d, same ? 0 : low, offset);
}

/* Numbers in linear space, each with its own exponent. */
struct Linear {
    typedef Scaled Emission;
    typedef int Level; /* what is taken out before numbers are added: an exponent */
    static const int WORDS = sizeof(Scaled) / 8; /* in which a number is stored */
    Real m;
    int e;

    static __device__ __forceinline__ Linear zero()
    {
        Linear z = {0, DEAD};
        return z;
    }
    static __device__ __forceinline__ Linear one()
    {
        Linear z = {1, 0};
        return z;
    }
    static __device__ __forceinline__ Linear load(const Scaled *from)
    {
        Scaled s = *from;
        Linear z = {s.m, s.e};
        return z;
    }
    __device__ __forceinline__ void store(Scaled *to) const
    {
        Scaled s = {};
        s.m = m;
        s.e = e;
        *to = s;
    }
    static __device__ __forceinline__ void store(Pair *to, Linear label, Linear blank)
    {
        Pair pair = {};
        pair.label.m = label.m;
        pair.label.e = label.e;
        pair.blank.m = blank.m;
        pair.blank.e = blank.e;
        *to = pair;
    }
    /* What the lane before had; the first lane has what it is given. */
    __device__ __forceinline__ Linear from_before(Linear given, int first) const
    {
        Linear up = {__shfl_up_sync(ALL_LANES, m, 1), __shfl_up_sync(ALL_LANES, e, 1)};
        /* field by field: to choose between two objects would take their addresses */
        Linear z = {first ? given.m : up.m, first ? given.e : up.e};
        return z;
    }
    __device__ __forceinline__ Linear where(int passes) const
    {
        Linear z = {passes ? m : 0, passes ? e : DEAD};
        return z;
    }
    static __device__ __forceinline__ Linear add(Linear a, Linear b)
    {
        int top = max(a.e, b.e);
        Linear z = {fused(a.m, power(minus(a.e, top)), b.m * power(minus(b.e, top))), top};
        return z;
    }
    static __device__ __forceinline__ Linear add(Linear a, Linear b, Linear c)
    {
        int top = max(max(a.e, b.e), c.e);
        Real sum = fused(b.m, power(minus(b.e, top)), c.m * power(minus(c.e, top)));
        Linear z = {fused(a.m, power(minus(a.e, top)), sum), top};
        return z;
    }
    __device__ __forceinline__ Linear times(Emission by) const
    {
        Linear z = {m * by.m, max(plus(e, by.e), DEAD)};
        return z;
    }
    /* The mantissa back into [1, 2): due before some dozens of steps could take it out of the normal numbers. */
    __device__ __forceinline__ void settle()
    {
#if REAL_IS_DOUBLE
        int64 bits = __double_as_longlong(m);
        e = m == 0 ? DEAD : plus(e, (int)(bits >> 52) - 1023);
        m = m == 0 ? 0 : __longlong_as_double((bits & 0xfffffffffffffLL) | 0x3ff0000000000000LL);
#else
        int bits = __float_as_int(m);
        e = m == 0 ? DEAD : plus(e, (bits >> 23) - 127);
        m = m == 0 ? 0 : __int_as_float((bits & 0x7fffff) | 0x3f800000);
#endif
    }
    /* alpha * beta */
    static __device__ __forceinline__ Linear both(Linear a, Linear b)
    {
        Linear z = {a.m * b.m, max(plus(a.e, b.e), DEAD)};
        return z;
    }
    static __device__ __forceinline__ Level lowest() { return DEAD; }
    static __device__ __forceinline__ Level greater(Level a, Level b) { return max(a, b); }
    __device__ __forceinline__ Level level() const { return m == 0 ? DEAD : e; }
    __device__ __forceinline__ Real above(Level level) const { return m * power(min(minus(e, level), 100)); }
    static __device__ __forceinline__ double nats(Level level) { return (double)level * LN2; }
    /* What emissions were multiplied by, as it was rounded: what the most probable class emits. */
    static __device__ __forceinline__ double factor(Real offset)
    {
        Scaled one = exp_scaled(0, 0, offset);
        return (double)(one.m * power(one.e));
    }
    /* An occupancy goes where beta (or alpha) was. */
    typedef Real Occupancy;
    __device__ __forceinline__ Real occupancy(Level level) const { return above(level); }
};

/* Logarithms, for logits whose binades no int can count: as exact as the reference in float64. */
struct Logarithm {
    typedef double Emission;
    typedef double Level;
    static const int WORDS = 1;
    double v;

    static __device__ __forceinline__ Logarithm of(double v)
    {
        Logarithm z = {v};
        return z;
    }
    static __device__ __forceinline__ Logarithm zero() { return of(-INF); }
    static __device__ __forceinline__ Logarithm one() { return of(0); }
    static __device__ __forceinline__ Logarithm load(const Scaled *from) { return of(*(const double *)from); }
    __device__ __forceinline__ void store(Scaled *to) const { *(double *)to = v; }
    static __device__ __forceinline__ void store(Pair *to, Logarithm label, Logarithm blank)
    {
        label.store(&to->label);
        blank.store(&to->blank);
    }
    __device__ __forceinline__ Logarithm from_before(Logarithm given, int first) const
    {
        double up = __shfl_up_sync(ALL_LANES, v, 1);
        return of(first ? given.v : up);
    }
    __device__ __forceinline__ Logarithm where(int passes) const { return passes ? *this : zero(); }
    static __device__ __noinline__ Logarithm add(Logarithm a, Logarithm b)
    {
        double top = fmax(a.v, b.v), least = fmin(a.v, b.v);
        return of(least == -INF ? top : top + log1p(exp(least - top)));
    }
    static __device__ __forceinline__ Logarithm add(Logarithm a, Logarithm b, Logarithm c)
    {
        return add(add(a, b), c);
    }
    __device__ __forceinline__ Logarithm times(Emission by) const { return of(v + by); }
    __device__ __forceinline__ void settle() {}
    static __device__ __forceinline__ Logarithm both(Logarithm a, Logarithm b) { return of(a.v + b.v); }
    static __device__ __forceinline__ Level lowest() { return -INF; }
    static __device__ __forceinline__ Level greater(Level a, Level b) { return fmax(a, b); }
    __device__ __forceinline__ Level level() const { return v; }
    __device__ __forceinline__ Real above(Level level) const { return v == -INF ? (Real)0 : (Real)exp(v - level); }
    static __device__ __forceinline__ double nats(Level level) { return level; }
    static __device__ __forceinline__ double factor(Real) { return 1; }
    /* Sums of huge logarithms depend on their order: the row's own greatest is taken out, once it is known. */
    typedef double Occupancy;
    __device__ __forceinline__ double occupancy(Level) const { return v; }
};
