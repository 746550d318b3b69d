/* One pass over the logits: the sum of each row, and what the labels and the blank emit there.
 *
 * The softmax of a row is exp(x - top) * inverse. Infinite logits share all the probability; a row of nothing but -inf
 * has none for any class. */

/* Calls f(c, x) for the columns c of a row that fall to this thread, 16 bytes at a time where they lie so. */
template <class F>
static __device__ __forceinline__ void each_of_row(const X *row, int64 C, int rank, int size, F f)
{
    int64 done = 0;
    if ((unsigned long long)row % sizeof(Pack) == 0) {
        done = C / PACK;
        for (int64 i = rank; i < done; i += size) {
            Pack pack = ((const Pack *)row)[i];
            for (int k = 0; k < PACK; k++) f(i * PACK + k, real_of(pack.v[k]));
        }
        done *= PACK;
    }
    for (int64 c = done + rank; c < C; c += size) f(c, real_of(row[c]));
}

/* The class that column u of a row's emissions is for, or -1. */
static __device__ __forceinline__ int64 class_of(const Problem &p, const int *clean, const int *slot, int64 L, int64 u)
{
    if (p.sparse) return u < L ? clean[u] : u == p.columns - 1 ? p.blank : -1;
    return slot[u] ? u : -1;
}

/* What frame t's emissions are measured in, at most 1. Frames that are alike, as a padded utterance or a fresh network
 * has them, would all be rounded the same way, and their sums: thousands of such roundings add up. So each of those has a
 * unit of its own, one of 4096. */
static __device__ __forceinline__ Real unit_of(const Problem &p, int64 n, int64 t, int64 T)
{
    const Real alike = (Real)(1.0 / 4096), step = (Real)(1.0 / 16384);
    if (REAL_IS_DOUBLE || T < 64 || t == 0) return 1;
    const X *blank = p.logits + t * p.x_t + n * p.x_n + p.blank;
    Real now = real_of(*blank), before = real_of(*(blank - p.x_t));
    if (now != before && !(now - before > -alike && now - before < alike)) return 1;
    return 1 - (Real)(((unsigned)t * 2654435769u) >> 20) * step;
}

template <class Group>
static __device__ __forceinline__ void measure_rows(const Problem &p)
{
    int rank = Group::rank(), size = group_size<Group>();
    int64 step = (int64)gridDim.x * Group::per_block();
    for (int64 row = (int64)blockIdx.x * Group::per_block() + Group::in_block(); row < p.T * p.N; row += step) {
        int64 t = row / p.N, n = row % p.N, at = n * p.T + t, L = p.lengths[n];
        if (p.status[n] || t >= p.lengths[p.N + n]) continue; /* the whole group goes on */
        const X *x = p.logits + t * p.x_t + n * p.x_n;
        const int *clean = p.clean + n * p.pitch, *slot = p.slot + n * p.pitch;

        Real top = -INF;
        int nan = 0;
        each_of_row(x, p.C, rank, size, [&](int64, Real v) {
            top = larger(top, v);
            nan |= v != v;
        });
        top = Group::over(top, larger);
        Real rest = 0, tops = 0; /* apart, so that a small rest beside a certain class keeps its digits */
        each_of_row(x, p.C, rank, size, [&](int64, Real v) {
            if (v == top) tops += 1;
            else if (top < INF) rest += exp_below(v - top);
        });
        rest = Group::over(rest, total) + (Group::over(tops, total) - 1);

        Real high = -INF, most = 0;
        for (int64 u = rank; u < p.columns; u += size) {
            int64 c = class_of(p, clean, slot, L, u);
            if (c < 0) continue;
            Real v = real_of(x[c]), far = v < 0 ? -v : v;
            high = larger(high, v);
            if (far < INF) most = larger(most, far);
        }
        high = Group::over(high, larger);
        most = Group::over(most, larger);
        nan = Group::over(nan, larger_int);
        Real unit = unit_of(p, n, t, p.lengths[p.N + n]);
        Scaled *to = p.emitted + at * p.columns;
        for (int64 u = rank; u < p.columns; u += size) {
            int64 c = class_of(p, clean, slot, L, u);
            if (c >= 0) to[u] = emission(real_of(x[c]), high, top, unit);
        }
        if (rank == 0) {
            p.top[at] = top;
            p.high[at] = high;
            p.inverse[at] = 1 / (1 + rest);
            double base = -log1p((double)rest);
            if (high > -INF && high < INF) base += (double)high - (double)top;
            p.base[at] = base;
            unsigned bits = nan ? ~0u : (unsigned)__float_as_int((float)most);
            if (bits) atomicMax(p.most + n, bits);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) ctc_rows_by_warp(const Problem p) { measure_rows<WarpGroup>(p); }
extern "C" __global__ void __launch_bounds__(256) ctc_rows_by_block(const Problem p) { measure_rows<BlockGroup>(p); }
