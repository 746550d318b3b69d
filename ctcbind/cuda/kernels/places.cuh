/* Where the numbers of the recursion stand. A row holds a strip of the labels of one frame; before the rows, and behind
 * the last, is a margin, over which the ways along the frames may run. What is written from one side of it does not
 * meet what is read or written from the other, where another block may be at work: see Lane in lattice.cuh. */

#define PHASE 16 /* frames to a barrier of the lattice */
#define MARGIN 24

/* Which strip has label i, and where there: i is not negative. */
static __device__ __forceinline__ int strip_of(const Problem &p, int i) { return i >> (int)p.width_bits; }
static __device__ __forceinline__ int in_strip(const Problem &p, int i) { return i & ((1 << (int)p.width_bits) - 1); }

/* The first of row `row` of a strip, of `rows` and a margin each. */
static __device__ __forceinline__ int64 row_of(const Problem &p, int64 strip, int64 rows, int64 row)
{
    return (strip * (rows + MARGIN) + MARGIN + row) << (int)p.width_bits;
}

/* What label i emits at frame t. */
static __device__ __forceinline__ Scaled *label_spot(const Problem &p, int64 n, int t, int i)
{
    return p.emitted + row_of(p, n * p.strips + strip_of(p, i), p.T, t) + in_strip(p, i);
}
static __device__ __forceinline__ Scaled *blank_spot(const Problem &p, int64 n, int t)
{
    return p.blanks + n * (p.T + MARGIN) + MARGIN + t;
}

/* Pair i of alpha's way or beta's at a step of its first half; without a gradient only the steps of one phase are
 * kept. */
static __device__ __forceinline__ Pair *pair_at(const Problem &p, int64 n, bool beta, int step, int i)
{
    int64 strip = (n * 2 + beta) * p.strips + strip_of(p, i);
    int64 row = p.grad ? row_of(p, strip, p.T / 2 + 1, step) : (strip * PHASE + step % PHASE) << (int)p.width_bits;
    return p.lattice + row + in_strip(p, i);
}

/* What strip `strip` of half a way leaves for the next: numbers of half the frames, as words. */
typedef unsigned long long Word;
#define ABSENT (~(Word)0) /* of a number, NaN as no arithmetic makes it */
static __device__ __forceinline__ int64 edge_size(const Problem &p)
{
    return (p.T / 2 + 1) * (int64)(sizeof(Scaled) / sizeof(Word));
}
static __device__ __forceinline__ Word *edge_at(const Problem &p, int64 n, bool second, bool beta, int64 strip)
{
    return p.edges + (((n * 2 + second) * 2 + beta) * (p.strips - 1) + strip) * edge_size(p);
}

/* The occupancies of the middle frame. */
static __device__ __forceinline__ Pair *pair_in_middle(const Problem &p, int64 n, int i)
{
    return p.middles + n * p.pitch + i;
}
