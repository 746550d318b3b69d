/* One pass over the logits: the sum of each row, and what the labels and the blank emit there.
 *
 * The softmax of a row is exp(x - top) * inverse. Infinite logits share all the probability; a row of nothing but -inf
 * has none for any class. */

/* The rows of the logits, in the order of frames and then samples, go round the groups of all blocks. */
struct Row {
    int64 t, n;
    __device__ __forceinline__ Row(const Problem &p, int64 row)
    {
        bool small = !((row | p.N) >> 32);
        t = small ? (int64)((unsigned)row / (unsigned)p.N) : row / p.N;
        n = row - t * p.N;
    }
    template <class Group>
    static __device__ __forceinline__ int64 first()
    {
        return (int64)blockIdx.x * Group::per_block() + Group::in_block();
    }
    template <class Group>
    static __device__ __forceinline__ int64 step()
    {
        return (int64)gridDim.x * Group::per_block();
    }
};

#define HELD 4 /* reads of a thread that are on their way at once */

/* Columns that one thread has read: packs of M that lie side by side, the k-th from `first + k * step` on. */
template <int M>
struct Columns {
    Real v[HELD][M];
    int count, first, step; /* packs */
};

/* Calls f(columns) for all of a row that falls to this thread: 16 bytes to a pack where a row is long, else one number. */
template <class F>
static __device__ __forceinline__ void read_row(const X *row, int C, int rank, int size, F f)
{
    int head = 0, packs = 0;
    if (C >= size * PACK) {
        head = (int)(-(unsigned long long)row % sizeof(Pack) / sizeof(X));
        packs = (C - head) / PACK;
    }
    const Pack *aligned = (const Pack *)(row + head);
    for (int i = rank; i < packs; i += size * HELD) {
        Pack pack[HELD];
        Columns<PACK> columns = {{}, 0, head + i * PACK, size * PACK};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (i + k * size >= packs) break;
            pack[k] = aligned[i + k * size];
            columns.count = k + 1;
        }
#pragma unroll
        for (int k = 0; k < HELD * PACK; k++) columns.v[k / PACK][k % PACK] = real_of(pack[k / PACK].v[k % PACK]);
        f(columns);
    }
    int loose = C - packs * PACK; /* all of them; or those beside packs, which are fewer than threads */
    for (int i = rank; i < loose; i += size * HELD) {
        Columns<1> columns = {{}, 0, i < head ? i : i + packs * PACK, size};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (i + k * size >= loose) break;
            columns.v[k][0] = real_of(row[columns.first + k * size]);
            columns.count = k + 1;
        }
        f(columns);
    }
}

/* Calls f(c, x) for each of these columns. */
template <class F>
static __device__ __forceinline__ void each_of_row(const X *row, int C, int rank, int size, F f)
{
    read_row(row, C, rank, size, [&](auto &columns) {
        const int M = sizeof columns.v[0] / sizeof columns.v[0][0];
#pragma unroll
        for (int k = 0; k < HELD * M; k++)
            if (k / M < columns.count) f(columns.first + k / M * columns.step + k % M, columns.v[k / M][k % M]);
    });
}

/* What a thread has seen of a row: exp(x - top) summed over what lies below its largest logit, and how many are as large.
 * They are kept apart so that a small rest beside a certain class keeps its digits. */
struct Seen {
    Real top, below, ties;
    bool nan;

    template <int M>
    __device__ __forceinline__ void add(const Columns<M> &columns)
    {
        Real high = -INF;
#pragma unroll
        for (int k = 0; k < HELD * M; k++)
            if (k / M < columns.count) high = larger(columns.v[k / M][k % M], high);
        if (high > top) seen_from(high);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (k >= columns.count) break;
#pragma unroll
            for (int j = 0; j < M; j++) {
                Real v = columns.v[k][j], e = exp_below(v - top);
                bool tie = v == top;
                nan |= v != v;
                ties += tie ? (Real)1 : (Real)0;
                below += tie ? (Real)0 : e;
            }
        }
    }
    /* In terms of the largest logit of all threads. */
    __device__ __forceinline__ void seen_from(Real highest)
    {
        if (top == highest) return;
        below = (below + ties) * exp_below(top - highest);
        ties = 0;
        top = highest;
    }
};

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

#if CTC_K
/* The columns that a row's emissions are computed for: the labels one by one, or where there is a table the classes, as
 * far as they are labels; and last the blank. */
static __device__ __forceinline__ int class_of(const Problem &p, const int *clean, const int *slot, int L, int u)
{
    if (!p.table) return u < L ? clean[u] : u == L ? (int)p.blank : -1;
    return u < (int)p.C && slot[u] ? u : -1;
}

template <class Group>
static __device__ __forceinline__ void measure_rows(const Problem &p)
{
    int rank = Group::rank(), size = Group::size(), C = (int)p.C;
    /* Where there are tables: two in turn, so that one barrier a row does. */
    Scaled *table = (Scaled *)(dynamic_shared + SCRATCH_BYTES) + Group::in_block() * 2 * C;
    int swap = C;
    for (int64 i = Row::first<Group>(); i < p.T * p.N; i += Row::step<Group>()) {
        Row row(p, i);
        int64 n = row.n;
        int t = (int)row.t, L = p.lengths[n], T = p.lengths[p.N + n];
        if (p.status[n] || t >= T) continue; /* the whole group goes on */
        const X *x = p.logits + t * p.x_t + n * p.x_n;
        const int *clean = p.clean + n * p.pitch, *slot = p.slot + n * p.pitch;

        Seen seen = {-INF, 0, 0, false};
        read_row(x, C, rank, size, [&](auto &columns) { seen.add(columns); });
        int columns = p.table ? C : L + 1;
        Real high = -INF, own = -INF;
        bool far = false;
        int mine = rank < columns ? class_of(p, clean, slot, L, rank) : -1;
        for (int u = rank, c = mine; u < columns;) {
            if (c >= 0) {
                Real v = real_of(x[c]), size_of_v = v < 0 ? -v : v;
                if (u == rank) own = v;
                high = larger(high, v);
                far |= size_of_v < INF && is_far(size_of_v, T);
            }
            u += size;
            if (u < columns) c = class_of(p, clean, slot, L, u);
        }
        Real top = seen.top;
        Group::over(top, larger, high, larger);
        seen.seen_from(top);
        Group::over(seen.below, total, seen.ties, total);
        Real rest = seen.below + (seen.ties - 1);

        Real unit = unit_of(p, n, t, T);
        for (int u = rank, c = mine; u < columns;) {
            if (c >= 0) {
                Scaled emitted = emission(u == rank ? own : real_of(x[c]), high, top, unit);
                if (p.table) table[u] = emitted;
                else *(u < L ? label_spot(p, n, t, u) : blank_spot(p, n, t)) = emitted;
            }
            u += size;
            if (u < columns) c = class_of(p, clean, slot, L, u);
        }
        if (p.table) {
            Group::sync();
            for (int u = rank; u < L; u += size) *label_spot(p, n, t, u) = table[clean[u]];
            if (rank == 0) *blank_spot(p, n, t) = table[p.blank];
            table += swap;
            swap = -swap;
        }
        if (rank == 0) {
            Measure measure = {top, high, 1 / (1 + rest), rest};
            p.measures[n * p.T + t] = measure;
        }
        if (far || seen.nan) atomicMax(p.most + n, (unsigned)(seen.nan ? NOT_NUMBERS : FAR));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_rows_by_warp(const Problem p) { measure_rows<WarpGroup>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) ctc_rows_by_block(const Problem p) { measure_rows<BlockGroup>(p); }
#endif
