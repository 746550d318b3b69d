/* One pass over the logits: the sum of each row, and what the labels and the blank emit there.
 *
 * The softmax of a row is exp(x - top) * inverse. Infinite logits share all the probability; a row of nothing but -inf
 * has none for any class. */

/* What a thread has seen of a row: exp(x - top) summed over what lies below its largest logit, and how many are as
 * large. They are kept apart so that a small rest beside a certain class keeps its digits. */
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

        Real offset = offset_of(t, T);
        for (int u = rank, c = mine; u < columns;) {
            if (c >= 0) {
                Scaled emitted = emission(u == rank ? own : real_of(x[c]), high, top, offset);
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
        if (far || seen.nan) atomicMax(p.strange + n, (unsigned)(seen.nan ? NOT_NUMBERS : FAR));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_rows_by_warp(const Problem p) { measure_rows<WarpGroup>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) ctc_rows_by_block(const Problem p)
{
    measure_rows<BlockGroup>(p);
}
