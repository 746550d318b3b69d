/* Where the numbers of the recursion stand. Rows of frames are WIDTH wide, a strip of the labels; before them, and behind
 * the last, is a margin, over which the ways along the frames may run: by less than a phase, and what is read in advance. */

#define PHASE 16 /* frames to a barrier of the lattice */
#define MARGIN 24

#if CTC_K
#define WIDTH (WARP * CTC_K * CTC_W)

/* What label i emits at frame t. */
static __device__ __forceinline__ Scaled *label_spot(const Problem &p, int64 n, int t, int i)
{
    int64 strip = n * p.strips + i / WIDTH;
    return p.emitted + (strip * (p.T + MARGIN) + MARGIN + t) * WIDTH + i % WIDTH;
}
static __device__ __forceinline__ Scaled *blank_spot(const Problem &p, int64 n, int t)
{
    return p.blanks + n * (p.T + MARGIN) + MARGIN + t;
}

/* Pair i of alpha's way or beta's at a step of its first half; without a gradient only the steps of one phase are kept. */
static __device__ __forceinline__ Pair *pair_at(const Problem &p, int64 n, bool beta, int step, int i)
{
    int64 strip = (n * 2 + beta) * p.strips + i / WIDTH, rows = p.grad ? p.T / 2 + 1 + MARGIN : PHASE;
    return p.lattice + (strip * rows + (p.grad ? MARGIN + step : step % PHASE)) * WIDTH + i % WIDTH;
}

/* The occupancies of the middle frame. */
static __device__ __forceinline__ Pair *pair_in_middle(const Problem &p, int64 n, int i)
{
    return p.middles + n * p.pitch + i;
}
#endif
